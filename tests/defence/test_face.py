"""The one escalation chain: lines in order, the arithmetic of retries and parks, the last word (R1, R3.2, R3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.config.load import builtin_policies, builtin_roots
from harnessd.config.strict_yaml import parse
from harnessd.defence import LINES, face
from harnessd.defence.endings import next_steps, stop_reason, stop_sentence
from harnessd.defence.incident import Episode, Incident, incident_of
from harnessd.defence.line1_self_heal import observation
from harnessd.domain.decision import Decision, NeedsHuman, Observe, Park, Pass, Remedy, Retry, Stop
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure, Owner, Source
from harnessd.domain.task import StopReason
from harnessd.policy import PolicySet, TaskFacts, TaskPolicies
from harnessd.policy.assembly.assemble import assemble

TASK = TaskFacts("t1", "coder")
SHIPPED = builtin_policies().at(3).for_task(TASK, {}, {}, {})


def under(text: str) -> TaskPolicies:
    """The shipped policies under an operator's."""
    assembled = assemble(parse(text.encode(), "policies/own.yaml").documents, builtin_roots())
    assert assembled.problems == ()
    return PolicySet.of(assembled.policies).for_task(TASK, {}, {}, {})


def model(**about: Any) -> Failure:
    """A failed attempt of a model call."""
    return Failure("model", "model/primary", about.pop("message", "words"), **about)


def tool(hint: ErrorClass, **about: Any) -> Failure:
    """A failed call of a tool."""
    return Failure("tool", "tool/pay", about.pop("message", "words"), hint=hint, **about)


def met(failure: Failure, rules: TaskPolicies = SHIPPED, *, tries: int = 1, **episode: Any) -> Incident:
    """The incident of a failure at this try."""
    return incident_of(failure, Episode("t1", tries, **episode), rules)


def remedy(failure: Failure, rules: TaskPolicies = SHIPPED, *, tries: int = 1, **episode: Any) -> Remedy:
    """What is done about it."""
    return face(met(failure, rules, tries=tries, **episode)).remedy


FULL = model(status=529, message="Overloaded")


# --- retries ----------------------------------------------------------------------------------------------------------


def test_waits_double_up_to_the_cap_and_jitter_goes_on_top() -> None:  # R3.2
    plain = [remedy(FULL, tries=tries) for tries in range(1, 11)]
    waits = (0.5, 1, 2, 4, 8, 16, 32, 32, 32, 32)
    assert plain == [Retry(wait, tries + 1, 11) for tries, wait in enumerate(waits, start=1)]
    high = remedy(FULL, tries=7, luck=0.9999)
    assert isinstance(high, Retry)
    assert high.after_s == pytest.approx(40, abs=0.01)


@given(tries=st.integers(1, 10), luck=st.floats(0, 1, exclude_max=True), hint=st.floats(0, 600))
def test_a_hint_is_a_floor_and_no_wait_is_shorter(tries: int, luck: float, hint: float) -> None:  # R3.2
    found = remedy(replace(FULL, retry_after_s=hint), tries=tries, luck=luck)
    assert isinstance(found, Retry)
    own = min(0.5 * 2 ** (tries - 1), 32.0)
    assert max(own, hint) <= found.after_s <= max(own * 1.25, hint * 1.1)


def test_a_hint_beyond_the_most_is_parked_for_exactly_that_time() -> None:
    assert remedy(replace(FULL, retry_after_s=600.0)) == Retry(600.0, 2, 11)
    assert remedy(replace(FULL, retry_after_s=601.0)) == Park(601.0)
    decision = face(met(replace(FULL, retry_after_s=601.0)))
    assert "the service asks for 601 s" in decision.evidence["passed_over"][0]


def test_a_wait_that_would_pass_the_deadline_is_not_begun() -> None:  # R3.2
    assert isinstance(remedy(FULL, elapsed_s=1799.0), Retry)
    assert remedy(FULL, elapsed_s=1799.9) == Park(60.0)


@pytest.mark.parametrize(
    ("parked_s", "luck", "for_s"),
    [(0, 0, 60), (0, 1, 75), (60, 0, 60), (120, 0, 120), (240, 0, 240), (500, 0, 300), (43_190, 0, 10)],
)
def test_a_service_that_is_down_is_asked_every_one_to_five_minutes(parked_s: float, luck: float, for_s: float) -> None:
    assert remedy(FULL, tries=11, parked_s=parked_s, luck=luck) == Park(for_s)  # R3.2a


def test_a_park_ends_when_its_most_is_used_up() -> None:  # R3.2a
    decision = face(met(FULL, tries=99, parked_s=43_200))
    assert decision.remedy == Stop(StopReason.SERVICE_UNAVAILABLE)
    assert [handed_up.line for handed_up in decision.tried] == ["line2", "line3", "line4"]
    assert "park.max of 43200 s is used up" in decision.tried[0].why
    assert "all 10 retries are used" in decision.tried[0].why


def test_a_hint_longer_than_what_is_left_of_parking_is_not_slept() -> None:
    long = replace(FULL, retry_after_s=50_000.0)
    assert remedy(long) == Stop(StopReason.SERVICE_UNAVAILABLE)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (model(status=429, code="insufficient_quota"), Park(60.0)),
        (model(status=401), Park(60.0)),
        (model(status=400, code="context_length_exceeded"), Stop(StopReason.CONTEXT_EXHAUSTED)),
        (model(status=400), Stop(StopReason.ERROR)),
        (model(finish="content_filter", ended="complete"), Stop(StopReason.REFUSED)),
        (model(message="Request too large for gpt on tokens per min"), Stop(StopReason.CONTEXT_EXHAUSTED)),
    ],
)
def test_what_is_never_sent_again_unchanged(failure: Failure, expected: Remedy) -> None:  # R3.3
    assert remedy(failure) == expected


def test_nothing_is_replayed_once_output_was_passed_on() -> None:  # R3.3
    assert remedy(replace(FULL, output_passed=True)) == Park(60.0)


def test_malformed_output_is_asked_again_twice_then_stops() -> None:  # R3.14
    failure = model(hint=ErrorClass.MALFORMED_OUTPUT)
    found = [remedy(failure, tries=tries) for tries in (1, 2, 3)]
    assert found == [Retry(0.0, 2, 3), Retry(0.0, 3, 3), Stop(StopReason.ERROR)]


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error_class", "effect_class", "begun", "retried"),
    [
        (ErrorClass.TIMEOUT, EffectClass.READ_ONLY, True, True),
        (ErrorClass.TIMEOUT, EffectClass.IDEMPOTENT, True, True),
        (ErrorClass.TIMEOUT, EffectClass.REVERSIBLE, True, False),
        (ErrorClass.TIMEOUT, EffectClass.IRREVERSIBLE, True, False),
        (ErrorClass.UNAVAILABLE, EffectClass.IRREVERSIBLE, False, True),
        (ErrorClass.RATE_LIMITED, EffectClass.REVERSIBLE, False, True),
        (ErrorClass.OUTCOME_UNKNOWN, EffectClass.IDEMPOTENT, True, True),
        # An unknown outcome means that it may have begun, whether or not the tool says so.
        (ErrorClass.OUTCOME_UNKNOWN, EffectClass.REVERSIBLE, False, False),
        (ErrorClass.EXECUTION_FAILED, EffectClass.READ_ONLY, False, False),
        (ErrorClass.INVALID_ARGUMENTS, EffectClass.READ_ONLY, False, False),
    ],
)
def test_a_tool_is_called_again_only_where_nothing_can_happen_twice(  # R3.13
    error_class: ErrorClass, effect_class: EffectClass, begun: bool, retried: bool
) -> None:
    found = remedy(tool(error_class, effect_begun=begun), effect_class=effect_class)
    assert found == (Retry(0.5, 2, 3) if retried else Observe())


def test_a_tool_whose_tries_are_used_up_is_told_to_the_model() -> None:
    decision = face(met(tool(ErrorClass.UNAVAILABLE), tries=3, effect_class=EffectClass.READ_ONLY))
    assert decision.remedy == Observe()
    assert "retry: all 2 retries are used" in decision.evidence["passed_over"]


def test_a_tool_is_never_parked() -> None:
    rules = under("kind: retry\ntool: {classes: {unavailable: {do: park}}}\n")
    assert remedy(tool(ErrorClass.UNAVAILABLE), rules) == Stop(StopReason.ERROR)


# --- the order of the lines -------------------------------------------------------------------------------------------


def test_each_class_starts_at_its_owners_line() -> None:  # R1.1
    observed = face(met(tool(ErrorClass.EXECUTION_FAILED)))
    assert (observed.remedy, observed.tried) == (Observe(), ())
    handed_up = face(met(model(hint=ErrorClass.MALFORMED_OUTPUT)))
    assert [passed.line for passed in handed_up.tried] == ["line1"]
    assert "no result to show" in handed_up.tried[0].why


def test_a_line_that_cannot_act_says_what_it_tried() -> None:  # R1.1
    for line in LINES:
        answer: Decision | Pass = line(
            met(FULL, under("kind: retry\nmodel: {classes: {overloaded: {do: fallback}}}\n"))
        )
        assert isinstance(answer, Pass)
        assert answer.why


@pytest.mark.parametrize("do", ["retry", "observe", "park", "needs_human"])
@pytest.mark.parametrize("source", ["model", "tool"])
def test_the_operators_errors_stop_and_no_rule_changes_that(source: str, do: str) -> None:  # R1.2
    name = "server_error" if source == "model" else "execution_failed"
    rules = under(f"kind: retry\n{source}: {{classes: {{{name}: {{owner: operator, do: {do}}}}}}}\n")
    failure = model(status=500) if source == "model" else tool(ErrorClass.EXECUTION_FAILED)
    decision = face(met(failure, rules))
    assert isinstance(decision.remedy, Stop)
    assert decision.tried == ()


@pytest.mark.parametrize("error_class", [ErrorClass.INTERNAL_ERROR, ErrorClass.STATE_CORRUPT])
def test_a_program_fault_never_becomes_a_result(error_class: ErrorClass) -> None:  # R1.2
    sources: tuple[Source, ...] = ("agent", "tool")
    for source in sources:
        failure = Failure(source, "tool/pay", "broken", hint=error_class)
        incident = met(failure)
        assert incident.owner is Owner.OPERATOR
        assert face(incident).remedy == Stop(StopReason.INTERNAL_ERROR)


def test_a_person_is_asked_where_the_ladder_says_so() -> None:
    rules = under("kind: retry\nmodel: {classes: {auth: {do: [needs_human, stop]}}}\n")
    decision = face(met(model(status=401, message="invalid api key"), rules))
    assert decision.remedy == NeedsHuman("model/primary: invalid api key")
    assert decision.alternatives == ("then stop",)
    assert (decision.rule.file, decision.rule.line, decision.rule.rule) == (
        "policies/own.yaml",
        2,
        "model.classes.auth",
    )


def test_the_decision_keeps_the_evidence() -> None:  # R1.3
    decision = face(met(model(status=529, message="Overloaded", request_id="req_1"), tries=2, elapsed_s=1.5))
    assert decision.evidence == {
        "class": "overloaded",
        "dependency": "model/primary",
        "message": "Overloaded",
        "status": 529,
        "request_id": "req_1",
        "tries": 2,
        "elapsed_s": 1.5,
        "classified_by": decision.evidence["classified_by"],
    }
    assert decision.evidence["classified_by"]["rule"] == "overloaded"


@given(
    tries=st.integers(1, 30),
    elapsed=st.floats(0, 1e5),
    parked=st.floats(0, 1e5),
    hint=st.none() | st.floats(0, 1e6),
    luck=st.floats(0, 1, exclude_max=True),
    status=st.sampled_from([400, 401, 402, 404, 408, 413, 429, 500, 503, 529]),
)
def test_every_failure_of_a_model_is_decided_within_bounds(  # R1.1
    tries: int, elapsed: float, parked: float, hint: float | None, luck: float, status: int
) -> None:
    failure = model(status=status, retry_after_s=hint)
    found = remedy(failure, tries=tries, elapsed_s=elapsed, parked_s=parked, luck=luck)
    match found:
        case Retry(after_s, attempt, of):
            assert 0 <= after_s <= 1800
            assert attempt == tries + 1 <= of
        case Park(for_s):
            assert 0 < for_s <= 43_200 - parked
            assert for_s >= (hint or 0)
        case Stop():
            pass
        case _:
            pytest.fail(f"{found} for a model call")


# --- endings and words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_class", ErrorClass)
def test_every_class_ends_as_something(error_class: ErrorClass) -> None:  # R3.8
    sources: tuple[Source, ...] = ("model", "tool", "agent")
    for source in sources:
        reason = stop_reason(source, error_class)
        assert reason not in (StopReason.COMPLETED, StopReason.ABORTED)
        sentence = stop_sentence(reason, model(message=""), error_class)
        assert sentence.endswith(".")
        assert "None" not in sentence


@pytest.mark.parametrize("reason", StopReason)
def test_every_end_has_next_steps(reason: StopReason) -> None:  # R3.8
    steps = next_steps("t1", reason)
    assert steps
    assert all(step[0] == "harnessctl" and "t1" in step for step in steps)


OBSERVED: tuple[tuple[ErrorClass, bool], ...] = (
    (ErrorClass.INVALID_ARGUMENTS, False),
    (ErrorClass.UNKNOWN_TOOL, False),
    (ErrorClass.PERMISSION_DENIED, False),
    (ErrorClass.EXECUTION_FAILED, False),
    (ErrorClass.TIMEOUT, False),
    (ErrorClass.UNAVAILABLE, True),
    (ErrorClass.RATE_LIMITED, True),
    (ErrorClass.OUTCOME_UNKNOWN, False),
)


@pytest.mark.parametrize(("error_class", "again"), OBSERVED)
def test_the_model_is_told_what_failed_why_and_what_next(error_class: ErrorClass, again: bool) -> None:  # R2.1
    first, second, third = observation("pay", tool(error_class, message="refused by bank"), error_class).splitlines()
    assert first == f"pay failed ({error_class.value}): refused by bank"
    assert second == f"Retrying the same call makes sense: {'yes' if again else 'no'}."
    assert third.startswith("Next: ")


def test_a_wait_is_named_in_seconds() -> None:  # R2.1
    failure = tool(ErrorClass.RATE_LIMITED, message="Rate limit exceeded", retry_after_s=60.0)
    assert observation("pay", failure, ErrorClass.RATE_LIMITED).endswith("Next: Retry after 60 seconds.")


def test_the_tools_own_advice_comes_first_and_its_output_is_kept() -> None:  # R2.1
    failure = tool(ErrorClass.TIMEOUT, advice="Ask for more time.", output="half", effect_begun=True)
    lines = observation("bash", failure, ErrorClass.TIMEOUT, begun=True).splitlines()
    assert lines[1:] == [
        "It had begun: what it did until then is not known.",
        "Retrying the same call makes sense: no.",
        "Next: Ask for more time.",
        "Output until then:",
        "half",
    ]


NO_WORDS: tuple[Callable[[], str], ...] = (
    lambda: observation("pay", tool(ErrorClass.UNAVAILABLE, message=" "), ErrorClass.UNAVAILABLE),
    lambda: stop_sentence(StopReason.ERROR, model(message="", status=500), ErrorClass.SERVER_ERROR),
)


@pytest.mark.parametrize("said", NO_WORDS)
def test_a_failure_without_words_still_gets_a_sentence(said: Callable[[], str]) -> None:
    assert "no reason was given" in said() or "no words came with it (500)" in said()
