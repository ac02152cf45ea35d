"""The contract of every store: policy revisions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harnessd.domain.durable.revision import RevisionDraft, RevisionState
from harnessd.stores import SqlStore
from tests.stores.scenes import NOW, PLACES, folder, opened


@pytest.fixture(params=PLACES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SqlStore]:
    with folder(request.param, tmp_path) as place:
        async with opened(place / "harnessd.db") as one:
            yield one


def draft(hash_: str, state: RevisionState = RevisionState.IN_FORCE, what: str = "budget.yaml") -> RevisionDraft:
    content = None if state is RevisionState.REFUSED else {"files": {"budget.yaml": f"# {hash_}"}, "builtin": {}}
    return RevisionDraft(hash_, state, "files", what, "0.1.0", by="ann", note="INC-7", content=content)


async def test_nothing_is_in_force_at_first(store: SqlStore) -> None:
    assert await store.policy_state() == (0, False)
    assert await store.revisions() == []
    assert await store.revision(1) is None


async def test_a_revision_in_force_takes_the_place_of_the_last(store: SqlStore) -> None:  # R7.4
    assert await store.add_revision(draft("a"), NOW) == 1
    assert await store.add_revision(draft("b"), NOW + 1) == 2
    assert await store.policy_state() == (2, False)
    newest, oldest = await store.revisions()
    assert (newest.number, newest.state, oldest.state) == (2, RevisionState.IN_FORCE, RevisionState.LEFT)
    assert (newest.by, newest.note, newest.what, newest.at) == ("ann", "INC-7", "budget.yaml", NOW + 1)


async def test_contents_come_back_as_they_were(store: SqlStore) -> None:  # R7.4
    await store.add_revision(draft("a"), NOW)
    found = await store.revision(1)
    assert found is not None
    assert found[1] == {"files": {"budget.yaml": "# a"}, "builtin": {}}


async def test_refused_and_held_ones_change_nothing(store: SqlStore) -> None:  # R7.2
    await store.add_revision(draft("a"), NOW)
    await store.add_revision(draft("", RevisionState.REFUSED, "13 problems"), NOW)
    await store.add_revision(draft("c", RevisionState.HELD, "would stop 11"), NOW)
    assert await store.policy_state() == (1, False)
    held, refused, first = await store.revisions()
    assert [held.state, refused.state, first.state] == [
        RevisionState.HELD,
        RevisionState.REFUSED,
        RevisionState.IN_FORCE,
    ]
    found = await store.revision(2)
    assert found is not None
    assert found[1] is None


async def test_a_revert_holds_and_the_next_one_in_force_lifts_it(store: SqlStore) -> None:  # R7.4
    await store.add_revision(draft("a"), NOW)
    await store.add_revision(draft("b"), NOW)
    await store.put_in_force(1, hold=True)
    assert await store.policy_state() == (1, True)
    assert {one.number: one.state for one in await store.revisions()} == {
        1: RevisionState.IN_FORCE,
        2: RevisionState.LEFT,
    }
    await store.add_revision(draft("c"), NOW)
    assert await store.policy_state() == (3, False)


async def test_it_survives_a_restart(tmp_path: Path) -> None:  # R7.4, R6.1
    async with opened(tmp_path / "harnessd.db") as store:
        await store.add_revision(draft("a"), NOW)
        await store.add_revision(draft("b"), NOW)
        await store.put_in_force(1, hold=True)
    async with opened(tmp_path / "harnessd.db") as store:
        assert await store.policy_state() == (1, True)
        found = await store.revision(1)
        assert found is not None
        assert found[0].hash == "a"


async def test_equal_sets_are_kept_once(store: SqlStore) -> None:
    await store.add_revision(draft("a"), NOW)
    await store.add_revision(draft("b"), NOW)
    await store.add_revision(draft("a"), NOW)
    found = await store.revision(3)
    assert found is not None
    assert found[1] == {"files": {"budget.yaml": "# a"}, "builtin": {}}
