"""PostgreSQL's spelling of the queries: the server takes every one, and every text comes back as it was."""

from __future__ import annotations

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.stores.database import queries
from harnessd.stores.postgresql.dialect import escaped, texts, unescaped
from tests.stores.postgres_server import new_store
from tests.stores.scenes import opened


async def test_the_server_takes_every_query() -> None:
    url = new_store()
    async with opened(url):
        connection = await asyncpg.connect(url)
        wrong = {}
        for name, query in texts().items():
            try:
                await connection.prepare(query.text)
            except asyncpg.PostgresError as error:
                wrong[name] = str(error)
        await connection.close()
    assert not wrong
    assert set(texts()) >= set(queries())


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\0\ue000\ue001\ue002")))
def test_a_text_with_a_nul_comes_back_as_it_was(text: str) -> None:
    assert unescaped(escaped(text)) == text
    assert "\0" not in escaped(text)


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ue000\ue002", "\ue000", "\ue000\0\ue001"])
def test_no_two_texts_are_stored_alike(text: str) -> None:
    assert unescaped(escaped(text)) == text
