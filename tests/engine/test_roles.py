"""Features and agents of chains: what swaps when one takes over, what the model is told, the way back (R3.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.session import NodeKind
from harnessd.domain.task import TaskState, Verb
from harnessd.engine.machine import Run
from harnessd.engine.protocol import CallModel, ModelFacts, Resumed, RoleFacts, RunState
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, NO_LIMITS, calls, model_failure, policies, says, tool_failure

SMALL = ModelFacts("small", 100_000, 4_096, input_usd=1.0, output_usd=2.0)
TOOLS = {tool.spec.name: tool for tool in BRIEF.tools}
LOOKING, NOTING = (TOOLS["look"],), (TOOLS["note"],)
ROLES = {
    role.name: role
    for role in (
        RoleFacts("feature/full", BRIEF.tools, add="Analyse everything.", belongs_to="coder"),
        RoleFacts("feature/basic", NOTING, add="Only count.", belongs_to="coder"),
        RoleFacts("feature/strange", NOTING, belongs_to="other"),
        RoleFacts("feature/bare", (), belongs_to="coder"),
        RoleFacts("agent/coder", BRIEF.tools, model=BRIEF.model, add="You work."),
        RoleFacts("agent/small", NOTING, model=SMALL, add="You are small."),
        RoleFacts("agent/twin", LOOKING, model=BRIEF.model),
        RoleFacts("agent/tight", LOOKING, model=replace(SMALL, alias="tight", window=1)),
    )
}
FEATURES = "---\nkind: fallback\nchains: {feature/full: [feature/gone, feature/strange, feature/basic]}\n"
AGENTS = "---\nkind: fallback\nchains: {agent/coder: [agent/gone, agent/twin, agent/tight, agent/small]}\n"
ONCE = "---\nkind: retry\nmodel: {retries: 1}\ntool: {retries: 0}\n"


def started(chains: str, **about: Any) -> Desk:
    about = {"feature": "full", "roles": ROLES, "models": {**BRIEF.models, "small": SMALL}, **about}
    desk = Desk(policies(FREE + chains + ONCE, **NO_LIMITS), brief=replace(BRIEF, **about))
    desk.lease()
    return desk


def told(desk: Desk) -> list[tuple[str, str, str]]:
    wanted = ("degraded", "recovered")
    return [(e.type, e.data["dependency"], e.data["link"]) for e in desk.ledger.events if e.type in wanted]


def request(desk: Desk) -> CallModel:
    return desk.requests[-1]


def tools(desk: Desk) -> list[str]:
    return [tool.name for tool in request(desk).request.tools]


def tool_down(desk: Desk, turn: str = "", tool: str = "look") -> None:
    desk.replied(calls((tool, {}), turn=turn))
    desk.failed(tool_failure(tool, "down"))


def model_down(desk: Desk, times: int = 2) -> None:
    for _ in range(times):
        desk.model_failed(model_failure("overloaded", request(desk).request.model))
        if desk.wait is not None:
            desk.waited()


# --- features ---------------------------------------------------------------------------------------------------------


def test_a_feature_takes_over_where_a_tool_is_down_and_the_model_is_told() -> None:  # R3.4
    desk = started(FEATURES)
    tool_down(desk)
    assert tools(desk) == ["note"]
    assert request(desk).request.system == "You work.", "the system prompt stays frozen"
    words = str(request(desk).request.messages[-1])
    assert "feature/full cannot be used now (tool/look: unavailable: connection refused)." in words
    assert "Go on as feature/basic. Only count. Your tools are now: note." in words
    decision = desk.ledger.decisions[-1].decision
    assert decision.remedy.to == "feature/basic"  # type: ignore[union-attr]
    assert "feature/gone: harness.yaml does not have it" in decision.alternatives
    assert "feature/strange: it belongs to agent/other" in decision.alternatives
    assert decision.evidence["chain"]["rule"].endswith("feature/full")
    assert told(desk) == [], "nothing was answered under it yet"
    desk.replied(says("counted"))
    assert told(desk) == [("degraded", "feature/full", "feature/basic")]
    assert desk.ledger.counters.degraded == {"feature/full": "feature/basic"}
    assert [r.is_error for r in desk.results()] == [True], "the call has its one result all the same"


def test_what_the_model_was_told_is_part_of_the_history_once_it_answered() -> None:  # R3.4, R6.1
    desk = started(FEATURES)
    tool_down(desk)
    shown = request(desk).request.messages
    desk.replied(calls(("note", {}), turn="b"))
    desk.returned("noted")
    assert request(desk).request.messages[: len(shown)] == shown, "the provider's cache holds"
    assert len([text for text in desk.texts(NodeKind.NOTICE) if "Go on as feature/basic" in text]) == 1


def test_the_first_feature_comes_back_after_its_time() -> None:  # R3.4
    desk = started(FEATURES)
    tool_down(desk)
    desk.now += 299
    desk.replied(calls(("note", {"n": 1}), turn="b"))
    desk.returned("one")
    assert tools(desk) == ["note"]
    desk.now += 2
    desk.replied(calls(("note", {"n": 2}), turn="c"))
    desk.returned("two")
    assert len(tools(desk)) == 4
    assert "feature/full can be used again: go on as before." in str(request(desk).request.messages[-1])
    desk.replied(says("done"))
    assert told(desk)[-1] == ("recovered", "feature/full", "feature/basic")
    assert desk.ledger.counters.degraded == {}


def test_a_policy_may_keep_the_stand_in_for_good() -> None:  # R3.4
    desk = started(FEATURES + "return_after: none\n")
    tool_down(desk)
    desk.now += 6_000
    desk.replied(calls(("note", {}), turn="b"))
    desk.returned("one")
    assert tools(desk) == ["note"]


def test_a_chain_that_is_gone_after_a_reload_gives_the_first_back() -> None:  # R3.4, R7.2
    desk = started(FEATURES)
    tool_down(desk)
    desk.rules = policies(FREE + ONCE, **NO_LIMITS)
    desk.replied(calls(("note", {}), turn="b"))
    desk.returned("one")
    assert len(tools(desk)) == 4


@pytest.mark.parametrize("answered", [False, True])
def test_a_stand_in_survives_a_crash(answered: bool) -> None:  # R3.4, R6.1
    desk = started(FEATURES)
    tool_down(desk)
    if answered:
        desk.replied(calls(("note", {}), turn="b"))
        desk.returned("one")
    desk.crash_and_lease()
    assert tools(desk) == ["note"]
    desk.replied(says("done"))
    assert told(desk) == [("degraded", "feature/full", "feature/basic")]
    assert len([text for text in desk.texts(NodeKind.NOTICE) if "feature/basic" in text]) == 1


def test_calls_asked_for_before_are_still_made_with_the_tools_of_then() -> None:  # R3.4, R2.2
    desk = started(FEATURES)
    desk.replied(calls(("put", {"n": 1}), ("look", {"n": 2})))
    desk.failed(tool_failure("put", "down"))
    desk.returned("seen")
    assert [result.is_error for result in desk.results()] == [True, False]
    assert tools(desk) == ["note"]


def test_a_crash_between_the_calls_keeps_the_tools_of_then() -> None:  # R3.4, R6.1
    desk = started(FEATURES)
    desk.replied(calls(("put", {"n": 1}), ("look", {"n": 2})))
    desk.failed(tool_failure("put", "down"))
    desk.crash_and_lease()
    desk.returned("seen")
    assert [result.is_error for result in desk.results()] == [True, False]


def test_a_feature_that_has_the_broken_tool_too_cannot_take_over() -> None:  # R3.4
    desk = started(FEATURES)
    tool_down(desk, tool="note")
    assert len(tools(desk)) == 4
    decision = desk.ledger.decisions[-1].decision
    assert "feature/basic: it works with tool/note too" in decision.alternatives


def test_the_chain_is_walked_once_down_to_the_last() -> None:  # R3.4
    desk = started("---\nkind: fallback\nchains: {feature/full: [feature/basic, feature/bare]}\n")
    tool_down(desk)
    tool_down(desk, turn="b", tool="note")
    assert request(desk).request.tool_choice == "none", "a history with calls needs tools beside it"
    assert "Your tools are now: none." in str(request(desk).request.messages[-1])
    desk.replied(says("done"))
    assert told(desk) == [
        ("degraded", "feature/full", "feature/basic"),
        ("degraded", "feature/full", "feature/bare"),
    ]


def test_a_tools_own_chain_goes_first() -> None:  # R3.4
    both = "---\nkind: fallback\nchains: {feature/full: [feature/basic], tool/look: [tool/put]}\n"
    desk = started(both)
    desk.replied(calls(("look", {})))
    desk.failed(tool_failure("look", "down"))
    desk.returned("put instead")
    assert len(tools(desk)) == 4


def test_without_a_feature_nothing_of_it_changes() -> None:  # R3.4
    desk = started(FEATURES, feature="")
    tool_down(desk)
    assert len(tools(desk)) == 4


# --- agents -----------------------------------------------------------------------------------------------------------


def test_another_agent_goes_on_where_the_models_are_down() -> None:  # R3.4
    desk = started(AGENTS)
    model_down(desk)
    asked = request(desk).request
    assert (asked.model, tools(desk), asked.system) == ("small", ["note"], "You work.")
    assert asked.max_tokens == SMALL.max_output
    assert desk.run.acting == "small"
    assert "Go on as agent/small. You are small. Your tools are now: note." in str(asked.messages[-1])
    alternatives = desk.ledger.decisions[-1].decision.alternatives
    assert "agent/twin: it works with model/primary too" in alternatives
    assert any(one.startswith("agent/tight: its model/tight: its window of 1 is smaller") for one in alternatives)
    desk.replied(calls(("note", {}), turn="b"))
    (call,) = desk.under_way.values()
    assert call.agent == "small", "its tools get its environment"  # type: ignore[union-attr]
    assert told(desk) == [("degraded", "agent/coder", "agent/small")]


def test_the_models_own_chain_goes_first() -> None:  # R3.4
    desk = started("---\nkind: fallback\nchains: {agent/coder: [agent/small], model/primary: [model/second]}\n")
    model_down(desk)
    assert request(desk).request.model == "second"
    model_down(desk, times=1)
    assert request(desk).request.model == "small"


@pytest.mark.parametrize("kind", ["refused", "overflow", "wrong"])
def test_what_one_request_got_wrong_moves_no_task_to_another_agent(kind: str) -> None:  # R3.4, R3.3
    desk = started(AGENTS)
    desk.model_failed(model_failure(kind))
    assert desk.run.acting == ""


def test_the_first_agent_is_asked_once_when_its_time_comes() -> None:  # R3.4
    desk = started(AGENTS)
    model_down(desk)
    desk.replied(calls(("note", {"n": 1}), turn="b"))
    desk.now += 301
    desk.returned("one")
    assert request(desk).request.model == "primary"
    desk.model_failed(model_failure("overloaded"))
    assert request(desk).request.model == "small", "the probe failed: no more tries"
    desk.replied(calls(("note", {"n": 2}), turn="c"))
    assert told(desk) == [("degraded", "agent/coder", "agent/small")], "nothing was different for the model"
    assert len([text for text in desk.texts(NodeKind.NOTICE) if "agent/small" in text]) == 1
    desk.now += 301
    desk.returned("two")
    desk.replied(says("done"))
    assert told(desk)[-1] == ("recovered", "agent/coder", "agent/small")


def test_both_down_parks_and_the_first_is_asked_again_after_it() -> None:  # R3.4, R3.2a
    desk = started(AGENTS)
    model_down(desk, times=3)
    assert desk.stands() is TaskState.PARKED
    desk.now += 400
    desk.return_to_work(Verb.WAKE)
    assert request(desk).request.model == "primary"
    assert desk.run.state is RunState.MODEL
    desk.replied(says("done"))
    assert told(desk) == []


def test_an_agent_takes_over_for_a_tool_that_it_does_without() -> None:  # R3.4
    desk = started(AGENTS)
    tool_down(desk)
    assert desk.run.acting == "small"
    assert request(desk).request.model == "small"


def test_the_feature_chain_goes_before_the_agents() -> None:  # R3.4
    desk = started("---\nkind: fallback\nchains: {agent/coder: [agent/small], feature/full: [feature/basic]}\n")
    tool_down(desk)
    assert (desk.run.acting, tools(desk)) == ("", ["note"])
    tool_down(desk, turn="b", tool="note")
    assert desk.run.acting == "", "small works with it too"


def test_a_stand_in_agent_survives_a_crash() -> None:  # R3.4, R6.1
    desk = started(AGENTS)
    model_down(desk)
    desk.crash_and_lease()
    assert (desk.run.acting, request(desk).request.model) == ("small", "small")
    desk.replied(calls(("note", {}), turn="b"))
    desk.crash_and_lease()
    assert desk.run.acting == "small"


# --- parks ------------------------------------------------------------------------------------------------------------


def test_the_whole_chain_parks_until_the_earliest_probe_of_its_links() -> None:  # R3.4, R3.5
    desk = started("---\nkind: fallback\nchains: {model/primary: [model/second, model/third]}\n")
    for alias, wait_s in (("primary", 45.0), ("second", 12.0), ("third", 200.0)):
        desk.model_failed(replace(model_failure("breaker", alias), retry_after_s=wait_s))
    assert desk.stands() is TaskState.PARKED
    assert desk.ledger.last_move.until == desk.now + 12.0
    assert desk.ledger.last_move.dependency == "model/second"
    desk.now += 12.0
    desk.return_to_work(Verb.WAKE)
    assert request(desk).request.model == "primary", "the next round begins at the first link"


def test_what_was_waited_for_already_shortens_no_park() -> None:  # R3.2
    desk = started("---\nkind: fallback\nchains: {model/primary: [model/second]}\n")
    desk.model_failed(replace(model_failure("breaker"), retry_after_s=5.0))
    desk.now += 20
    desk.model_failed(replace(model_failure("breaker", "second"), retry_after_s=90.0))
    assert desk.ledger.last_move.until == desk.now + 90.0


# --- what a model gets wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("lok", "there is no tool 'lok', did you mean 'look'? the tools are: look, note, put, pay"),
        ("Look", "did you mean 'look'?"),
        ("browse_the_web", "there is no tool 'browse_the_web'; the tools are: look, note, put, pay"),
    ],
)
def test_an_unknown_tool_is_an_observation_that_says_what_may_be_meant(wrong: str, said: str) -> None:  # R2.1
    desk = started(FEATURES)
    desk.replied(calls((wrong, {})))
    (result,) = desk.results()
    assert result.is_error
    assert "unknown_tool" in result.text
    assert said in result.text


def test_a_branch_from_before_the_notice_is_told_again() -> None:  # R3.4, R5.1
    desk = started(FEATURES)
    tool_down(desk)
    desk.replied(calls(("note", {}), turn="b"))
    desk.crash()
    cut = next(place for place, node in enumerate(desk.ledger.path) if "roles" in node.payload.get("facts", {}))
    before = replace(desk.ledger.counters, nodes=100)
    run = Run.restore(desk.brief, desk.ledger.path[:cut], desk.ledger.journal(), before)
    commands = run.receive(Resumed(desk.now), desk.rules)
    (call,) = [command for command in commands if isinstance(command, CallModel)]
    assert [tool.name for tool in call.request.tools] == ["note"]
    assert "Go on as feature/basic." in str(call.request.messages[-1])
