"""Persons: approvals, outcomes that nobody knows, questions about the task, pausing and cancelling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harnessd.domain.effect import EffectState
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState, Verb
from harnessd.engine.protocol import (
    CallTool,
    CancelCalls,
    Cancelled,
    Finish,
    HandBack,
    PauseWithdrawn,
    RunState,
    StepDown,
)
from tests.engine.desk import Desk, unpaired
from tests.engine.scenery import FREE, TOOLS, calls, model_failure, policies, says, tool_failure

ASK_STOP = f"{TOOLS}ask: {{after: 1h, do: stop}}\n"
KEY_TO_PERSON = "---\nkind: retry\nmodel: {classes: {auth: {do: needs_human}}}\n"


def paying(text: str = FREE) -> Desk:
    """A run whose model has asked for one payment."""
    desk = Desk(policies(text))
    desk.lease()
    desk.replied(calls(("pay", {"to": "ACME", "amount": 100})))
    return desk


# --- approvals --------------------------------------------------------------------------------------------------------


def test_an_irreversible_call_waits_for_approval_without_a_worker() -> None:
    desk = paying(TOOLS)
    assert desk.last == HandBack("waiting")
    assert desk.performed == []
    (question,) = desk.ledger.asked
    assert question.id == "t1-n2.1"
    assert question.choices == ("allow", "deny")
    assert question.until == desk.now + 86_400
    assert question.data["arguments"] == '{"amount":100,"to":"ACME"}'
    assert (desk.ledger.last_move.verb, desk.ledger.last_move.waits_for) == (Verb.ASK, "approval")
    assert desk.ledger.until == question.until


def test_what_is_allowed_runs() -> None:
    desk = paying(TOOLS)
    desk.ledger.answer("t1-n2.1", "allow")
    desk.lease()
    assert [act.tool for act in desk.performed] == ["pay"]


def test_what_is_denied_is_told_to_the_model_with_the_persons_words() -> None:
    desk = paying(TOOLS)
    desk.ledger.answer("t1-n2.1", "deny", "Too dear.")
    desk.lease()
    assert desk.performed == []
    (result,) = desk.results()
    assert result.is_error
    assert "pay failed (permission_denied): a person did not allow it. They say: Too dear." in result.text
    decision = desk.ledger.decisions[-1].decision
    assert decision.evidence["classified_by"]["rule"] == "irreversible"
    assert desk.run.state is RunState.MODEL


def test_an_approval_that_nobody_answers_is_a_no() -> None:
    desk = paying(TOOLS)
    desk.now = desk.ledger.until or 0.0
    desk.return_to_work(Verb.ANSWER)
    assert desk.performed == []
    assert "nobody answered the question in time" in desk.results()[0].text


def test_an_approval_that_nobody_answers_ends_the_task_where_policy_says_so() -> None:  # R3.8 unanswered
    desk = paying(ASK_STOP)
    desk.now = desk.ledger.until or 0.0
    desk.return_to_work(Verb.ANSWER)
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.UNANSWERED
    assert unpaired(desk.ledger.path) == []


def test_a_task_resumed_before_the_answer_waits_on_with_the_same_question_and_time() -> None:
    desk = paying(TOOLS)
    until = desk.ledger.until
    desk.now += 3600
    desk.return_to_work()
    assert desk.last == HandBack("waiting")
    assert len(desk.ledger.questions) == 1
    assert desk.ledger.until == until


def test_a_question_waits_until_the_readers_beside_it_are_done() -> None:
    desk = Desk(policies(f"{TOOLS}permissions: [{{for: tool/look, when: {{arg.secret: true}}, do: ask}}]\n"))
    desk.lease()
    desk.replied(calls(("look", {}), ("look", {"secret": True}), ("look", {"a": 1})))
    assert [act.arguments for act in desk.performed] == [{}]
    desk.returned("ok")
    assert desk.last == HandBack("waiting")
    desk.ledger.answer(desk.ledger.asked[0].id, "allow")
    desk.lease()
    assert [act.arguments for act in desk.under_way.values() if isinstance(act, CallTool)] == [
        {"secret": True},
        {"a": 1},
    ]


def test_a_deny_of_the_set_in_force_holds_for_a_pinned_task_too() -> None:  # policies.md 1
    denies = policies(f"{TOOLS}permissions: [{{for: tool/pay, do: deny}}]\n").tools
    desk = Desk(replace(policies(FREE), denies=(denies,)))
    desk.lease()
    desk.replied(calls(("pay", {}), ("look", {})))
    desk.returned("seen")
    assert [act.tool for act in desk.performed] == ["look"]
    assert "Not allowed here." in desk.results()[0].text


# --- outcomes that nobody knows (R3.13) -------------------------------------------------------------------------------


def interrupted() -> Desk:
    """A payment was started, then came a crash."""
    desk = paying()
    desk.crash_and_lease()
    return desk


@pytest.mark.parametrize("answer", ["allow", "not-done"])
def test_a_deny_that_came_while_a_person_thought_wins_over_his_word(answer: str) -> None:
    desk = Desk(policies(TOOLS if answer == "allow" else FREE))
    desk.lease()
    desk.replied(calls(("pay", {"amount": 1})))
    if answer == "not-done":
        desk.failed(tool_failure("pay", "lost"))
    desk.ledger.answer(desk.ledger.asked[0].id, answer)
    before = len(desk.performed)
    desk.rules = policies(f"{TOOLS}permissions: [{{name: frozen, for: tool/pay, do: deny, say: Frozen.}}]\n")
    desk.lease()
    assert len(desk.performed) == before
    assert "Frozen." in desk.results()[-1].text


def test_an_irreversible_call_cut_off_by_a_crash_goes_to_a_person() -> None:  # R3.13, R6.1
    desk = interrupted()
    assert desk.last == HandBack("waiting")
    (question,) = desk.ledger.asked
    assert question.kind == "outcome"
    assert question.choices == ("done", "not-done", "stop")
    assert question.data["key"] == desk.performed[0].key
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
    assert len(desk.performed) == 1


def test_the_question_stands_over_any_number_of_restarts() -> None:  # R6.1
    desk = interrupted()
    for _ in range(2):
        desk.return_to_work()
        assert desk.last == HandBack("waiting")
    assert len(desk.ledger.questions) == 1
    assert len(desk.performed) == 1
    assert unpaired(desk.ledger.path) == ["c0"]


def test_done_is_believed_and_the_call_is_not_made_again() -> None:
    desk = interrupted()
    desk.ledger.answer(desk.ledger.asked[0].id, "done", "I see it in the bank.")
    desk.lease()
    (result,) = desk.results()
    assert not result.is_error
    assert "a person confirmed it" in result.text
    assert "I see it in the bank." in result.text
    assert len(desk.performed) == 1


def test_not_done_sends_it_again_with_the_same_key() -> None:
    desk = interrupted()
    desk.ledger.answer(desk.ledger.asked[0].id, "not-done")
    desk.lease()
    assert [act.key for act in desk.performed] == [desk.performed[0].key] * 2
    assert desk.ledger.counters.tool_calls == 1
    desk.crash_and_lease()
    assert desk.last == HandBack("waiting"), "cut off again, asked again"
    assert len(desk.ledger.questions) == 2


def test_an_unknown_outcome_is_not_called_not_started_when_the_budget_is_used_up() -> None:
    desk = Desk(policies(FREE, tool_calls=1))
    desk.lease()
    desk.replied(calls(("pay", {})))
    desk.crash_and_lease()
    assert desk.last == HandBack("waiting")
    assert desk.results() == []


def test_stop_ends_the_task_and_says_what_is_not_known() -> None:
    desk = interrupted()
    desk.ledger.answer(desk.ledger.asked[0].id, "stop")
    desk.lease()
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.ABORTED
    assert "outcome unknown" in desk.results()[0].text


def test_a_lost_answer_of_an_irreversible_call_goes_to_a_person() -> None:  # g03
    desk = paying()
    desk.failed(tool_failure("pay", "lost"))
    assert desk.last == HandBack("waiting")
    assert desk.ledger.asked[0].kind == "outcome"
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN


def test_a_cancel_meanwhile_leaves_the_outcome_unknown() -> None:
    desk = paying()
    desk.crash()
    desk.lease(Cancelled(desk.now, "eve"))
    assert isinstance(desk.last, Finish)
    assert "started, outcome unknown" in desk.results()[0].text


# --- questions about the task -----------------------------------------------------------------------------------------


def keyless() -> Desk:
    """A run whose service refuses the key; policy asks a person."""
    desk = Desk(policies(FREE + KEY_TO_PERSON))
    desk.lease()
    desk.model_failed(model_failure("key"))
    return desk


def test_a_failure_that_needs_a_person_waits_for_one() -> None:
    desk = keyless()
    assert desk.last == HandBack("waiting")
    (question,) = desk.ledger.asked
    assert (question.kind, question.call_id, question.choices) == ("question", None, ("go-on", "stop"))
    assert "invalid api key" in question.sentence


def test_go_on_tries_again_and_a_new_failure_is_a_new_question() -> None:
    desk = keyless()
    desk.ledger.answer(desk.ledger.asked[0].id, "go-on", "The key is new.")
    desk.lease()
    assert "The key is new." in desk.texts(NodeKind.NOTICE)[-1]
    desk.model_failed(model_failure("key"))
    assert desk.last == HandBack("waiting")
    assert len(desk.ledger.asked) == 1, "the task waits for an answer that can be given"
    assert len(desk.ledger.questions) == 2


def test_stop_ends_the_task_and_is_not_heard_again_on_resume() -> None:
    desk = keyless()
    desk.ledger.answer(desk.ledger.asked[0].id, "stop")
    desk.lease()
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.ABORTED
    desk.return_to_work()
    assert desk.run.state is RunState.MODEL


DENIED_TO_PERSON = "---\nkind: retry\ntool: {classes: {permission_denied: {do: needs_human}}}\n"


def test_a_tools_failure_that_needs_a_person_is_told_and_waits() -> None:  # R1.1
    desk = Desk(policies(FREE + DENIED_TO_PERSON))
    desk.lease()
    desk.replied(calls(("look", {}), ("look", {"a": 1}), ("note", {})))
    desk.failed(tool_failure("look", "denied"), "e2")
    assert desk.run.state is RunState.TOOLS, "the reader beside it comes to its end first"
    desk.returned("ok", "e3")
    assert desk.last == HandBack("waiting")
    (question,) = desk.ledger.asked
    assert (question.kind, question.sentence) == ("question", "tool/look: outside of the workspace")
    desk.ledger.answer(question.id, "go-on", "Use the other folder.")
    desk.lease()
    assert [act.tool for act in desk.under_way.values() if isinstance(act, CallTool)] == ["note"]
    desk.returned("ok")
    assert "Use the other folder." in desk.requests[-1].request.messages[-1].text
    assert unpaired(desk.ledger.path) == []


def test_a_refused_tool_asks_a_person_when_nothing_else_is_left_to_do() -> None:
    desk = Desk(policies(f"{TOOLS}permissions: [{{for: tool/pay, do: deny}}]\n" + DENIED_TO_PERSON))
    desk.lease()
    desk.replied(calls(("pay", {})))
    assert desk.last == HandBack("waiting")
    desk.ledger.answer(desk.ledger.asked[0].id, "stop")
    desk.lease()
    assert desk.ledger.reason is StopReason.ABORTED


# --- pausing, draining, cancelling ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("why", "state"), [("drain", TaskState.QUEUED), ("pause", TaskState.PAUSED)])
def test_stepping_down_waits_for_the_step_border(why: str, state: TaskState) -> None:
    desk = paying()
    desk.step_down(why)
    assert desk.run.state is RunState.TOOLS
    desk.returned("paid")
    assert isinstance(desk.last, HandBack)
    assert desk.stands() is state
    assert desk.results()[0].text == "paid"


def test_stepping_down_now_ends_what_is_under_way() -> None:
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls(("look", {}), ("look", {"a": 1})))
    commands = desk.step_down("pause", now=True)
    assert commands == (CancelCalls(("e2", "e3")),)
    desk.failed(tool_failure("look", "cancelled"), "e3")
    desk.returned("came in time", "e2")
    assert desk.stands() is TaskState.PAUSED
    assert [block.text.splitlines()[0] for block in desk.results()] == [
        "look was ended before it finished: a person cancelled it",
        "came in time",
    ]


def test_a_paused_backoff_spends_no_attempt_and_no_deadline() -> None:  # R6.1a
    desk = Desk(policies(FREE))
    desk.lease()
    desk.model_failed(model_failure("overloaded"))
    desk.step_down("pause")
    assert desk.stands() is TaskState.PAUSED
    desk.now += 86_400
    desk.return_to_work()
    assert desk.requests[-1].attempt == 2
    desk.model_failed(model_failure("overloaded"))
    assert desk.run.state is RunState.BACKOFF, "a day of pause is not part of the call's deadline"


@pytest.mark.parametrize(("asked", "over"), [("pause", False), ("drain", True)])
def test_a_pause_taken_back_before_it_was_obeyed_is_no_pause(asked: str, over: bool) -> None:
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls(("note", {})))
    desk.step_down(asked)
    desk.feed(PauseWithdrawn(desk.now))
    desk.returned("ok")
    assert (desk.run.state is RunState.OVER) is over, "only a person's pause can be taken back, never a drain"
    assert over or len(desk.requests) == 2


def test_a_pause_asked_before_the_first_step_is_obeyed() -> None:
    desk = Desk(policies(FREE))
    desk.lease(StepDown(desk.now, "pause"))
    assert desk.stands() is TaskState.PAUSED
    assert desk.requests == []


def test_a_cancel_ends_what_is_under_way_and_answers_every_call() -> None:  # R3.8 aborted, R2.2
    desk = Desk(policies(FREE))
    desk.lease()
    desk.replied(calls(("look", {}), ("look", {"a": 1}), ("note", {})))
    assert desk.cancel("eve") == (CancelCalls(("e2", "e3")),)
    desk.failed(tool_failure("look", "cancelled"), "e2")
    desk.returned("came in time", "e3")
    assert desk.last == Finish(StopReason.ABORTED, "Cancelled by eve.")
    assert [block.text.splitlines()[0] for block in desk.results()] == [
        "look was ended before it finished: a person cancelled it",
        "came in time",
        "note was not started: the task was cancelled by a person.",
    ]


def test_a_cancelled_call_that_had_begun_is_unknown_and_says_so() -> None:  # R3.13
    desk = paying()
    desk.cancel()
    desk.failed(tool_failure("pay", "cancelled", begun=True))
    assert "its outcome is unknown" in desk.results()[0].text
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN


def test_a_cancelled_task_can_be_resumed() -> None:
    desk = Desk(policies(FREE))
    desk.lease()
    desk.cancel("eve")
    desk.model_failed(model_failure("cancelled"))
    assert desk.stands() is TaskState.STOPPED
    desk.return_to_work()
    desk.replied(says("done"))
    assert desk.stands() is TaskState.COMPLETED
