"""Answers that are none: a reply without words and without calls is a failure, and never becomes a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply, TextBlock
from tests.runtime.traffic_scene import scene


@pytest.mark.parametrize("words", [(), ("",), (" \n",), ("", "\t")])
async def test_an_answer_without_words_is_a_failure(tmp_path: Path, words: tuple[str, ...]) -> None:
    # R4.7: stored, it would poison every later request
    async with scene(tmp_path, "kind: breaker\nrules: []\n") as one:
        well, one.service.says = one.service.says, tuple(TextBlock(text) for text in words)
        answer = await one.call()
        assert isinstance(answer, Failure)
        assert answer.hint is ErrorClass.MALFORMED_OUTPUT
        one.service.says = well
        assert isinstance(await one.call(), ModelReply)
