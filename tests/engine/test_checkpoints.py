"""The workspace is captured around calls that can write: when, at what, and what becomes of a look that fails."""

from __future__ import annotations

from dataclasses import replace

from harnessd.domain.session import NodeKind
from harnessd.domain.task import TaskState
from harnessd.engine.protocol import CallModel, CallTool, RunState, TakeCheckpoint
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, calls, policies, says, tool_failure

_TOUCHES = {"put": "path", "pay": "nothing"}
LOOKING = replace(
    BRIEF,
    checkpoints=True,
    tools=tuple(replace(tool, touches=_TOUCHES.get(tool.spec.name, "anything")) for tool in BRIEF.tools),  # type: ignore[arg-type]
)


def begun() -> Desk:
    """A task whose model was asked."""
    desk = Desk(policies(FREE), LOOKING)
    desk.lease()
    return desk


def under_way(desk: Desk) -> object:
    """The one act under way."""
    return desk.under_way[desk.call]


# R5.3: before a tool that can write runs, and after it; the row stands in the unit with what follows.
def test_a_call_that_can_write_starts_after_its_checkpoint_and_is_followed_by_one() -> None:
    desk = begun()
    desk.replied(calls(("note", {"text": "x"})))
    assert under_way(desk) == TakeCheckpoint("checkpoint", None)
    assert not any(effect.kind == "tool" for effect in desk.ledger.effects.values()), "no intent before the checkpoint"

    desk.looked("m1")
    assert isinstance(under_way(desk), CallTool)
    (first,) = desk.ledger.checkpoints
    assert (first.ref, first.manifest, first.why, first.root) == ("c1", "m1", "before", "/w")
    assert desk.ledger.nodes[first.node].kind is NodeKind.ASSISTANT

    desk.returned()
    assert under_way(desk) == TakeCheckpoint("checkpoint", None)
    desk.looked("m2")
    second = desk.ledger.checkpoints[-1]
    assert (second.ref, second.why) == ("c2", "after")
    assert desk.ledger.nodes[second.node].kind is NodeKind.TOOL_RESULT
    assert isinstance(under_way(desk), CallModel)


# Gate: 0 for a turn without a writing tool.
def test_reading_takes_no_checkpoint_and_neither_does_what_leaves_the_workspace_alone() -> None:
    desk = begun()
    desk.replied(calls(("look", {}), ("pay", {"eur": 1})))
    assert isinstance(under_way(desk), CallTool)
    desk.returned()
    assert isinstance(under_way(desk), CallTool)
    desk.returned()
    assert isinstance(under_way(desk), CallModel)
    assert desk.ledger.checkpoints == []


def test_nothing_changed_is_no_new_checkpoint() -> None:
    desk = begun()
    for turn in "ab":
        desk.replied(calls(("note", {"turn": turn}), turn=turn))
        desk.looked("m1", changed=0)
        desk.returned()
        desk.looked("m1", changed=0)
    assert [one.ref for one in desk.ledger.checkpoints] == ["c1"]


# Gate: a dirty list for file tools.
def test_a_tool_that_names_its_path_has_only_that_looked_at() -> None:
    desk = begun()
    for turn, (path, dirty) in enumerate([
        ("src/./a.py", ("src/a.py",)),
        ("/w/src//a.py", ("src/a.py",)),
        ("../w/a", None),
        ("/elsewhere/a", None),
        (".", None),
    ]):  # fmt: skip
        desk.replied(calls(("put", {"path": path}), turn=str(turn)))
        assert under_way(desk) == TakeCheckpoint("checkpoint", dirty), path
        desk.looked("m1")
        desk.returned(f"ok {turn}")
        assert under_way(desk) == TakeCheckpoint("checkpoint", dirty), path
        desk.looked("m1")


def test_a_call_is_not_started_without_its_checkpoint() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.not_looked("The workspace /w cannot be read.")
    (result,) = desk.results()
    assert result.is_error
    assert result.text == "note was not started: The workspace /w cannot be read."
    assert desk.performed == []
    assert isinstance(under_way(desk), CallModel)


def test_a_look_after_a_call_that_fails_is_told_and_the_task_goes_on() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.looked("m1")
    desk.returned()
    desk.not_looked("The workspace /w cannot be read.")
    assert [event.data.get("failed") for event in desk.ledger.events if event.type == "checkpoint"] == [
        "The workspace /w cannot be read."
    ]
    desk.replied(says("Done."))
    assert desk.stands() is TaskState.COMPLETED


def test_a_call_that_failed_may_have_written_all_the_same() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.looked("m1")
    desk.failed(tool_failure("note", "failed"))
    assert under_way(desk) == TakeCheckpoint("checkpoint", None)
    desk.looked("m2")
    assert [one.ref for one in desk.ledger.checkpoints] == ["c1", "c2"]


def test_a_task_cancelled_in_a_look_ends_once_the_look_has() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.cancel()
    assert desk.run.state is RunState.CANCELLING
    assert desk.asked_to_end == {"checkpoint"}
    desk.not_looked("cancelled", cancelled=True)
    assert desk.stands() is TaskState.STOPPED
    (result,) = desk.results()
    assert "was not started" in result.text


def test_a_drained_task_is_handed_back_after_its_look_and_takes_it_again() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.step_down()
    desk.looked("m1")
    assert desk.stands() is TaskState.QUEUED
    desk.lease()
    assert under_way(desk) == TakeCheckpoint("checkpoint", None)
    desk.looked("m1", changed=0)
    assert isinstance(under_way(desk), CallTool)
    assert [one.ref for one in desk.ledger.checkpoints] == ["c1"]


def test_a_crash_in_a_look_leaves_nothing_unknown() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.crash_and_lease()
    assert under_way(desk) == TakeCheckpoint("checkpoint", None)
    desk.looked("m1")
    assert isinstance(under_way(desk), CallTool)
    assert desk.results() == []


def test_numbers_go_on_over_a_crash() -> None:
    desk = begun()
    desk.replied(calls(("note", {})))
    desk.looked("m1")
    desk.crash_and_lease()
    desk.replied(calls(("note", {"again": 1}), turn="b"))
    desk.looked("m2")
    assert [one.ref for one in desk.ledger.checkpoints] == ["c1", "c2"]
