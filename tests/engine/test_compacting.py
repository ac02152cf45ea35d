"""Compacting: the tiers before every call, cheap steps first, the summary, what is carried over by code (R4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harnessd.domain.messages import TextBlock, ToolUseBlock, Usage
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, TaskState, Verb
from harnessd.engine.protocol import CallModel
from tests.engine.scenery import FREE, says
from tests.engine.windows import SMALL, Played, brief, played, reply_of

KEEP_ONE = "---\nkind: compaction\nreserve: 2k\nsummary: {max_tokens: 500}\nkeep_turns: 1\n"


def test_a_long_task_stays_within_its_window() -> None:  # R4.1, R4.2, R4.5
    run = played()
    run.go(44)
    assert run.desk.stands() is TaskState.RUNNING
    assert max(run.sizes) < 0.98 * 14_000
    assert 2 <= len(run.nodes()) < 12
    assert run.shown.count("Do all the steps.") == 1
    assert "put path=steps/{1-" in run.shown, "each act on the world has its receipt"
    assert "Next steps" in run.shown
    assert all(node.payload["facts"]["how"] == "summary" for node in run.nodes())
    last = run.desk.ledger.counters.context["last"]
    assert last["measured"]
    assert last["gain"] > 0.3


def test_each_summary_updates_the_last_and_has_no_tools() -> None:  # R4.5
    run = played()
    run.go(44)
    first, second = (act.request for act in run.summaries[:2])
    assert "The notes until now" not in first.messages[0].text
    assert "All steps." in second.messages[0].text
    assert second.tools == ()
    assert second.max_tokens <= 1_000
    assert len(second.messages) == 1, "no pair of call and result can break in it"


def test_what_persons_said_is_carried_over_word_for_word() -> None:  # R4.4, R4.5
    run = played()
    run.go(10)
    run.desk.hear("Never touch the folder attic.")
    run.go(44)
    assert len(run.nodes()) >= 2
    assert run.shown.count("Never touch the folder attic.") == 1
    assert run.shown.index("Do all the steps.") < run.shown.index("Never touch")


def test_the_task_list_is_carried_over_by_code() -> None:  # R4.4, R4.5
    run = played()
    run.model()
    run.desk.returned("noted", note=[{"text": "paint the shed", "state": "doing"}])
    run.go(44)
    assert len(run.nodes()) >= 2
    assert "[>] paint the shed" in run.shown


def test_old_results_are_squeezed_before_anything_is_summarised() -> None:  # R4.2
    run = played(result=lambda k: f"result {k}\n" + "x = 1\n" * 800)
    run.go(8)
    first = run.nodes()[0].payload
    assert first["facts"]["how"] == "squeeze"
    assert not run.summaries
    assert "job_output" not in run.shown, "the agent has no tool to read it, and is told the name alone"
    kept = {name for act in run.desk.requests for name, _ in act.keep}
    assert kept
    assert all(name in run.shown or name in str(first) for name in kept)
    node = next(iter(sorted(kept))).removeprefix("kept-")
    assert "x = 1" in str(run.desk.ledger.nodes[node].payload), "the history itself is whole"


def test_a_restart_lays_out_again_what_the_view_names() -> None:  # R4.2
    run = played(result=lambda k: f"result {k}\n" + "x = 1\n" * 1_500)
    run.go(4)
    kept = {name for act in run.desk.requests for name, _ in act.keep}
    assert kept
    run.desk.crash_and_lease()
    act = run.desk.under_way[run.desk.call]
    assert isinstance(act, CallModel)
    assert {name for name, _ in act.keep} <= kept
    assert act.keep


def test_equal_results_stand_once() -> None:
    run = played(result=lambda _: "the same long text\n" * 120)
    run.go(24)
    first = run.nodes()[0].payload["facts"]
    assert first["how"] == "squeeze"
    assert "[the same as a newer result below]" in first["squeezed"].values()


# --- one figure before and after --------------------------------------------------------------------------------------


def test_a_count_from_before_says_nothing_of_the_view_after() -> None:  # c02
    run = played()
    while not run.nodes():
        run.go(1)
    context = run.desk.ledger.counters.context
    assert context["now"][0] < 0.5 * context["last"]["before"], "what people see is the new size"
    assert context["last"]["after"] < 0.5 * context["last"]["before"]
    assert len(run.summaries) == 1
    act = run.desk.under_way[run.desk.call]
    assert isinstance(act, CallModel)
    assert act.request.tools, "the next call is the task's own"


@pytest.mark.parametrize("factor", [0.5, 1.95, 3.0])
def test_the_services_own_measure_decides(factor: float) -> None:  # c03
    run = played(factor=factor)
    run.go(34)
    assert max(run.sizes) < 0.98 * 14_000
    assert run.desk.ledger.counters.context.get("failures", 0) == 0
    asked_to_go_on = [text for text in run.desk.texts(NodeKind.NOTICE) if "Go on" in text]
    assert not asked_to_go_on
    while not run.request_is_its_own():
        run.model()
    before = len(run.desk.ledger.path)
    run.desk.replied(says("Nothing is left to do."))
    assert run.desk.stands() is TaskState.COMPLETED
    assert len(run.desk.ledger.path) == before + 1


class Stubborn(Played):
    """A service whose counts do not fall, whatever is left out."""

    def usage(self, request: object, output: int) -> Usage:
        del request
        return Usage(11_000 - 100 * self.steps if self.steps < 6 else 13_000, output)


def stubborn(text: str = SMALL) -> Stubborn:
    """At work, with a service that counts as it likes."""
    run = played(FREE + text)
    return Stubborn(run.desk)


def test_three_compactions_that_free_nothing_are_enough() -> None:  # R4.6, c04
    run = stubborn()
    run.go(60)
    assert len(run.summaries) <= 3, "never a fourth summary"
    assert run.desk.stands() is TaskState.WAITING
    (opened,) = run.told("breaker_opened")
    assert opened["dependency"] == "compaction/t1"
    assert "brought no relief" in opened["sentence"]
    assert run.nodes()[-1].payload["facts"]["how"] == "trim"
    assert any("compactions in a row" in question.sentence for question in run.desk.ledger.questions.values())


def test_the_open_breaker_is_durable_and_a_person_closes_it() -> None:  # R4.6, J17
    run = stubborn()
    run.go(60)
    assert run.desk.ledger.counters.context["open"]
    (question,) = run.desk.ledger.questions.values()
    run.desk.ledger.questions[question.id] = replace(question, choice="go-on")
    run.desk.return_to_work(Verb.ANSWER)
    assert "open" not in run.desk.ledger.counters.context
    assert len(run.told("breaker_closed")) == 1
    assert run.desk.stands() is TaskState.RUNNING


def test_a_policy_that_stops_gives_the_reason() -> None:  # R4.6
    run = stubborn(SMALL + "do: stop\n")
    run.go(60)
    assert run.desk.ledger.reason is StopReason.CONTEXT_EXHAUSTED
    assert "Largest:" in run.desk.ledger.last_move.sentence


# --- what cannot be made smaller --------------------------------------------------------------------------------------


def test_fixed_overhead_is_diagnosed_and_not_compacted_for_ever() -> None:  # R4.2
    run = played(FREE + KEEP_ONE, of=brief(window=6_000, max_output=2_000, system="Obey. " * 2_400))
    run.go(12)
    (told,) = [event for event in run.told("budget_warning") if event["level"] == "overhead"]
    assert "System prompt and tools alone take" in told["sentence"]
    assert len(run.summaries) <= 3


def test_overhead_beyond_the_window_stops_with_a_diagnosis() -> None:  # R4.2, R4.3
    run = played(FREE + KEEP_ONE, of=brief(window=6_000, max_output=2_000, system="Obey this. " * 2_400))
    assert run.desk.ledger.reason is StopReason.CONTEXT_EXHAUSTED
    assert "system prompt and tools" in run.desk.ledger.last_move.sentence
    assert not run.desk.requests, "no request was sent that cannot fit"


def test_above_the_second_tier_person_and_model_are_told_once() -> None:  # R4.2
    prompt = "Keep to this. " * 950
    run = played(FREE + KEEP_ONE, of=brief(window=6_500, max_output=2_000, system=prompt))
    run.go(6)
    told = [event for event in run.told("budget_warning") if event["level"] == "warn"]
    assert len(told) <= 1
    assert len([text for text in run.desk.texts(NodeKind.NOTICE) if "The context window is" in text]) == len(told)


def test_a_turn_larger_than_the_window_is_split() -> None:  # R4.4
    run = played(result=lambda k: f"result {k}\n" + "y = 2 * x\n" * 12_000)
    run.go(3)
    assert run.desk.stands() is TaskState.RUNNING
    assert max(run.sizes) < 14_000
    assert "characters left out; the whole is kept as kept-n" in run.shown


def test_many_results_of_one_turn_that_do_not_fit_together() -> None:  # R4.4
    run = played()
    act = run.desk.under_way[run.desk.call]
    assert isinstance(act, CallModel)
    uses = tuple(ToolUseBlock(f"p{n}", "look", {"n": n}) for n in range(12))
    run.desk.replied(reply_of(act, uses, says("x").finish, Usage(400, 100)))
    for _ in range(12):
        run.desk.returned("many words of a file\n" * 500, call=next(iter(run.desk.under_way)))
    assert run.desk.stands() is TaskState.RUNNING
    request = run.request
    assert len([block for message in request.messages for block in message.blocks]) >= 13
    run.go(2)
    assert max(run.sizes) < 14_000


def test_a_request_larger_than_the_window_is_cut_and_kept() -> None:  # R4.4
    run = played(of=brief(prompt="Sum this up:\n" + "one line of a long report\n" * 6_000 + "THE END"))
    assert run.desk.stands() is TaskState.RUNNING
    run.go(3)
    assert max(run.sizes) < 14_000
    assert "Sum this up" in run.shown
    assert "THE END" in run.shown
    assert any(name == "kept-n1" for act in run.desk.requests for name, _ in act.keep)


def test_an_answer_that_alone_fills_the_window() -> None:  # R4.4
    run = played()
    act = run.desk.under_way[run.desk.call]
    assert isinstance(act, CallModel)
    use = ToolUseBlock("big", "put", {"path": "a.txt", "content": "a long line of text\n" * 6_000})
    run.desk.replied(reply_of(act, (TextBlock("Writing."), use), says("x").finish, Usage(400, 30_000)))
    run.desk.returned("written")
    assert run.desk.stands() is TaskState.RUNNING
    run.go(2)
    assert max(run.sizes) < 14_000
    assert "put path=a.txt content=a long line" in run.shown
