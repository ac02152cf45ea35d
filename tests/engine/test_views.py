"""Views: what a model is shown is legal whatever the history holds; told once; stricter where a service refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, ToolResultBlock
from harnessd.domain.record import RecordEvent
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import StopReason, TaskState
from harnessd.engine.machine import Run
from harnessd.engine.protocol import CallModel, Finish, Resumed
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, NO_LIMITS, calls, illegal, model_failure, policies, says

CHAT = replace(BRIEF, model=replace(BRIEF.model, protocol="openai-chat", service_model="m-1"))


def shown(desk: Desk) -> tuple[Message, ...]:
    """What the model that is being asked was shown."""
    (act,) = desk.under_way.values()
    assert isinstance(act, CallModel)
    return act.request.messages


def refused(message: str) -> Failure:
    return replace(model_failure("wrong"), message=message)


def told(desk: Desk) -> list[dict[str, Any]]:
    return [dict(event.data) for event in desk.ledger.events if event.type == "context_repaired"]


def lost_result() -> tuple[Desk, tuple[Node, ...]]:
    """A task whose stored history has lost the first of two results: edited, imported, cut."""
    desk = Desk(policies(FREE, **NO_LIMITS))
    desk.lease()
    for turn in ("0", "1"):
        desk.replied(calls(("look", {"path": turn}), turn=turn))
        desk.returned("seen")
    path = tuple(desk.ledger.path)
    gone = next(node for node in path if node.kind is NodeKind.TOOL_RESULT)
    return desk, tuple(node for node in path if node is not gone)


def test_a_task_whose_history_lost_a_result_goes_on() -> None:  # R4.7, R2.2
    desk, path = lost_result()
    journal = desk.ledger.journal()
    run = Run.restore(BRIEF, path, journal, desk.ledger.counters)
    commands = run.receive(Resumed(desk.now), desk.rules)
    asked = next(one for one in commands if isinstance(one, CallModel))
    assert illegal(asked.request.messages) == ""
    block = asked.request.messages[2].blocks[0]
    assert isinstance(block, ToolResultBlock)
    assert "was done" in block.text  # the journal knows that it was
    (event,) = [one for one in commands if isinstance(one, RecordEvent) and one.type == "context_repaired"]
    assert (event.node, event.data["code"], event.data["index"]) == (path[1].id, "unanswered_call", 1)


def test_a_legal_history_is_told_nothing_of() -> None:
    desk = Desk(policies(FREE, **NO_LIMITS))
    desk.lease()
    for turn in range(4):
        desk.replied(calls(("look", {"path": f"{turn}"}), turn=str(turn)))
        desk.returned("seen")
    assert told(desk) == []
    assert "repaired" not in desk.ledger.counters.context


def test_a_template_that_wants_turns_gets_them_from_then_on() -> None:  # R3.3: never the same bytes again
    desk = Desk(policies(FREE, **NO_LIMITS), CHAT)
    desk.lease()
    desk.replied(calls(("look", {"path": "a"})))
    desk.hear("And hurry.")
    desk.returned("seen")
    before = shown(desk)
    desk.model_failed(refused("Conversation roles must alternate user/assistant/user/assistant/..."))
    decision = desk.ledger.decisions[-1].decision
    assert type(decision.remedy).__name__ == "Repair"
    assert decision.rule.rule == "model.classes.invalid_request"
    after = shown(desk)
    assert after != before
    assert [message.role for message in after[-3:]] == ["user", "assistant", "user"]
    desk.replied(calls(("look", {"path": "b"}), turn="1"))
    desk.returned("seen again")
    assert shown(desk)[: len(after)] == after, "the view stays as it was"
    desk.replied(says("done"))
    assert desk.ledger.last_move.reason is StopReason.COMPLETED


def test_a_stricter_view_survives_a_crash() -> None:
    desk = Desk(policies(FREE, **NO_LIMITS), CHAT)
    desk.lease()
    desk.replied(calls(("look", {"path": "a"})))
    desk.hear("And hurry.")
    desk.returned("seen")
    desk.model_failed(refused("After the optional system message, conversation roles must alternate"))
    after = shown(desk)
    desk.crash_and_lease()
    assert shown(desk) == after


def test_the_same_bytes_are_not_sent_again() -> None:  # R3.3
    desk = Desk(policies(FREE, **NO_LIMITS), CHAT)
    desk.lease()
    desk.model_failed(refused("Conversation roles must alternate"))
    assert isinstance(desk.last, Finish)
    assert desk.stands() is TaskState.STOPPED
    assert len(desk.requests) == 1
    passed = desk.ledger.decisions[-1].decision.evidence["passed_over"]
    assert "no stricter one differs" in passed[0]


def test_a_repair_is_tried_once() -> None:
    desk = Desk(policies(FREE, **NO_LIMITS), CHAT)
    desk.lease()
    desk.replied(calls(("look", {"path": "a"})))
    desk.hear("And hurry.")
    desk.returned("seen")
    desk.model_failed(refused("Conversation roles must alternate"))
    desk.model_failed(refused("Something else is wrong"))
    assert isinstance(desk.last, Finish)
    assert desk.ledger.last_move.reason is StopReason.ERROR


def test_ids_that_a_service_refuses_are_mapped() -> None:
    desk = Desk(policies(FREE, **NO_LIMITS), CHAT)
    desk.lease()
    desk.replied(calls(("look", {"path": "a"})))
    desk.returned("seen")
    desk.model_failed(refused("Tool call id was call-0 but must be a-z, A-Z, 0-9, with a length of 9."))
    (use,) = shown(desk)[1].tool_uses
    assert len(use.id) == 9
    assert illegal(shown(desk)) == ""
