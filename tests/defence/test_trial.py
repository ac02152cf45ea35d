"""Trial: the real rules on virtual time: ladders, chains, parks, tallies, loops, breakers, questions (R7.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessd.defence.trial import Answer, Chosen, Step, Trial
from harnessd.defence.trial.expected import exact_duration
from harnessd.policy.language.facts import CLASSES, MODEL_CLASSES, TOOL_CLASSES
from tests.policy.written import policies

CHAIN = "kind: fallback\nchains: {model/primary: [model/second, model/local], tool/web_search: [tool/local_kb]}\n"
PROBE = """
kind: tools
rules:
  - for: tool/web_search
    probe: {tool: tool/local_kb, done: {result.status: paid}, not_done: {result.count: 0}}
"""


def trial(*files: str, named: dict[str, str] | None = None, **whose: Any) -> Trial:
    return Trial(policies(*files), Chosen(named or {}, **whose))


def fact(**facts: Any) -> Step:
    """A step of plain facts."""
    return Step(facts)


def busy(times: int = 1, model: str = "model/primary", **more: Any) -> Step:
    return Step({"model": model, "status": 529.0}, times=times, **more)


def did(answer: Answer) -> tuple[str, str, float]:
    return (answer.do, answer.to, answer.waited_s)


# --- ladders and chains -----------------------------------------------------------------------------------------------


def test_a_link_has_its_tries_then_the_next_takes_over_and_the_last_has_what_is_left() -> None:
    # R3.4
    at = trial(CHAIN)
    assert did(at.take(busy(2))) == ("retry", "", 1.0)
    assert did(at.take(busy())) == ("fallback", "model/second", 0.0)
    assert did(at.take(busy(1, "model/second"))) == ("retry", "", 0.5)
    assert did(at.take(busy(2, "model/second"))) == ("fallback", "model/local", 0.0)
    assert did(at.take(busy(4, "model/local"))) == ("retry", "", 4.0)
    answer = at.take(busy(1, "model/local"))
    assert (answer.do, answer.waited_s) == ("park", 60.0)
    assert answer.passed[0] == "retry: all 10 retries are used"


def test_the_chain_starts_where_the_task_is_at_home_also_in_the_next_call() -> None:
    at = trial(CHAIN)
    at.take(Step({"model": "model/primary", "status": 402.0}))
    at.take(fact(model="model/second"))
    assert at.take(Step({"model": "model/second", "status": 402.0})).to == "model/local"


def test_another_agent_takes_the_task_where_the_models_are_down() -> None:  # R3.4
    at = trial(
        "kind: fallback\nchains: {agent/builder: [agent/nightly], model/primary: [model/second]}\n", agent="builder"
    )
    assert did(at.take(busy(3))) == ("fallback", "model/second", 0.0)
    assert did(at.take(busy(3, "model/second"))) == ("fallback", "agent/nightly", 0.0)
    assert did(at.take(busy(1, "model/local"))) == ("retry", "", 0.5)
    refused = trial("kind: fallback\nchains: {agent/builder: [agent/nightly]}\n", agent="builder")
    assert refused.take(Step({"model": "model/primary", "finish": "refusal"})).do == "stop"


def test_a_class_may_have_a_chain_of_its_own() -> None:
    at = trial("kind: fallback\nby_class: {refused: [model/local]}\nchains: {model/primary: [model/second]}\n")
    assert did(at.take(fact(model="model/primary", finish="refusal"))) == ("fallback", "model/local", 0.0)
    stopped = at.take(fact(model="model/local", finish="refusal"))
    assert (stopped.do, stopped.reason) == ("stop", "refused")


def test_a_link_whose_breaker_is_open_is_passed_over() -> None:
    at = trial(CHAIN)
    at.take(busy(10, "model/second"))
    answer = at.take(Step({"model": "model/primary", "status": 402.0}))
    assert answer.to == "model/local"


def test_an_open_breaker_hands_the_call_on() -> None:
    at = trial(CHAIN)
    at.take(busy(10))
    at.take(fact(model="model/local"))
    answer = at.take(fact(model="model/primary"))
    assert did(answer) == ("fallback", "model/second", 0.0)
    assert "is open" in answer.says


def test_an_open_breaker_is_met_by_the_tasks_own_ladder() -> None:
    at = trial(named={"retry": "interactive"})
    at.take(busy(10))
    answer = at.take(fact(model="model/primary"))
    assert (answer.do, answer.reason) == ("stop", "service_unavailable")
    assert answer.passed[0] == "retry: the breaker of model/primary is open"


def test_the_chain_of_a_tool() -> None:
    at = trial(CHAIN)
    step = fact(**{"tool": "tool/web_search", "class": "unavailable"})
    assert [did(at.take(step))[:2] for _ in range(3)] == [("retry", ""), ("retry", ""), ("fallback", "tool/local_kb")]
    assert at.take(fact(**{"tool": "tool/local_kb", "class": "unavailable"})).do == "observe"


def test_an_unknown_outcome_is_asked_for_where_a_probe_is_declared() -> None:
    # R3.13
    at = trial(PROBE)
    step = fact(**{"tool": "tool/web_search", "class": "outcome_unknown"})
    assert did(at.take(step)) == ("probe", "tool/local_kb", 0.0)
    assert at.take(step).do == "needs_human"


def test_a_step_named_twice_acts_twice_and_after_the_last_the_task_stops() -> None:
    at = trial("kind: retry\nmodel: {classes: {invalid_request: {do: [repair, repair]}}}\n")
    step = Step({"model": "model/primary", "status": 400.0})
    assert [at.take(step).do for _ in range(3)] == ["repair", "repair", "stop"]


def test_an_escalation_rule_goes_before_the_ladder_and_its_tally_starts_again() -> None:
    rule = "kind: escalation\nrules: [{name: twice, when: {class: auth, consecutive: 2}, do: [stop]}]\n"
    at = trial(rule)
    dead = Step({"model": "model/primary", "status": 401.0})
    answers = [at.take(dead) for _ in range(3)]
    assert [(answer.do, answer.rules[0].rule) for answer in answers] == [
        ("park", "model.classes.auth"),
        ("stop", "twice"),
        ("park", "model.classes.auth"),
    ]


def test_who_asks_counts_for_escalation() -> None:
    rule = "kind: escalation\nrules: [{name: web, when: {label.team: web, class: refused}, do: needs_human}]\n"
    refused = fact(model="model/primary", finish="refusal")
    assert trial(rule, labels={"team": "web"}).take(refused).do == "needs_human"
    assert trial(rule, labels={"team": "ops"}).take(refused).do == "stop"


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_wait_is_waited_out_before_the_next_step() -> None:
    # 31 s under one deadline: the waits count, though no step says `after`.
    at = trial("kind: retry\nmodel: {deadline: 31s}\n")
    assert [at.take(busy()).do for _ in range(6)] == ["retry"] * 5 + ["park"]


def test_parked_time_is_not_the_calls() -> None:
    at = trial("kind: retry\nmodel: {deadline: 10s}\n")
    assert did(at.take(Step({"model": "model/primary", "status": 401.0}))) == ("park", "", 60.0)
    assert at.take(busy()).do == "retry"


def test_a_date_in_retry_after_counts_from_the_tests_clock() -> None:
    at = trial()
    step = Step(
        {"model": "model/primary", "status": 429.0, "header.retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"},
        after_s=15.0,
    )
    assert at.take(step).waited_s == 45.0


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (0.5, "500ms"), (7.5, "7s500ms"), (3600, "1h"), (90061.25, "1d1h1m1s250ms"), (0.9999, "1s")],
)
def test_waits_are_shown_as_tests_write_them(seconds: float, written: str) -> None:
    assert exact_duration(seconds) == written


# --- tools, loops, people ---------------------------------------------------------------------------------------------


def test_calls_of_a_tool_are_counted() -> None:
    at = trial("kind: tools\nrules: [{for: tool/bash, max_calls: 2}]\n")
    calls = [at.take(fact(tool="tool/bash", command=f"echo {n}")) for n in range(3)]
    assert [call.do for call in calls] == ["allow", "allow", "deny"]
    assert calls[-1].says == "all 2 calls of it are used. Go on without it."


def test_a_denial_speaks_to_the_model() -> None:
    deny = "kind: tools\npermissions: [{name: no-net, for: tool/http_request, do: deny, say: 'No {tool}: {rule}.'}]\n"
    answer = trial(deny).take(fact(tool="tool/http_request"))
    assert (answer.do, answer.says, answer.error_class) == (
        "deny",
        "No tool/http_request: no-net.",
        "permission_denied",
    )


def test_a_stated_effect_stands() -> None:
    assert trial().take(fact(tool="mcp/crm/find", effect="read_only")).do == "allow"
    assert trial().take(fact(tool="mcp/crm/find")).do == "ask"


def test_a_tool_that_polls_is_no_loop() -> None:
    at = trial("kind: tools\nrules: [{for: tool/bash, polling: true}]\n")
    assert at.take(Step({"tool": "tool/bash", "command": "./status"}, result="same", times=9)).do == "allow"


def test_progress_ends_the_ladder_of_loops_and_a_nudge_does_not() -> None:
    # R3.10
    at = trial()
    same = Step({"tool": "tool/bash", "command": "make"}, result="fails", times=3)
    assert at.take(same).do == "nudge"
    assert at.take(same).do == "rollback"
    at.take(Step({"tool": "tool/bash", "command": "ls"}, result="a b c"))
    assert at.take(same).do == "nudge"


def test_a_question_is_open_until_something_goes_on() -> None:
    at = trial()
    at.take(fact(tool="mcp/pay/charge"))
    assert at.take(Step(after_s=86_399.0)).do == "ask"
    at.take(fact(tool="tool/read_file", path="a"))
    assert at.take(Step(after_s=86_400.0)).do == "none"


def test_an_unanswered_question_may_be_parked() -> None:
    at = trial("kind: escalation\nask: {after: 1h, do: park}\n")
    at.take(fact(**{"tool": "mcp/pay/charge", "class": "outcome_unknown"}))
    answer = at.take(Step(after_s=3600.0))
    assert (answer.do, answer.reason) == ("park", None)


# --- who gets which policy --------------------------------------------------------------------------------------------

STRICT = "kind: retry\nname: strict\nmodel: {retries: 1}\n"
CANARY = "kind: assign\nrules: [{name: canary, when: {share: 10%}, use: {retry: strict}}]\n"


def test_a_canarys_share() -> None:
    at = trial(STRICT, CANARY)
    chosen = [at.take(fact(share=share)).policies["retry"] for share in (0.0, 0.0999, 0.1, 0.9)]
    assert chosen == ["strict", "strict", "default", "default"]


def test_assign_goes_before_the_agents_own_and_a_named_one_before_both() -> None:
    rule = "kind: assign\nrules: [{when: {agent: builder}, use: {retry: interactive}}]\n"
    agents: dict[str, Any] = {"agent_policies": {"builder": {"retry": "strict"}, "crawler": {"retry": "strict"}}}
    assert trial(STRICT, rule, agent="builder", **agents).take(busy()).policies["retry"] == "interactive"
    assert trial(STRICT, rule, agent="crawler", **agents).take(busy()).policies["retry"] == "strict"
    named = trial(STRICT, rule, agent="builder", named={"retry": "default"}, **agents)
    assert named.take(busy()).policies["retry"] == "default"


def test_a_label_may_change_from_step_to_step() -> None:
    rule = "kind: assign\nrules: [{when: {label.team: web}, use: {retry: strict}}]\n"
    at = trial(STRICT, rule)
    assert (
        at.take(fact(**{"label.team": "web", "model": "model/primary", "status": 529.0})).policies["retry"] == "strict"
    )
    assert at.take(busy()).policies["retry"] == "default"


# --- daemon kinds -----------------------------------------------------------------------------------------------------


def test_a_days_money_falls_back_where_a_chain_is_declared() -> None:
    limits = "kind: limits\nrules: [{for: model/primary, cost_usd_per_day: 10, do: [fallback, needs_human]}]\n"
    at = trial(limits, CHAIN)
    used = Step({"model": "model/primary"}, used={"cost_usd_per_day": 10.0})
    assert did(at.take(used)) == ("fallback", "model/second", 0.0)
    assert trial(limits).take(used).do == "needs_human"


def test_a_days_money_may_end_the_task() -> None:
    at = trial("kind: limits\nrules: [{for: agent/crawler, cost_usd_per_day: 10, do: stop}]\n")
    answer = at.take(Step({"agent": "crawler"}, used={"cost_usd_per_day": 10.0}))
    assert (answer.do, answer.reason, answer.error_class) == ("stop", "quota_exhausted", "quota_exhausted")


def test_who_is_told() -> None:
    notify = """
kind: notify
channels: {pager: {command: [/bin/page]}}
rules:
  - {name: long, when: {event: degraded, lasting: 4h}, to: [pager, log], again_after: 30m}
  - {name: quiet, for: model/local, to: []}
"""
    at = trial(notify)
    long = at.take(fact(event="degraded", lasting=14_400.0))
    assert (long.do, long.to, long.says) == ("notify", "pager, log", "told again after 30m")
    assert at.take(fact(event="degraded", lasting=60.0)).to == "log"
    assert at.take(fact(event="breaker_opened", dependency="model/local")).do == "none"


def test_what_always_stops_stops_whatever_a_rule_says() -> None:
    rule = "kind: escalation\nrules: [{name: never, when: {class: internal_error}, do: needs_human}]\n"
    answer = trial(rule).take(Step({"class": "internal_error"}))
    assert (answer.do, answer.reason) == ("stop", "internal_error")
    assert answer.rules[0].rule == "internal_error always stops"


# --- any steps in any order -------------------------------------------------------------------------------------------

model_steps = st.builds(
    lambda model, status, word: Step({"model": model, "status": status, **({"class": word} if word else {})}),
    st.sampled_from(["model/primary", "model/second", "model/local"]),
    st.sampled_from([200.0, 400.0, 401.0, 402.0, 429.0, 500.0, 529.0]),
    st.sampled_from([None, *MODEL_CLASSES]),
)
tool_steps = st.builds(
    lambda tool, word: Step({"tool": tool, **({"class": word} if word else {})}),
    st.sampled_from(["tool/bash", "tool/web_search", "mcp/pay/charge"]),
    st.sampled_from([None, *TOOL_CLASSES]),
)
other_steps = st.sampled_from(
    [
        Step(after_s=90_000.0),
        Step({"class": "hang"}),
        Step({"class": "loop_detected"}),
        Step({"class": "no_progress"}),
        Step({"class": "budget_exhausted"}),
        Step({"class": "state_corrupt"}),
        Step(used={"tool_calls": 80.0}),
        Step(used={"silence": 900.0}),
        Step(context=0.99),
        Step(gained=0.01),
        Step({"event": "needs_human"}),
    ]
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(model_steps, tool_steps, other_steps), max_size=12))
def test_any_steps_in_any_order_have_an_answer(steps: list[Step]) -> None:
    at = Trial(_RICH, Chosen(agent="builder"))
    for step in steps:
        answer = at.take(step)
        assert answer.do
        assert answer.error_class in (None, "ok", *CLASSES)
        assert (answer.reason is not None) == (answer.do == "stop")
        assert answer.waited_s >= 0
        if answer.do in ("fallback", "probe", "rollback"):
            assert answer.to


_RICH = policies(CHAIN, PROBE)
