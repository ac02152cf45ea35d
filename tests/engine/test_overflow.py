"""Overflow: the service says that the window is full, whatever our own count said (R4.3)."""

from __future__ import annotations

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, Usage
from harnessd.domain.task import StopReason, TaskState
from harnessd.engine.protocol import CallModel, ModelFacts
from tests.engine.scenery import FREE, model_failure
from tests.engine.windows import SMALL, Played, brief, overflow, played

TRIES = 3
OV08 = "input length and `max_tokens` exceed context limit: 9000 + 8000 > 16000, decrease input length or `max_tokens`"
OV04 = (
    "This model's maximum context length is 16000 tokens. However, you requested 17000 tokens "
    "(9000 in the messages, 8000 in the completion). Please reduce the length of the messages or completion."
)
OV13 = "inputs tokens + max_new_tokens must be <= 16000. Given: 9000 inputs tokens and 8000 max_new_tokens"


def under_way(run: Played) -> CallModel:
    """The model call under way."""
    act = run.desk.under_way[run.desk.call]
    assert isinstance(act, CallModel)
    return act


def shown(messages: tuple[Message, ...]) -> str:
    """All words of a request."""
    return str(messages)


def test_a_window_smaller_than_declared_is_found_out_and_kept() -> None:  # R4.3
    run = played(true_window=6_000)
    run.go(60)
    assert run.desk.stands() is TaskState.RUNNING, run.desk.ledger.last_move
    over = [size for size in run.sizes if size > 6_000]
    assert len(over) <= 4, "what was learnt is kept"
    assert run.desk.ledger.counters.context["windows"]["primary"] < 6_300


def test_it_is_learnt_for_good_over_restarts() -> None:  # R4.3, J17
    run = played(true_window=6_000)
    run.go(20)
    found = run.desk.ledger.counters.context["windows"]
    run.desk.crash_and_lease()
    run.go(20)
    assert run.desk.ledger.counters.context["windows"] == found


def test_the_same_bytes_are_never_sent_again_after_an_overflow() -> None:  # R4.3
    run = played()
    run.go(8)
    before = under_way(run).request
    run.desk.model_failed(overflow(20_000, 16_000))
    while not run.request_is_its_own():
        run.model()
    after = under_way(run).request
    assert shown(after.messages) != shown(before.messages)
    assert len(shown(after.messages)) < len(shown(before.messages))


def test_tries_are_bounded_and_end_with_the_biggest_parts() -> None:  # R4.3
    run = played()
    run.go(8)
    before = len(run.desk.requests)
    for _ in range(40):
        if run.desk.last is not None:
            break
        if run.request_is_its_own():
            run.desk.model_failed(overflow(20_000, 16_000))
        else:
            run.model()
    assert run.desk.ledger.reason is StopReason.CONTEXT_EXHAUSTED
    own = [act for act in run.desk.requests[before:] if act.request.tools]
    assert len(own) <= TRIES
    sentence = run.desk.ledger.last_move.sentence
    assert "20000 tokens > 16000" in sentence
    assert "Largest:" in sentence
    passed = run.desk.ledger.decisions[-1].decision.evidence["passed_over"]
    assert any("emergency tries are used" in why or "nothing more can be taken out" in why for why in passed)


def test_a_longer_window_takes_over_when_nothing_more_can_be_taken_out() -> None:  # R4.3, R3.4
    chain = "---\nkind: fallback\nby_class: {context_overflow: [model/long]}\n"
    models = {"long": ModelFacts("long", 1_000_000, 8_000)}
    run = played(FREE + SMALL + chain, of=brief(models=models, window=6_000, system="Obey this. " * 2_400))
    assert under_way(run).request.model == "long"


def test_a_summariser_that_is_down_does_not_stop_an_emergency() -> None:  # R4.3, R4.5
    run = played(true_window=6_000, summariser=lambda act: model_failure("overloaded", act.request.model))
    run.go(40)
    assert run.desk.stands() is TaskState.RUNNING
    assert {node.payload["facts"]["how"] for node in run.nodes()} <= {"trim", "squeeze"}


@pytest.mark.parametrize(
    "words",
    [
        OV08,
        OV04,
        OV13,
    ],
)
def test_the_answer_is_made_shorter_first_where_that_is_the_cause(words: str) -> None:  # R4.3
    run = played(of=brief(window=16_000, max_output=8_000))
    run.go(6)
    before = under_way(run).request
    size = run.desk.ledger.counters.context["now"][0]
    assert size < 9_000
    run.desk.model_failed(Failure("model", "model/primary", words, status=400))
    after = under_way(run).request
    assert after.messages == before.messages, "nothing of the history is taken out for it"
    assert after.max_tokens < before.max_tokens


def test_no_longer_answer_is_asked_for_than_the_window_holds() -> None:  # R4.1
    run = played(of=brief(window=8_000, max_output=6_000))
    run.go(20)
    for act in run.desk.requests:
        assert run.usage(act.request, 0).input_tokens + act.request.max_tokens < 8_400


def test_a_window_that_is_cut_in_silence_is_an_overflow() -> None:  # b24
    run = played()
    run.go(8)
    words = "the service counted 210000 tokens of input, more than the window of 16000"
    run.desk.model_failed(
        Failure("model", "model/primary", words, status=200, ended="complete", finish="stop", window_used=13.1)
    )
    decision = run.desk.ledger.decisions[-1].decision
    assert type(decision.remedy).__name__ == "Compact"
    while not run.request_is_its_own():
        run.model()
    assert len(run.nodes()) == 1
    assert run.desk.stands() is TaskState.RUNNING


def test_an_unexplained_refusal_near_the_end_of_the_window_is_worth_one_compaction() -> None:
    run = played()
    run.go(12)
    run.desk.model_failed(Failure("model", "model/primary", "Bad request", status=400, window_used=0.85))
    assert type(run.desk.ledger.decisions[-1].decision.remedy).__name__ == "Compact"


def test_kill_between_overflow_and_the_smaller_view() -> None:  # J17
    run = played()
    run.go(8)
    run.desk.model_failed(overflow(20_000, 16_000))
    assert not run.request_is_its_own()
    run.desk.crash_and_lease()
    assert not run.request_is_its_own()
    run.model()
    assert run.request_is_its_own()
    assert len(run.nodes()) == 1


class Silent(Played):
    """A service that cuts the front of what is beyond its window, counts what is left, and says nothing."""

    def usage(self, request: object, output: int) -> Usage:
        whole = super().usage(request, output)
        return Usage(min(whole.input_tokens, 5_000), output)


def test_a_service_that_cuts_in_silence_is_noticed() -> None:  # b24
    run = Silent(played().desk)
    run.go(40)
    assert run.desk.stands() is TaskState.RUNNING
    assert run.desk.ledger.counters.context["windows"] == {"primary": 5_000}
    (told,) = [event for event in run.told("budget_warning") if event["level"] == "cut"]
    assert "seems to cut what is beyond its window" in told["sentence"]
    assert max(run.sizes[-10:]) < 5_000, "nothing is cut any more"


def test_a_count_without_cached_tokens_is_no_cut() -> None:  # b24
    run = played()
    whole = Played.usage
    run.usage = lambda request, output: Usage(whole(run, request, output).input_tokens % 150 + 20, output)  # type: ignore[method-assign]
    run.go(30)
    assert "windows" not in run.desk.ledger.counters.context
