"""The cases of tests/cases/transcripts: each gets a view that its service takes, and what is valid stays (R4.7)."""

from __future__ import annotations

import copy
import json

import pytest

from harnessd.defence.line3_repair.transcript import Receiver, receiver, repair
from tests.transcripts import Case, cases, refusal, unmet

CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def of(case: Case) -> Receiver:
    return receiver(case.protocol, (case.target,) if case.target else ())


@every_case
def test_the_view_is_legal_and_keeps_what_it_must(case: Case) -> None:
    # R4.7, R2.2
    found = repair(case.messages, of(case))
    assert refusal(found.messages, case.protocol, case.target) == ""
    assert unmet(case, found.messages) == []
    assert set(case.expect.get("codes", ())) - {note.code for note in found.notes} == set()


@every_case
def test_each_change_is_told_and_history_is_left_alone(case: Case) -> None:
    before = copy.deepcopy(case.messages)
    found = repair(case.messages, of(case))
    assert case.messages == before
    assert bool(found.notes) == (found.messages != before)
    assert all(0 <= note.index <= len(before) and note.message for note in found.notes)
    if refusal(before, case.protocol, case.target):
        assert found.notes


@every_case
def test_a_repaired_view_needs_no_repair(case: Case) -> None:
    found = repair(case.messages, of(case))
    again = repair(found.messages, of(case))
    assert again.notes == ()
    assert json.dumps(again.messages) == json.dumps(found.messages)


@every_case
def test_what_comes_later_changes_nothing_before(case: Case) -> None:
    # the service's prompt cache holds as long as the beginning leaves byte-identical
    if case.expect.get("codes", ()) and {"too_many_images", "displaced_result"} & set(case.expect["codes"]):
        return  # what comes later is what moved there
    said = {"role": "user", "content": "One word more."}
    more = [*case.messages, {"type": "message", **said} if case.protocol == "openai-responses" else said]
    one, two = repair(case.messages, of(case)).messages, repair(more, of(case)).messages
    same = 0
    while same < min(len(one), len(two)) and one[same] == two[same]:
        same += 1
    # The end alone may differ: where a word was put behind the last one, or where results open the next message.
    assert same >= len(one) - 1


def test_the_valid_ones_are_the_same_objects() -> None:
    for case in CASES:
        if case.expect.get("same"):
            kept = repair(case.messages, of(case)).messages
            assert all(one is other for one, other in zip(kept, case.messages, strict=True)), case.name


def test_there_are_enough_cases_of_every_kind() -> None:
    kinds = {case.name.split("/")[0] for case in CASES}
    assert len(CASES) >= 150
    assert len(kinds) == 10
