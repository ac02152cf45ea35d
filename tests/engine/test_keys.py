"""Keys: two wanted equal acts both run; one act planned again is recognised (R3.13, the occurrence rule)."""

from __future__ import annotations

import pytest

from harnessd.domain.effect import EffectState, effect_key
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Verb
from harnessd.engine.acts import Done, act
from harnessd.engine.protocol import HandBack
from harnessd.engine.situation import asked_calls
from harnessd.engine.tool_calls.outcomes import GIVEN_AGAIN
from tests.engine.desk import Desk
from tests.engine.scenery import FREE, NO_LIMITS, TOOLS, calls, policies, says, tool_failure, use

INVOICE = {"to": "ACME", "amount": 100, "invoice": "INV-7"}


def at_work(text: str = FREE) -> Desk:
    """A run that waits for its first answer."""
    desk = Desk(policies(text, **NO_LIMITS))
    desk.lease()
    return desk


def pay_again(desk: Desk, turn: str = "9.") -> None:
    """The model asks for the same payment under a new call id."""
    desk.replied(calls(("pay", INVOICE), turn=turn))


def test_two_wanted_equal_acts_both_run_under_their_own_keys() -> None:  # g06
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("paid")
    pay_again(desk)
    desk.returned("paid again")
    first, second = (act.key for act in desk.performed)
    assert first != second
    assert [first, second] == [effect_key("t1", "tool/pay", INVOICE, n) for n in (1, 2)]


def test_equal_calls_of_one_reply_have_their_own_keys() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE), ("pay", {"other": 1}), ("pay", INVOICE)))
    for _ in range(3):
        desk.returned("paid")
    assert len({act.key for act in desk.performed}) == 3


def test_the_order_of_arguments_makes_no_other_act() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "failed"))
    desk.replied(calls(("pay", dict(reversed(INVOICE.items()))), turn="9."))
    assert len({act.key for act in desk.performed}) == 1


@pytest.mark.parametrize(
    "spelling",
    [
        {"invoice": "INV-7", "amount": 100.0, "to": "ACME"},
        {"invoice": " INV-7", "amount": 1e2, "to": "ACME\n"},
        {**INVOICE, "note": None},
    ],
)
def test_another_spelling_makes_no_other_act(spelling: dict[str, object]) -> None:  # g05
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "failed"))
    desk.replied(calls(("pay", spelling), turn="9."))
    assert len({act.key for act in desk.performed}) == 1


@pytest.mark.parametrize(
    "other", [{**INVOICE, "amount": 100.5}, {**INVOICE, "amount": "1e2"}, {**INVOICE, "amount": True}]
)
def test_what_means_another_thing_is_another_act(other: dict[str, object]) -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "failed"))
    desk.replied(calls(("pay", other), turn="9."))
    assert len({act.key for act in desk.performed}) == 2


def test_an_act_that_failed_by_its_own_word_is_asked_for_again_under_its_key() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("no answer from the bank", is_error=True, exit_code=1)
    pay_again(desk)
    assert [act.key for act in desk.performed] == [desk.performed[0].key] * 2


def test_an_act_that_its_receiver_refused_is_over_and_asked_for_anew() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("HTTP 402: no money", is_error=True, facts={"status": 402, "refused": True})
    pay_again(desk)
    assert len({act.key for act in desk.performed}) == 2


def test_a_program_that_was_ended_by_a_signal_told_nothing() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("[exit code 137]", is_error=True, exit_code=137)
    assert desk.last == HandBack("waiting")
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN


def test_what_goes_on_in_the_background_is_not_done_and_its_twin_is_held() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.returned("goes on as job e2", job="e2")
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
    pay_again(desk)
    assert desk.last == HandBack("waiting")
    assert len(desk.performed) == 1


def test_what_a_compaction_took_out_of_sight_is_remembered_by_its_newest_answer() -> None:
    desk = at_work()
    for turn in ("1.", "2."):
        desk.replied(calls(("pay", INVOICE), ("pay", INVOICE), turn=turn))
        for _ in range(2):
            desk.returned("paid")
    path = list(desk.ledger.path)
    (asked, *_), wanted = [n for n in reversed(path) if n.kind is NodeKind.ASSISTANT], act(use("x", "pay", INVOICE))
    smaller = Node("n90", path[-1].id, NodeKind.COMPACTION, {"blocks": [], "facts": {"kept_from": None}}, 0.0)
    done = Done().follow([*path, smaller], asked_calls)
    assert (done.equal[wanted], done.shown[wanted]) == (4, 0)
    assert done.lost[wanted] == [(asked.id, "c2.0"), (asked.id, "c2.1")]
    kept = Node("n90", path[-1].id, NodeKind.COMPACTION, {"blocks": [], "facts": {"kept_from": asked.id}}, 0.0)
    done = Done().follow([*path, kept], asked_calls)
    assert done.shown[wanted] == 2
    assert len(done.lost[wanted]) == 2


def test_only_acts_that_a_repeat_matters_for_have_keys() -> None:
    desk = at_work()
    desk.replied(calls(("look", {}), ("note", {}), ("put", {}), ("pay", {})))
    for _ in range(4):
        desk.returned("ok")
    assert [act.key is not None for act in desk.performed] == [False, False, True, True]


def test_a_second_try_keeps_the_key() -> None:
    desk = at_work()
    desk.replied(calls(("put", INVOICE)))
    desk.failed(tool_failure("put", "down"))
    desk.waited()
    assert [act.key for act in desk.performed] == [desk.performed[0].key] * 2


def test_a_failed_act_planned_again_meets_the_old_key() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "failed"))  # it never began
    pay_again(desk)
    assert [act.key for act in desk.performed] == [desk.performed[0].key] * 2


def test_call_ids_that_come_again_in_later_turns_confuse_nothing() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "failed"))
    desk.replied(calls(("look", {})))  # the same id c0
    desk.returned("seen")
    desk.replied(calls(("pay", INVOICE)))
    assert [act.key for act in desk.performed if act.key] == [effect_key("t1", "tool/pay", INVOICE, 1)] * 2


def test_a_number_that_a_failed_twin_left_open_does_not_hit_the_key_of_one_that_is_done() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE), ("pay", INVOICE)))
    desk.failed(tool_failure("pay", "failed"))
    desk.returned("paid")
    pay_again(desk)
    done = desk.performed[1].key
    assert desk.performed[2].key not in (None, done)


# --- the outcome that nobody saw --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["slow", "failed"])
def test_an_act_that_may_have_happened_is_a_persons_to_settle(kind: str) -> None:  # g03
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", kind, begun=True))
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
    assert desk.last == HandBack("waiting")
    assert len(desk.performed) == 1
    (question,) = desk.ledger.asked
    assert question.data["key"] == desk.performed[0].key
    assert question.data["effect"] == "e2"


def test_an_act_that_was_done_is_not_made_again() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "slow", begun=True))
    desk.ledger.answer(desk.ledger.asked[0].id, "done")
    desk.lease()
    assert len(desk.performed) == 1
    assert "was done" in desk.results()[-1].text
    pay_again(desk)
    assert len(desk.performed) == 2, "one more payment is a new act"
    assert desk.performed[1].key == effect_key("t1", "tool/pay", INVOICE, 2)


def test_an_act_that_was_not_done_is_made_with_the_old_key() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.failed(tool_failure("pay", "slow", begun=True))
    desk.ledger.answer(desk.ledger.asked[0].id, "not-done")
    desk.lease()
    assert [act.key for act in desk.performed] == [desk.performed[0].key] * 2
    desk.returned("paid")
    pay_again(desk)
    assert desk.performed[2].key == effect_key("t1", "tool/pay", INVOICE, 2)


def test_a_cancelled_payment_is_held_after_resume() -> None:  # R3.13
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.cancel()
    desk.failed(tool_failure("pay", "cancelled", begun=True))
    desk.return_to_work()
    pay_again(desk)
    assert desk.last == HandBack("waiting")
    assert len(desk.performed) == 1


def test_a_payment_whose_outcome_was_given_up_is_held_after_resume() -> None:
    desk = at_work()
    desk.replied(calls(("pay", INVOICE)))
    desk.crash_and_lease()
    desk.ledger.answer(desk.ledger.asked[0].id, "stop")
    desk.lease()
    desk.return_to_work()
    pay_again(desk)
    assert desk.last == HandBack("waiting")
    assert len(desk.performed) == 1


@pytest.mark.parametrize("tool", ["pay", "put"])
def test_an_act_done_on_a_branch_that_was_left_is_answered_from_the_journal(tool: str) -> None:
    desk = at_work()
    desk.replied(calls((tool, INVOICE)))
    desk.returned("paid: receipt 7", note={"receipt": 7})
    desk.replied(says("done"))
    start = next(node for node in desk.ledger.path if node.kind is NodeKind.USER)
    desk.ledger.pointer = start.id
    desk.return_to_work(Verb.RETRY)
    desk.replied(calls((tool, INVOICE), turn="9."))
    assert len(desk.performed) == 1
    assert desk.results()[-1].text == f"paid: receipt 7\n{GIVEN_AGAIN}"
    facts = desk.ledger.path[-1].payload["facts"]
    assert (facts["tool"], facts["state"], facts["note"]) == (tool, "done", {"receipt": 7})
    assert desk.ledger.counters.tool_calls == 1


def test_a_cancelled_idempotent_act_is_sent_again_with_its_key() -> None:
    desk = at_work()
    desk.replied(calls(("put", INVOICE)))
    desk.cancel()
    desk.failed(tool_failure("put", "cancelled", begun=True))
    desk.return_to_work()
    desk.replied(calls(("put", INVOICE), turn="9."))
    assert [act.key for act in desk.performed] == [desk.performed[0].key] * 2


def test_a_payment_that_needs_approval_and_was_begun_asks_for_its_outcome_only() -> None:
    desk = at_work(TOOLS)
    desk.replied(calls(("pay", INVOICE)))
    desk.ledger.answer(desk.ledger.asked[0].id, "allow")
    desk.lease()
    desk.crash_and_lease()
    assert [question.kind for question in desk.ledger.asked] == ["outcome"]
    desk.ledger.answer(desk.ledger.asked[0].id, "not-done")
    desk.lease()
    assert len(desk.performed) == 2


def test_a_key_that_its_receiver_has_forgotten_is_not_sent_again() -> None:  # policies.md: tools.rules.key_life
    desk = at_work()
    desk.replied(calls(("put", INVOICE)))
    desk.crash()
    desk.now += 86_401
    desk.lease()
    assert [act.tool for act in desk.performed] == ["put"]
    assert desk.last == HandBack("waiting")
    assert desk.ledger.effects["e2"].state is EffectState.UNKNOWN
