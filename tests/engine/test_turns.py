"""Turns: what runs side by side, brakes, the last turn, persons' words, cut-off answers."""

from __future__ import annotations

import pytest

from harnessd.domain.decision import RuleRef, Stop
from harnessd.domain.messages import FinishReason, TextBlock, ToolResultBlock
from harnessd.domain.session import NodeKind, view
from harnessd.domain.task import StopReason, TaskState
from harnessd.engine import asking
from harnessd.engine.protocol import CallModel, CallTool, Finish, RunState
from harnessd.policy.budget import Exhausted
from tests.engine.desk import Desk, unpaired
from tests.engine.scenery import FREE, NO_LIMITS, calls, model_failure, policies, reply, says, tool_failure


def started(text: str = FREE, **budget: float) -> Desk:
    """A run that waits for its first answer."""
    desk = Desk(policies(text, **{**NO_LIMITS, **budget}))
    desk.lease()
    return desk


def tools_under_way(desk: Desk) -> list[str]:
    """The tools at work."""
    return [act.tool for act in desk.under_way.values() if isinstance(act, CallTool)]


# --- parallel calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        ("look look note look", ["look look", "note", "look"]),
        ("look look look", ["look look look"]),
        ("put put", ["put", "put"]),
        ("note look look pay look", ["note", "look look", "pay", "look"]),
        ("pay", ["pay"]),
    ],
)
def test_neighbouring_readers_run_side_by_side_and_others_alone_in_order(wanted: str, groups: list[str]) -> None:
    desk = started()
    desk.replied(calls(*((name, {"n": place}) for place, name in enumerate(wanted.split()))))
    seen = []
    while desk.run.state is RunState.TOOLS:
        group = tools_under_way(desk)
        seen.append(" ".join(group))
        for call in sorted(desk.under_way, reverse=True):  # the last one answers first
            desk.returned("ok", call)
    assert seen == groups
    assert desk.run.state is RunState.MODEL


def test_results_are_shown_in_the_order_of_the_calls_whatever_came_first() -> None:
    desk = started()
    desk.replied(calls(("look", {"a": 1}), ("look", {"a": 2}), ("look", {"a": 3})))
    for place in (2, 0, 1):
        desk.returned(f"result {place}", desk.effect_of(place))
    assert [block.text for block in desk.results()] == ["result 2", "result 0", "result 1"]
    shown = desk.requests[-1].request.messages[-1].blocks
    assert [block.text for block in shown if isinstance(block, ToolResultBlock)] == ["result 0", "result 1", "result 2"]


def test_each_result_is_durable_when_its_call_ends_not_with_the_group() -> None:  # g02
    desk = started()
    desk.replied(calls(("look", {"a": 1}), ("look", {"a": 2})))
    desk.returned("first", desk.effect_of(0))
    desk.crash_and_lease()
    assert [block.text for block in desk.results()] == ["first"]
    assert [act.arguments for act in desk.under_way.values() if isinstance(act, CallTool)] == [{"a": 2}]


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_the_agent_is_warned_at_63_and_81_and_stopped_at_90() -> None:  # R3.9
    desk = Desk(policies(FREE))
    desk.lease()
    for number in range(90):
        desk.replied(calls(("look", {"n": number})))
        desk.returned("ok")
    warned = {place + 1: block.text for place, block in enumerate(desk.results()) if block.text != "ok"}
    assert warned == {
        63: "ok\n63 of 90 tool_calls used: plan the rest of the work within it.",
        81: "ok\n81 of 90 tool_calls used: plan the rest of the work within it.",
        # 84 turns of 120
        84: "ok\n84 of 120 turns used: plan the rest of the work within it.",
    }
    last = desk.requests[-1].request
    assert last.tool_choice == "none"
    assert "90 of 90 tool_calls used" in desk.texts(NodeKind.NOTICE)[-1]
    desk.replied(says("Half is done."))
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.BUDGET_EXHAUSTED
    move = desk.ledger.last_move
    assert move.sentence.startswith("The task's budget is used up: 90 of 90 tool_calls used. ")
    decided = [one.decision for one in desk.ledger.decisions]
    stops = [one.rule.rule for one in decided if isinstance(one.remedy, Stop)]
    assert stops == ["limits.tool_calls"], "decided once: the summing-up belongs to it"
    assert move.next_steps[0] == ("harnessctl", "resume", "t1", "--budget", "tool_calls=+45")
    assert [request.request.tool_choice for request in desk.requests].count("none") == 1


def test_a_warning_is_not_given_again_after_a_restart() -> None:  # i08
    desk = started(tool_calls=10)
    for number in range(8):
        desk.replied(calls(("look", {"n": number})))
        desk.returned("ok")
    desk.crash_and_lease()
    for number in range(8, 10):
        desk.replied(calls(("look", {"n": number})))
        desk.returned("ok")
    warned = [place + 1 for place, block in enumerate(desk.results()) if "plan the rest" in block.text]
    assert warned == [7, 9]


def test_a_jump_over_both_marks_is_one_message() -> None:  # i08
    desk = started(tokens=10_000)
    desk.replied(reply(*_look(), tokens=4_800))
    desk.returned("ok")
    assert desk.results()[0].text == "ok\n9600 of 10000 tokens used: plan the rest of the work within it."
    assert set(desk.ledger.counters.warned) == {"tokens:70%", "tokens:90%"}


def _look() -> tuple[TextBlock, ...]:
    return calls(("look", {})).message.blocks  # type: ignore[return-value]


def test_two_calls_are_left_and_ten_are_asked_for() -> None:  # i15
    desk = started(tool_calls=90)
    for number in range(88):
        desk.replied(calls(("look", {"n": number})))
        desk.returned("ok")
    desk.replied(calls(*(("look", {"n": number}) for number in range(10))))
    assert len(desk.under_way) == 2
    for call in sorted(desk.under_way):
        desk.returned("ok", call)
    assert desk.ledger.counters.tool_calls == 90
    refused = [block for block in desk.results()[88:] if block.is_error]
    assert len(refused) == 8
    assert all("90 of 90 tool_calls used" in block.text for block in refused)
    assert unpaired(desk.ledger.path) == []
    assert desk.requests[-1].request.tool_choice == "none"


def test_calls_in_the_last_turn_are_answered_and_not_made() -> None:  # R3.9, R2.2
    desk = started(tool_calls=0)
    assert desk.requests[-1].request.tool_choice == "none"
    desk.replied(calls(("look", {}), ("pay", {})))
    assert desk.performed == []
    assert ["last turn" in block.text for block in desk.results()] == [True, True]
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.BUDGET_EXHAUSTED


def test_without_a_last_turn_the_task_stops_at_once() -> None:
    desk = started(FREE + "---\nkind: budget\nlast_turn: false\n", turns=1)
    desk.replied(reply(TextBlock("and th"), finish=FinishReason.LENGTH))
    assert isinstance(desk.last, Finish)
    assert len(desk.requests) == 1


def test_a_last_turn_that_fails_is_made_again() -> None:  # R3.9, R3.2
    desk = started(tool_calls=0)
    desk.model_failed(model_failure("overloaded"))
    desk.waited()
    assert desk.requests[-1].request.tool_choice == "none"
    desk.crash_and_lease()
    assert desk.requests[-1].request.tool_choice == "none"
    assert len(desk.texts(NodeKind.NOTICE)) == 1, "it is announced once"
    desk.replied(says("Nothing is done."))
    assert isinstance(desk.last, Finish)
    assert desk.last.reason is StopReason.BUDGET_EXHAUSTED
    assert "0 of 0 tool_calls used" in desk.last.sentence


def test_a_raised_limit_lets_the_task_go_on() -> None:  # R3.9
    desk = started(tool_calls=1)
    desk.replied(calls(("look", {})))
    desk.returned("ok")
    desk.replied(says("One thing is done."))
    assert desk.stands() is TaskState.STOPPED
    desk.return_to_work()
    assert desk.stands() is TaskState.STOPPED, "nothing has changed: it stops again, without a call"
    calls_made = len(desk.requests)
    desk.rules = policies(FREE, tool_calls=5)
    desk.return_to_work()
    assert len(desk.requests) == calls_made + 1
    assert desk.requests[-1].request.tool_choice == "auto"
    desk.replied(calls(("look", {"n": 2}), turn="2"))
    desk.returned("ok")
    desk.replied(says("done"))
    assert desk.stands() is TaskState.COMPLETED


def test_a_limit_raised_during_the_last_turn_is_seen_after_it() -> None:
    desk = started(tool_calls=0)
    desk.rules = policies(FREE, tool_calls=5)
    desk.replied(says("Nothing is done."))
    assert desk.run.state is RunState.MODEL
    assert desk.requests[-1].request.tool_choice == "auto"


def test_calls_of_one_tool_have_a_limit_of_their_own() -> None:
    desk = started(FREE.replace("effect: irreversible}", "effect: irreversible, max_calls: 1}"))
    desk.replied(calls(("pay", {"n": 1}), ("pay", {"n": 2}), ("look", {})))
    desk.returned("paid")
    desk.returned("seen")
    first, second, third = desk.results()
    assert (first.is_error, third.is_error) == (False, False)
    assert second.text == "pay was not started: all 1 calls of it are used. Go on without it."


def test_what_a_cut_answer_has_used_is_counted() -> None:  # I8
    desk = started()
    desk.model_failed(model_failure("cut"))
    counters = desk.ledger.counters
    assert counters.tokens == 25
    assert counters.cost_usd == pytest.approx((20 * 3.0 + 5 * 15.0) / 1e6, abs=1e-6)
    assert (counters.turns, counters.reserved_usd) == (0, 0.0)


# --- answers ----------------------------------------------------------------------------------------------------------


def test_an_answer_cut_at_its_length_is_asked_to_go_on() -> None:
    desk = started()
    desk.replied(reply(TextBlock("and th"), finish=FinishReason.LENGTH))
    assert "cut off" in desk.texts(NodeKind.NOTICE)[0]
    desk.replied(says("done"))
    assert desk.stands() is TaskState.COMPLETED


def test_an_empty_answer_ends_the_task_and_poisons_no_later_request() -> None:
    desk = started()
    desk.hear("Also do that.")
    desk.replied(reply())
    assert isinstance(desk.under_way[desk.call], CallModel)
    assert [message.role for message in view(desk.ledger.path)] == ["user"]


@pytest.mark.parametrize(
    ("name", "arguments", "says_why"),
    [("nothing", {}, "there is no tool 'nothing'; the tools are: look"), ("look", None, "not a JSON object")],
)
def test_a_call_that_cannot_be_made_is_answered(name: str, arguments: None, says_why: str) -> None:  # R2.1, R2.2
    desk = started()
    desk.replied(calls((name, arguments)))
    assert desk.performed == []
    (result,) = desk.results()
    assert result.is_error
    assert says_why in result.text
    assert desk.run.state is RunState.MODEL


def test_a_persons_word_becomes_a_node_at_the_next_turn() -> None:
    desk = started()
    desk.hear("Mind the gap.")
    assert desk.ledger.delivered == {}
    desk.replied(says("done?"))
    assert desk.run.state is RunState.MODEL, "nobody is left unanswered"
    assert desk.texts(NodeKind.USER) == ["Do it.", "Mind the gap."]
    assert list(desk.ledger.delivered) == [1]


def test_a_word_that_nobody_heard_before_the_crash_is_delivered_once() -> None:  # R6.1
    desk = started()
    desk.replied(calls(("look", {})))
    desk.hear("Mind the gap.")
    desk.crash_and_lease()
    desk.returned("ok")
    assert desk.texts(NodeKind.USER) == ["Do it.", "Mind the gap."]
    desk.crash_and_lease()
    assert desk.texts(NodeKind.USER) == ["Do it.", "Mind the gap."]


def test_time_counts_only_while_something_is_under_way() -> None:  # R3.9
    desk = started()
    desk.now += 10
    desk.model_failed(model_failure("wait a little"))
    desk.waited()
    desk.now += 3
    desk.replied(calls(("look", {})))
    desk.now += 2
    desk.returned("ok")
    counters = desk.ledger.counters
    assert (counters.working_s, counters.wall_s) == (15.0, 20.0)


def test_a_clock_that_jumps_back_takes_nothing_away() -> None:  # F17
    desk = started()
    desk.now += 10
    desk.replied(calls(("look", {})))
    desk.now -= 3600
    desk.returned("ok")
    desk.now += 5
    desk.replied(says("done"))
    assert desk.ledger.counters.wall_s == 10.0


def test_a_failed_tool_is_told_and_the_model_goes_on() -> None:  # R2.1
    desk = started()
    desk.replied(calls(("note", {})))
    desk.failed(tool_failure("note", "failed"))
    (result,) = desk.results()
    assert result.text == (
        "note failed (execution_failed): no such file\n"
        "Retrying the same call makes sense: no.\n"
        "Next: Read the reason, check your assumption with another tool, then try again.\n"
        "Output until then:\npartial"
    )
    assert desk.run.state is RunState.MODEL


@pytest.mark.parametrize(
    ("budget", "used", "limit", "wanted"),
    [
        ("tool_calls", 90.0, 90.0, "45"),
        ("tool_calls", 15.0, 4.0, "13"),  # the limit was lowered below what is used
        ("wall_time", 7201.5, 7200.0, "3602s"),
        ("cost_usd", 5.01, 5.0, "2.51"),
    ],
)
def test_the_next_step_adds_enough_to_go_on(budget: str, used: float, limit: float, wanted: str) -> None:  # R3.8
    rule = RuleRef("budget", "default", "limits", "policies/budget.yaml", 3)
    more = asking._more(Exhausted(budget, used, limit, "", rule))
    assert more == wanted
