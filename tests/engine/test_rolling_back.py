"""Line 4 by rule: a check that fails again after each correction leads back; harmless failures do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.ports import ToolOutcome
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState
from harnessd.engine.protocol import CallTool, HandBack, TakeCheckpoint, ToolReturned
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, NO_LIMITS, calls, policies, tool_failure

ROLLING = replace(BRIEF, checkpoints=True)
QUIET = f"{FREE}---\nkind: loop\nrepeat_call: none\nsame_error: none\nalternate: none\nno_progress: none\n"
CHECK: dict[str, Any] = {"run": "make check"}
BROKEN = "2 tests failed: test_a, test_b\n[exit code 1]"


def begun(text: str = FREE) -> Desk:
    desk = Desk(policies(text, **NO_LIMITS), ROLLING)
    desk.lease()
    return desk


class World:
    """A workspace as the engine sees it: each look gives a manifest, and a new one where something was written."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.version = desk, 0

    def acts(
        self, tool: str, arguments: dict[str, Any], gives: str = "ok", exit_code: int = 0, writes: int = 0
    ) -> None:
        """One turn with one call of a tool that may write."""
        self.desk.replied(calls((tool, arguments), turn=f"{len(self.desk.requests)}."))
        self.ends(gives, exit_code, writes)

    def ends(self, gives: str = "ok", exit_code: int = 0, writes: int = 0) -> None:
        desk = self.desk
        while desk.under_way and isinstance(desk.under_way[desk.call], TakeCheckpoint):
            desk.looked(f"m{self.version}", changed=0)
        call = desk.call
        assert isinstance(desk.under_way.pop(call), CallTool)
        self.version += writes
        outcome = ToolOutcome(gives, is_error=exit_code != 0, exit_code=exit_code)
        desk.feed(ToolReturned(desk.now, call, outcome))
        while desk.under_way and isinstance(desk.under_way[desk.call], TakeCheckpoint):
            desk.looked(f"m{self.version}")

    def checks(self, gives: str = BROKEN, exit_code: int = 1, *, writes: int = 0) -> None:
        self.acts("note", CHECK, gives, exit_code, writes)

    def corrects(self, number: int) -> None:
        self.acts("note", {"write": f"try {number}"}, f"written {number}", writes=1)


def rolled(desk: Desk) -> dict[str, Any]:
    """The rollback that was decided on; empty where none was."""
    return dict(desk.ledger.counters.rollback)


def test_a_check_that_fails_again_after_three_corrections_leads_back_to_where_it_passed() -> None:
    # R5.5, R1.1
    desk = begun()
    world = World(desk)
    world.checks("all passed", 0)
    passed = desk.ledger.pointer
    for number in range(4):
        assert desk.stands() is TaskState.RUNNING
        world.corrects(number)
        world.checks()
    assert desk.stands() is TaskState.ROLLING_BACK
    assert desk.last == HandBack("rolling_back")
    rollback = rolled(desk)
    assert (rollback["to"], rollback["since"], rollback["after"]) == (passed, desk.ledger.pointer, "queued")
    assert rollback["by"] == "escalation/default poisoned-path"
    assert "Do not try the same again" in rollback["note"]
    assert "make check" in rollback["note"]
    decision = desk.ledger.decisions[-1].decision
    assert decision.rule.file.endswith("escalation.yaml")
    assert decision.rule.line > 0


def test_a_check_that_never_passed_leads_back_to_before_what_led_to_it() -> None:
    # R5.5: before the failing streak and the changes that led to it
    desk = begun()
    world = World(desk)
    before = desk.ledger.pointer
    for number in range(4):
        world.corrects(number)
        world.checks()
    assert rolled(desk)["to"] == before


def harmless(name: str) -> Sequence[Any]:
    """Scenes in which a command fails four times and more, and nothing is wrong."""
    grep, count = {"run": "grep -rn old src"}, {"run": "grep -c old a"}
    scenes: dict[str, list[Any]] = {
        "a search that finds nothing any more": [(grep, "(no output)\n[exit code 1]", 1)] * 6,
        "a count of nothing": [(count, "0\n[exit code 1]", 1)] * 6,
        "different commands": [({"run": f"cat gone{n}"}, f"gone{n}: not there\n[exit code 1]", 1) for n in range(6)],
        "tests before code": [(CHECK, f"{9 - n} tests failed\n[exit code 1]", 1) for n in range(6)],
        "green in between": [(CHECK, BROKEN, 1), (CHECK, BROKEN, 1), (CHECK, "passed", 0)] * 3,
    }
    return scenes[name]


@pytest.mark.parametrize(
    "name",
    [
        "a search that finds nothing any more",
        "a count of nothing",
        "different commands",
        "tests before code",
        "green in between",
    ],
)
def test_harmless_failures_take_nothing_back(name: str) -> None:
    # R5.5
    desk = begun(QUIET)
    world = World(desk)
    for number, (arguments, gives, code) in enumerate(harmless(name)):
        world.corrects(number)
        world.acts("note", arguments, gives, code)
    assert desk.stands() is TaskState.RUNNING
    assert rolled(desk) == {}
    assert not [one for one in desk.ledger.decisions if one.decision.rule.kind == "escalation"]


def test_a_check_that_only_writes_itself_is_no_correction() -> None:
    # R5.5: caches and logs of the check itself are not the model's work
    desk = begun(QUIET)
    world = World(desk)
    for _ in range(8):
        world.checks(writes=1)
    assert rolled(desk) == {}


def test_a_persons_word_begins_anew() -> None:
    desk = begun(QUIET)
    world = World(desk)
    for number in range(3):
        world.corrects(number)
        world.checks()
    desk.hear("Look at the other file.")
    world.corrects(8)
    world.checks()
    world.corrects(9)
    world.checks()
    assert rolled(desk) == {}


def test_calls_that_cannot_be_carried_out_take_no_other_work_back() -> None:
    # R5.5: an edit that is refused says nothing of what was written before or beside it
    desk = begun(QUIET)
    world = World(desk)
    for number in range(4):
        desk.replied(calls(("put", {"n": number}), turn=f"{len(desk.requests)}."))
        while isinstance(desk.under_way[desk.call], TakeCheckpoint):
            desk.looked(f"m{world.version}", changed=0)
        desk.failed(tool_failure("put", "failed"))
        while desk.under_way and isinstance(desk.under_way[desk.call], TakeCheckpoint):
            desk.looked(f"m{world.version}")
        if number < 3:
            world.corrects(number)
    assert rolled(desk) == {}
    assert desk.stands() is TaskState.WAITING
    passed_over = desk.ledger.decisions[-1].decision.evidence["passed_over"]
    assert "rollback: what was written since then is not known to be bad" in passed_over


def test_a_loop_goes_back_to_before_it_after_the_nudge() -> None:
    # R3.10, R5.5
    desk = begun()
    world = World(desk)
    world.corrects(0)
    for _ in range(3):
        desk.replied(calls(("look", {"path": "a"}), turn=f"{len(desk.requests)}."))
        desk.returned("the same")
    assert [event.type for event in desk.ledger.events].count("nudge") == 1
    nudged = [node.id for node in desk.ledger.path]
    for _ in range(3):
        assert desk.stands() is TaskState.RUNNING
        desk.replied(calls(("look", {"path": "a"}), turn=f"{len(desk.requests)}."))
        desk.returned("the same")
    assert desk.stands() is TaskState.ROLLING_BACK
    assert rolled(desk)["to"] in nudged
    assert rolled(desk)["by"].startswith("loop/default")


def test_a_crash_after_the_decision_does_not_forget_it() -> None:
    # J16: the look after the failing check is still under way when the power fails
    desk = begun()
    world = World(desk)
    for number in range(3):
        world.corrects(number)
        world.checks()
    world.corrects(4)
    desk.replied(calls(("note", CHECK), turn="last."))
    while isinstance(desk.under_way[desk.call], TakeCheckpoint):
        desk.looked(f"m{world.version}", changed=0)
    call = desk.call
    desk.under_way.pop(call)
    desk.feed(ToolReturned(desk.now, call, ToolOutcome(BROKEN, is_error=True, exit_code=1)))
    assert desk.stands() is TaskState.RUNNING
    assert rolled(desk)["to"]
    desk.crash_and_lease()
    assert desk.stands() is TaskState.ROLLING_BACK


def test_a_cancel_forgets_the_way_back() -> None:
    desk = begun()
    world = World(desk)
    for number in range(3):
        world.corrects(number)
        world.checks()
    world.corrects(4)
    desk.replied(calls(("note", CHECK), turn="last."))
    while isinstance(desk.under_way[desk.call], TakeCheckpoint):
        desk.looked(f"m{world.version}", changed=0)
    call = desk.call
    desk.under_way.pop(call)
    desk.feed(ToolReturned(desk.now, call, ToolOutcome(BROKEN, is_error=True, exit_code=1)))
    desk.cancel("ann")
    desk.looked(f"m{world.version}")
    assert desk.ledger.reason is StopReason.ABORTED
    assert rolled(desk) == {}


def test_calls_that_wait_are_left_behind() -> None:
    # R2.2, R5.1: the branch that is left keeps its open calls; nothing of it is shown to a model again
    desk = begun()
    world = World(desk)
    for number in range(3):
        world.corrects(number)
        world.checks()
    world.corrects(4)
    desk.replied(calls(("note", CHECK), ("pay", {"eur": 5}), turn="last."))
    world.ends(BROKEN, 1)
    assert desk.stands() is TaskState.ROLLING_BACK
    assert not any(act.tool == "pay" for act in desk.performed)
    assert desk.ledger.path[-1].kind is NodeKind.TOOL_RESULT
