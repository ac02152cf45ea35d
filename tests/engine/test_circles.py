"""Loops, tallies, re-asks, shims, recoveries: what stops an agent that goes in circles (R2.3, R2.4, R3.10, R3.14)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState, Verb
from harnessd.engine.protocol import CallTool, RunState, ToolFacts
from tests.engine.desk import Desk
from tests.engine.scenery import (
    BRIEF,
    EFFECTS,
    FREE,
    NO_LIMITS,
    TOOLS,
    calls,
    model_failure,
    policies,
    tool_failure,
)

NUDGE = "You have done this 3 times with the same result. Say what you know, then try something else."


def started(text: str = FREE, **budget: float) -> Desk:
    """A run that waits for its first answer."""
    desk = Desk(policies(text, **{**NO_LIMITS, **budget}))
    desk.lease()
    return desk


def does(desk: Desk, *wanted: tuple[str, dict[str, Any]], gives: str = "same", times: int = 1) -> None:
    """The model asks for calls, and each gives the same."""
    for _ in range(times):
        desk.replied(calls(*wanted, turn=f"{len(desk.requests)}."))
        while any(isinstance(act, CallTool) for act in desk.under_way.values()):
            desk.returned(gives, min(desk.under_way))


def last_result(desk: Desk) -> str:
    """The newest result's words."""
    return desk.results()[-1].text


# --- loops ------------------------------------------------------------------------------------------------------------


def test_the_third_equal_call_is_nudged_once_and_the_sixth_asks_a_person() -> None:  # R3.10
    desk = started()
    does(desk, ("look", {"a": 1}), times=2)
    assert last_result(desk) == "same"
    does(desk, ("look", {"a": 1}))
    assert last_result(desk) == f"same\n{NUDGE}"
    does(desk, ("look", {"a": 1}), times=2)
    assert last_result(desk) == "same", "tallies start again at 0 after each step"
    does(desk, ("look", {"a": 1}))
    assert desk.stands() is TaskState.WAITING
    decision = desk.ledger.decisions[-1].decision
    assert decision.error_class == "loop_detected"
    assert (decision.rule.kind, decision.rule.rule) == ("loop", "repeat_call")
    assert decision.evidence["passed_over"] == [
        "nudge: taken before in this episode",
        "rollback: no checkpoints of the workspace are kept",
    ]
    (question,) = desk.ledger.asked
    assert "look was called 3 times with the same result" in question.sentence


def test_a_persons_answer_begins_a_new_episode() -> None:
    desk = started()
    does(desk, ("look", {"a": 1}), times=6)
    desk.ledger.answer(desk.ledger.asked[0].id, "go-on", "Try b.")
    desk.lease()
    assert "Try b." in desk.texts(NodeKind.NOTICE)[-1]
    does(desk, ("look", {"a": 1}), times=3)
    assert last_result(desk) == f"same\n{NUDGE}"


def test_a_ladder_without_a_step_left_stops_as_loop_detected() -> None:  # R3.10
    desk = started(f"{FREE}---\nkind: loop\ndo: [nudge]\n")
    does(desk, ("look", {"a": 1}), times=6)
    assert desk.ledger.reason is StopReason.LOOP_DETECTED
    assert "look was called 3 times" in desk.ledger.last_move.sentence


def test_progress_begins_a_new_episode() -> None:
    desk = started()
    does(desk, ("look", {"a": 1}), times=3)
    does(desk, ("look", {"a": 2}), gives="news")
    does(desk, ("look", {"a": 1}), times=3)
    assert desk.stands() is TaskState.RUNNING
    assert last_result(desk) == f"same\n{NUDGE}"


def test_what_only_looks_new_is_no_progress() -> None:
    desk = started()
    for second in range(3):
        does(desk, ("look", {"a": 1}), gives=f"pid {second + 100}, 12:00:0{second}, took {second}ms")
    assert NUDGE in last_result(desk)


def test_polling_whose_output_changes_is_no_loop() -> None:  # c12
    desk = started()
    for text in ("running 10%", "running 40%", "running 80%", "exit 0"):
        does(desk, ("look", {"id": "bg-1"}), gives=text)
    assert all(result.text in ("running 10%", "running 40%", "running 80%", "exit 0") for result in desk.results())
    assert desk.ledger.counters.tool_calls == 4


def test_a_tool_that_polls_is_exempt() -> None:  # c12
    polls = ", ".join(f"{{for: tool/{name}, effect: {effect}, polling: true}}" for name, effect in EFFECTS.items())
    desk = started(f"kind: tools\nrules: [{polls}]\n")
    does(desk, ("look", {"id": "bg-1"}), times=12)
    assert not any("times with the same" in result.text for result in desk.results())
    assert desk.ledger.counters.tool_calls == 12


def test_the_same_batch_in_another_order_is_the_same_round() -> None:  # c11
    desk = started()
    first, second = ("look", {"x": 1, "y": 2}), ("look", {"x": 3, "y": 4})
    does(desk, first, second)
    does(desk, ("look", {"y": 4, "x": 3}), ("look", {"y": 2, "x": 1}))
    does(desk, first, second)
    assert last_result(desk).endswith(NUDGE)


def test_a_restored_run_finds_the_loop_where_the_unbroken_one_does() -> None:  # R6.1
    desk = started()
    for _ in range(2):
        does(desk, ("look", {"a": 1}))
        desk.crash_and_lease()
    does(desk, ("look", {"a": 1}))
    assert last_result(desk) == f"same\n{NUDGE}"
    desk.crash_and_lease()
    does(desk, ("look", {"a": 1}), times=3)
    assert desk.stands() is TaskState.WAITING


# --- tallies and escalation -------------------------------------------------------------------------------------------


def test_three_invalid_calls_in_a_row_leave_the_model() -> None:  # R2.4
    desk = started()
    for number in range(3):
        desk.replied(calls(("look", {"n": number}), turn=f"{number}."))
        desk.failed(tool_failure("look", "arguments"))
    assert desk.stands() is TaskState.WAITING
    decision = desk.ledger.decisions[-1].decision
    assert decision.rule.rule == "three-strikes"
    assert "expected string, got number 42" in desk.ledger.asked[0].sentence


def test_calls_of_one_reply_are_one_strike_and_a_good_one_ends_the_row() -> None:  # R2.4
    desk = started()
    desk.replied(calls(*(("look", {"n": number}) for number in range(3))))
    for call in sorted(desk.under_way):
        desk.failed(tool_failure("look", "arguments"), call)
    does(desk, ("look", {"n": 9}), gives="good")
    for number in range(2):
        desk.replied(calls(("look", {"n": number}), turn=f"{number}."))
        desk.failed(tool_failure("look", "arguments"))
    assert desk.stands() is TaskState.RUNNING


def test_corrections_that_do_not_help_ask_a_person_while_nothing_can_be_rolled_back() -> None:
    desk = started(f"{FREE}---\nkind: loop\nsame_error: none\n")
    for number in range(4):
        desk.replied(calls(("note", {"n": number}), turn=f"{number}."))
        desk.failed(tool_failure("note", "failed"))
        does(desk, ("look", {"n": number}), gives=f"news {number}") if number < 3 else None
    assert desk.stands() is TaskState.WAITING
    decision = desk.ledger.decisions[-1].decision
    assert decision.rule.rule == "poisoned-path"
    assert decision.evidence["passed_over"] == ["rollback: no checkpoints of the workspace are kept"] * 2


def test_a_rule_of_escalation_goes_before_the_class() -> None:  # R1.1
    text = "---\nkind: escalation\nrules: [{when: {class: overloaded, consecutive: 2}, do: [needs_human, stop]}]\n"
    desk = started(FREE + text)
    desk.model_failed(model_failure("overloaded"))
    desk.waited()
    desk.model_failed(model_failure("overloaded"))
    assert desk.stands() is TaskState.WAITING


def test_a_stop_that_waits_for_its_calls_to_end_is_not_forgotten_by_a_crash() -> None:  # R6.1
    desk = started(f"{FREE}---\nkind: retry\ntool: {{classes: {{execution_failed: {{do: stop}}}}}}\n")
    desk.replied(calls(("look", {"a": 1}), ("look", {"a": 2})))
    desk.failed(tool_failure("look", "failed"), desk.effect_of(0))
    assert desk.run.state is RunState.CANCELLING
    desk.crash_and_lease()
    assert desk.ledger.reason is StopReason.ERROR
    assert "no such file" in desk.ledger.last_move.sentence


def test_an_answer_that_never_came_ends_as_unanswered() -> None:  # R3.8
    desk = started(f"{FREE}---\nkind: escalation\nask: {{after: 1h, do: stop}}\n")
    does(desk, ("look", {"a": 1}), times=6)
    assert desk.ledger.until == desk.now + 3600
    desk.now += 3600
    desk.ledger.move(Verb.ANSWER)
    desk.lease()
    assert desk.ledger.reason is StopReason.UNANSWERED


def test_too_many_recoveries_of_one_step_ask_a_person_before_anything_runs() -> None:  # R6.1a
    desk = started()
    for _ in range(3):
        desk.crash_and_lease()
        assert desk.run.state is RunState.MODEL
    asked_before = len(desk.requests)
    desk.crash_and_lease()
    assert desk.stands() is TaskState.WAITING
    assert len(desk.requests) == asked_before
    assert [event.type for event in desk.ledger.events if event.type == "recovery_stopped"] == ["recovery_stopped"]
    desk.ledger.answer(desk.ledger.asked[0].id, "go-on")
    desk.lease()
    assert desk.run.state is RunState.MODEL


def test_an_interruption_that_a_person_lets_end_is_no_wish_of_theirs() -> None:  # R3.8, R6.1a
    desk = started()
    for _ in range(4):
        desk.crash_and_lease()
    desk.ledger.answer(desk.ledger.asked[0].id, "stop")
    desk.lease()
    assert desk.ledger.reason is StopReason.INTERRUPTED
    assert "was interrupted 4 times at the same step" in desk.ledger.last_move.sentence


def test_a_step_between_two_crashes_makes_them_two_interruptions() -> None:  # R6.1a
    desk = started()
    for number in range(6):
        does(desk, ("look", {"n": number}), gives=f"news {number}")
        desk.crash_and_lease()
    assert desk.run.state is RunState.MODEL


# --- answers that cannot be read --------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_asked_again_with_the_exact_error_twice() -> None:  # R3.14
    desk = started()
    for number in (1, 2):
        desk.model_failed(model_failure("unreadable"))
        desk.waited()
        notices = desk.texts(NodeKind.NOTICE)
        assert len(notices) == number
        assert "Your last answer could not be read: neither words nor a call." in notices[-1]
        assert notices[-1] in str(desk.requests[-1].request.messages[-1])
    desk.model_failed(model_failure("unreadable"))
    assert desk.ledger.reason is StopReason.ERROR


def test_the_declared_safe_answer_is_handed_out_and_marked() -> None:  # R3.14
    desk = Desk(policies(FREE, **NO_LIMITS), brief=replace(BRIEF, wanted='{"type": "object"}', safe='{"ok": false}'))
    desk.lease()
    for _ in range(2):
        desk.model_failed(model_failure("unreadable"))
        desk.waited()
    assert 'this JSON Schema: {"type": "object"}' in desk.texts(NodeKind.NOTICE)[-1]
    desk.model_failed(model_failure("unreadable"))
    assert desk.stands() is TaskState.COMPLETED
    assert (desk.ledger.last_move.sentence, desk.ledger.last_move.error_class) == ('{"ok": false}', "malformed_output")
    assert desk.texts(NodeKind.NOTICE)[-1] == '{"ok": false}'
    assert [event.data["dependency"] for event in desk.ledger.events if event.type == "degraded"] == ["agent/coder"]


def test_a_call_cut_at_the_token_limit_is_asked_for_in_smaller_parts() -> None:  # c20
    desk = started()
    desk.model_failed(model_failure("cut call"))
    desk.waited()
    assert desk.performed == []
    (notice,) = desk.texts(NodeKind.NOTICE)
    assert "cut off at its token limit" in notice
    assert "several calls" in notice


# --- shims ------------------------------------------------------------------------------------------------------------


def shimmed(text: str = FREE) -> Desk:
    """A run whose reader wants a list of paths and options."""
    schema = {
        "type": "object",
        "properties": {"paths": {"type": "array"}, "path": {"type": "string"}, "options": {"type": "object"}},
        "required": ["paths"],
    }
    tools = (ToolFacts(ToolSpec("look", "Looks.", schema), EFFECTS["look"]), *BRIEF.tools[1:])
    desk = Desk(policies(text, **NO_LIMITS), brief=replace(BRIEF, tools=tools))
    desk.lease()
    return desk


def test_a_json_string_is_read_where_the_schema_wants_a_list() -> None:  # R2.3
    desk = shimmed()
    desk.replied(calls(("look", {"paths": '["a", "b"]', "path": '["c"]'})))
    (act,) = desk.performed
    assert act.arguments == {"paths": ["a", "b"], "path": '["c"]'}
    desk.crash_and_lease()
    assert desk.performed[-1].arguments == act.arguments, "the restored run makes the same call"
    kept = next(node for node in desk.ledger.path if node.kind is NodeKind.ASSISTANT)
    assert kept.payload["blocks"][0]["arguments"]["paths"] == '["a", "b"]', "the model's own words stay"


def test_no_shim_guesses_meaning() -> None:  # R2.3
    desk = shimmed()
    desk.replied(calls(("look", {"paths": 42})))
    assert desk.performed[0].arguments == {"paths": 42}


def test_a_shim_is_of_the_model_that_answered() -> None:  # R2.3
    of_others = 'kind: tools\nshims: [{name: json-strings, for: "model/second", json_string_to: [array]}]\n'
    desk = shimmed(of_others + FREE.removeprefix("kind: tools\n"))
    desk.replied(calls(("look", {"paths": '["a"]'})))
    assert desk.performed[0].arguments == {"paths": '["a"]'}


def test_a_fault_of_ours_is_never_escalated_into_something_else() -> None:  # R1.2
    text = f"{TOOLS}---\nkind: escalation\nrules: [{{when: {{class: internal_error}}, do: [retry, needs_human]}}]\n"
    desk = started(text)
    desk.replied(calls(("look", {})))
    desk.failed(Failure("tool", "tool/look", "broken invariant", hint=ErrorClass.INTERNAL_ERROR))
    assert desk.ledger.reason is StopReason.INTERNAL_ERROR


@pytest.mark.parametrize("detector", ["alternate", "no_progress", "same_error"])
def test_each_detector_is_heard(detector: str) -> None:  # R3.10
    desk = started()
    if detector == "alternate":
        for _ in range(3):
            does(desk, ("look", {"a": 1}), gives="one")
            does(desk, ("look", {"a": 2}), gives="two")
    elif detector == "same_error":
        for number in range(3):
            desk.replied(calls(("note", {"n": number}), turn=f"{number}."))
            desk.failed(tool_failure("note", "failed"))
    else:
        for number in range(4):
            does(desk, ("look", {"a": number}), gives=f"{'xyzw'[number]}")
        for number in (0, 1, 2, 3, 1, 0, 3, 2):
            does(desk, ("look", {"a": number}), gives=f"{'xyzw'[number]}")
    assert desk.ledger.decisions[-1].decision.rule.rule == detector
    assert "times with the same result" in last_result(desk)
