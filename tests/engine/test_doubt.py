"""After a restore from a backup: what cannot be undone is asked of a person first; all else goes on."""

from __future__ import annotations

from dataclasses import replace

from harnessd.domain.task import TaskState
from harnessd.engine.protocol import RunState
from tests.engine.desk import Desk
from tests.engine.scenery import FREE, NO_LIMITS, calls, policies

DOUBT = {"from": 500.0, "until": 900.0}


def restored() -> Desk:
    desk = Desk(policies(FREE, **NO_LIMITS))
    desk.lease()
    desk.ledger.counters = replace(desk.ledger.counters, doubt=DOUBT)
    desk.crash_and_lease()
    return desk


def test_an_irreversible_act_is_asked_of_a_person_after_a_restore() -> None:  # R3.13, J25
    desk = restored()
    desk.replied(calls(("pay", {"amount": 5})))
    assert desk.performed == []
    assert desk.stands() is TaskState.WAITING
    (question,) = desk.ledger.questions.values()
    assert "the store was restored" in question.sentence
    assert question.choices == ("allow", "deny")


def test_without_a_restore_it_is_not_asked() -> None:
    desk = Desk(policies(FREE, **NO_LIMITS))
    desk.lease()
    desk.replied(calls(("pay", {"amount": 5})))
    assert desk.run.state is RunState.TOOLS
    assert len(desk.performed) == 1


def test_what_can_be_undone_goes_on_after_a_restore() -> None:
    desk = restored()
    desk.replied(calls(("look", {})))
    desk.returned("seen")
    assert desk.stands() is TaskState.RUNNING
    assert desk.ledger.questions == {}
