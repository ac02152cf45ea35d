"""How a task ends: each stop reason, its sentence, its next steps; waits and parks on the way (R3.2, R3.8)."""

from __future__ import annotations

import pytest

from harnessd.domain.record import RecordDecision
from harnessd.domain.task import StopReason, TaskState, Verb
from harnessd.engine.protocol import CancelCalls, Finish, HandBack, RunState
from tests.engine.desk import Desk, unpaired
from tests.engine.scenery import FREE, TOOLS, calls, model_failure, policies, says, tool_failure

INTERACTIVE = "---\nkind: retry\nmodel: {retries: 3, classes: {overloaded: {do: [retry, stop]}}}\n"
STRICT = "---\nkind: retry\ntool: {classes: {execution_failed: {do: stop}}}\n"
OWN_BUG = "---\nkind: retry\ntool: {classes: {execution_failed: {do: observe, owner: operator}}}\n"


def at_work(text: str = FREE, **budget: float) -> Desk:
    """A run that waits for its first answer."""
    desk = Desk(policies(text, **budget))
    desk.lease()
    return desk


def fail_for_good(desk: Desk, kind: str) -> None:
    """The service fails in this way until the task is over."""
    for _ in range(400):
        if isinstance(desk.last, Finish):
            return
        if desk.last is not None:
            desk.now = max(desk.now, desk.ledger.until or desk.now)
            desk.return_to_work(Verb.WAKE)
        elif desk.run.state is RunState.BACKOFF:
            desk.waited()
        else:
            desk.model_failed(model_failure(kind))
    pytest.fail("it never ended")


@pytest.mark.parametrize(
    ("kind", "reason", "words"),
    [
        ("overloaded", StopReason.SERVICE_UNAVAILABLE, "model/primary could not be reached: Overloaded."),
        ("key", StopReason.SERVICE_UNAVAILABLE, "invalid api key"),
        ("quota", StopReason.QUOTA_EXHAUSTED, "The quota of model/primary is used up"),
        ("refused", StopReason.REFUSED, "model/primary refused to answer"),
        ("overflow", StopReason.CONTEXT_EXHAUSTED, "no longer fits the window"),
        ("wrong", StopReason.ERROR, "(invalid_request)"),
        ("unreadable", StopReason.ERROR, "(malformed_output)"),
    ],
)
def test_a_service_that_fails_for_good_ends_the_task(kind: str, reason: StopReason, words: str) -> None:  # R3.8
    desk = at_work()
    fail_for_good(desk, kind)
    move = desk.ledger.last_move
    assert (move.verb, move.reason) == (Verb.STOP, reason)
    assert words in move.sentence
    assert move.error_class
    assert ("harnessctl", "resume", "t1") in [step[:3] for step in move.next_steps]
    assert desk.stands() is TaskState.STOPPED


def test_completed_aborted_and_their_next_steps() -> None:  # R3.8
    desk = at_work()
    desk.replied(says("All is done.\nSee the file."))
    assert desk.last == Finish(StopReason.COMPLETED, "All is done.")
    assert desk.ledger.last_move.next_steps[0] == ("harnessctl", "show", "t1")
    desk = at_work()
    desk.model_failed(model_failure("overloaded"))
    desk.cancel("eve")
    assert desk.last == Finish(StopReason.ABORTED, "Cancelled by eve.")
    assert desk.ledger.last_move.error_class is None, "a person's wish is no fault"


def test_a_tool_failure_that_policy_stops_at_ends_the_task_with_its_result() -> None:  # R3.8 error, R2.2
    desk = at_work(FREE + STRICT)
    desk.replied(calls(("look", {}), ("look", {"a": 1}), ("note", {})))
    assert desk.failed(tool_failure("look", "failed"), "e2")[-1] == CancelCalls(("e3",))
    desk.failed(tool_failure("look", "cancelled"), "e3")
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.ERROR
    first, second, third = desk.results()
    assert first.text.startswith("look failed (execution_failed): no such file")
    assert second.text.startswith("look was ended")
    assert third.text == "note was not started: the task was stopped."
    assert unpaired(desk.ledger.path) == []


def test_what_belongs_to_the_operator_stops_whatever_the_ladder_says() -> None:  # R1.2
    desk = at_work(FREE + OWN_BUG)
    desk.replied(calls(("look", {})))
    desk.failed(tool_failure("look", "failed"))
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.ERROR


def test_a_call_that_was_tried_is_not_called_not_started() -> None:  # R4.7
    desk = at_work()
    desk.replied(calls(("look", {})))
    desk.failed(tool_failure("look", "down"))
    assert desk.run.state is RunState.BACKOFF
    desk.cancel()
    assert desk.results()[0].text == "look failed and was not tried again: the task was cancelled by a person."


# --- waits ------------------------------------------------------------------------------------------------------------


def test_retries_then_parks_then_the_end() -> None:  # R3.2, R3.2a
    desk = at_work()
    waits, parks = [], []
    while not isinstance(desk.last, Finish):
        if desk.run.state is RunState.MODEL:
            desk.model_failed(model_failure("overloaded"))
        elif desk.run.state is RunState.BACKOFF:
            assert desk.wait is not None
            waits.append(desk.wait.until - desk.now)
            desk.waited()
        else:
            assert desk.stands() is TaskState.PARKED
            parks.append((desk.ledger.until or 0.0) - desk.now)
            desk.now = desk.ledger.until or 0.0
            desk.return_to_work(Verb.WAKE)
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 32, 32, 32]
    assert parks[:4] == [60, 60, 120, 240]
    assert max(parks) == 300
    assert sum(parks) == pytest.approx(12 * 3600)
    assert len(desk.requests) == 11 + len(parks)
    assert desk.ledger.counters.turns == 0, "an outage spends no turns"
    assert desk.last.reason is StopReason.SERVICE_UNAVAILABLE


def test_a_new_episode_begins_after_an_answer() -> None:
    desk = at_work()
    for _ in range(2):
        desk.model_failed(model_failure("overloaded"))
        desk.waited()
    desk.replied(calls(("look", {})))
    desk.returned("ok")
    assert desk.requests[-1].attempt == 1
    desk.model_failed(model_failure("overloaded"))
    assert desk.wait is not None
    assert desk.wait.until - desk.now == 0.5


def test_a_new_episode_begins_after_a_resume() -> None:  # what was wrong may have been put right
    desk = at_work(FREE + INTERACTIVE)
    fail_for_good(desk, "overloaded")
    assert len(desk.requests) == 4
    desk.return_to_work()
    assert desk.requests[-1].attempt == 1
    desk.model_failed(model_failure("overloaded"))
    assert desk.run.state is RunState.BACKOFF


def test_a_hint_longer_than_the_most_is_parked_for_that_time() -> None:  # R3.2
    desk = at_work()
    desk.model_failed(model_failure("wait an hour"))
    assert desk.last == HandBack("parked")
    assert desk.ledger.until == desk.now + 3600
    assert "rate_limited" in desk.ledger.last_move.why


def test_every_failure_leaves_a_decision_with_its_line() -> None:  # R1.3
    desk = at_work()
    desk.model_failed(model_failure("overloaded"))
    (record,) = desk.ledger.decisions
    assert isinstance(record, RecordDecision)
    decision = record.decision
    assert (decision.rule.kind, decision.rule.file, decision.rule.revision) == ("retry", "builtin retry.yaml", 7)
    assert decision.rule.line > 0
    assert decision.evidence["classified_by"]["rule"].startswith("overloaded")
    assert decision.evidence["status"] == 529
    assert decision.alternatives == ("then fallback", "then park")


def test_the_policies_of_the_next_decision_count() -> None:  # R7.2
    desk = at_work()
    desk.model_failed(model_failure("overloaded"))
    desk.rules = policies(FREE + INTERACTIVE)
    for _ in range(3):
        desk.waited()
        desk.model_failed(model_failure("overloaded"))
    assert isinstance(desk.last, Finish)


def test_a_parked_task_keeps_the_words_of_persons() -> None:
    desk = at_work()
    desk.hear("Mind the gap.")
    desk.model_failed(model_failure("key"))
    assert desk.last == HandBack("parked")
    desk.return_to_work()
    desk.replied(says("done"))
    assert desk.stands() is TaskState.COMPLETED
    assert list(desk.ledger.delivered) == [1]


def test_the_decision_on_a_budget_names_its_line() -> None:  # R1.3, R3.9
    desk = at_work(TOOLS + "---\nkind: budget\nlimits: {turns: 1}\n")
    desk.replied(calls(("look", {})))
    rule = desk.ledger.decisions[-1].decision.rule
    assert (rule.kind, rule.rule, rule.file, rule.line) == ("budget", "limits.turns", "policies/own.yaml", 5)
