"""Summaries that fail: down, empty, wrong, too long, cut off, over its own window. Each ends in progress (R4.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harnessd.domain.failure import Failure
from harnessd.domain.messages import FinishReason, ModelReply, TextBlock, ToolUseBlock, Usage
from harnessd.domain.task import TaskState
from harnessd.engine.protocol import CallModel, ModelFacts
from tests.engine.scenery import FREE, model_failure
from tests.engine.windows import SMALL, SUMMARY, Played, brief, overflow, played, reply_of


def said(text: str, finish: FinishReason = FinishReason.STOP) -> Callable[[CallModel], ModelReply]:
    """A summariser that says this each time."""
    return lambda act: reply_of(act, (TextBlock(text),), finish, Usage(1_000, 100))


def asks_for_a_tool(act: CallModel) -> ModelReply:
    """A summariser that works instead of summing up."""
    return reply_of(act, (ToolUseBlock("s1", "look", {}),), FinishReason.TOOL_USE, Usage(1_000, 100))


def breaks(kind: str) -> Callable[[CallModel], Failure]:
    """A summariser whose service fails so each time."""
    return lambda act: model_failure(kind, act.request.model)


FAULTS: dict[str, Callable[[CallModel], ModelReply | Failure]] = {
    "down": breaks("overloaded"),
    "unreachable": breaks("reset"),
    "silent": breaks("silent"),
    "its breaker is open": breaks("breaker"),
    "its key is dead": breaks("key"),
    "its quota is gone": breaks("quota"),
    "wants an hour": breaks("wait an hour"),
    "refuses": breaks("refused"),
    "empty": breaks("unreadable"),
    "blank": said("  \n "),
    "no sections": said("I have read all of it. It was about steps."),
    "one section": said("## Goal\nAll of it."),
    "cut off": said("## Goal\nAll steps.\n## Progress\nSome of them and", FinishReason.LENGTH),
    "a tool call": asks_for_a_tool,
    "over its own window": lambda act: overflow(20_000, 16_000, act.request.model),
    "an error of ours": breaks("wrong"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_summary_the_history_is_cut_and_work_goes_on(fault: str) -> None:  # R4.5
    run = played(summariser=FAULTS[fault])
    run.go(24)
    assert run.desk.stands() is TaskState.RUNNING, run.desk.ledger.last_move
    nodes = run.nodes()
    assert len(nodes) >= 1
    assert {node.payload["facts"]["how"] for node in nodes} == {"trim"}
    assert len(run.summaries) <= 2 * len(nodes), "two attempts each time, and no more"
    assert "put path=steps/{1-" in run.shown
    assert "Do all the steps." in run.shown
    assert "Dropped without a summary" in run.shown
    assert nodes[0].payload["facts"]["why"]
    assert max(run.sizes) < 14_000


def test_a_summary_larger_than_its_budget_is_cut() -> None:  # R4.5
    run = played(summariser=said(SUMMARY + "\nand so on" * 20_000))
    run.go(24)
    assert run.nodes()[0].payload["facts"]["how"] == "summary"
    assert "characters left out" in run.shown
    assert max(run.sizes) < 14_000


def test_a_summary_that_was_cut_off_but_has_all_its_sections_is_taken() -> None:
    run = played(summariser=said(SUMMARY, FinishReason.LENGTH))
    run.go(24)
    assert run.nodes()[0].payload["facts"]["how"] == "summary"


def test_a_fault_that_passes_costs_one_more_attempt() -> None:  # R4.5
    answers: list[Callable[[CallModel], ModelReply | Failure]] = [breaks("overloaded"), said(SUMMARY)]
    run = played(summariser=lambda act: answers.pop(0)(act) if answers else said(SUMMARY)(act))
    run.go(24)
    assert run.nodes()[0].payload["facts"]["how"] == "summary"
    assert run.desk.ledger.counters.context.get("failures", 0) == 0


def test_its_own_model_goes_first_and_its_chain_after_it() -> None:  # R4.5
    own = SMALL.replace("summary: {", "summary: {model: model/writer, ")
    chain = "---\nkind: fallback\nchains: {model/primary: [model/second]}\n"
    models = {"writer": ModelFacts("writer", 8_000, 1_000), "second": ModelFacts("second", 200_000, 4_000)}

    def answer(act: CallModel) -> ModelReply | Failure:
        return said(SUMMARY)(act) if act.request.model == "second" else breaks("key")(act)

    run = played(FREE + own + chain, of=brief(models=models), summariser=answer)
    run.go(24)
    assert [act.request.model for act in run.summaries[:3]] == ["writer", "primary", "second"]
    assert run.nodes()[0].payload["facts"]["by"] == "second"


def test_its_request_fits_its_own_window() -> None:  # R4.5
    own = SMALL.replace("summary: {", "summary: {model: model/writer, ")
    models = {"writer": ModelFacts("writer", 4_000, 1_000)}
    run = played(FREE + own, of=brief(models=models))
    run.go(24)
    assert run.summaries
    for act in run.summaries:
        assert act.request.model == "writer"
        assert run.usage(act.request, 0).input_tokens + act.request.max_tokens <= 4_000


def test_summaries_are_charged_and_recorded_before_they_are_made() -> None:  # R3.9, J17
    run = played()
    while not run.summaries:
        run.go(1)
    tokens = run.desk.ledger.counters.tokens
    facts = [node.payload.get("facts", {}) for node in run.desk.ledger.path]
    spent = sum(sum(its["usage"].values()) for its in facts if "usage" in its)
    assert tokens > spent, "the summary's own tokens count too"
    rows = [row for row in run.desk.ledger.effects.values() if (row.arguments or {}).get("purpose") == "summary"]
    assert len(rows) == len(run.summaries)
    assert rows[0].result is not None
    assert rows[0].result["tokens"] > 0
    assert run.desk.ledger.counters.turns == run.steps


def killed_in_a_summary(run: Played) -> None:
    """On until a summary is under way, then kill -9."""
    for _ in range(400):
        if run.desk.under_way:
            act = run.desk.under_way[run.desk.call]
            if isinstance(act, CallModel) and not act.request.tools:
                run.desk.crash_and_lease()
                return
            if isinstance(act, CallModel):
                run.model()
                continue
        run.desk.returned(run.result(run.steps))
    raise AssertionError("no summary was asked for")


def test_kill_in_the_middle_of_a_summary() -> None:  # J17, I8
    run = played()
    killed_in_a_summary(run)
    assert not run.nodes(), "the old view"
    spent = run.desk.ledger.counters.cost_usd
    act = run.desk.under_way[run.desk.call]
    assert isinstance(act, CallModel)
    assert not act.request.tools, "it is made again"
    run.go(3)
    assert len(run.nodes()) == 1
    assert run.desk.ledger.counters.cost_usd > spent > 0
    assert run.desk.stands() is TaskState.RUNNING


def test_a_crash_behind_the_node_keeps_the_new_view() -> None:  # J17
    run = played()
    while not run.nodes():
        run.go(1)
    shown = replace(run.request, model="")
    run.desk.crash_and_lease()
    assert run.request.messages[0] == shown.messages[0]
    run.go(5)
    assert len(run.nodes()) == 1


def test_cancelled_in_the_middle_of_a_summary() -> None:
    run = played()
    while True:
        act = run.desk.under_way[run.desk.call]
        if isinstance(act, CallModel) and not act.request.tools:
            break
        if isinstance(act, CallModel):
            run.model()
        else:
            run.desk.returned(run.result(run.steps))
    run.desk.cancel("eva")
    run.desk.model_failed(model_failure("cancelled"))
    assert run.desk.stands() is TaskState.STOPPED
