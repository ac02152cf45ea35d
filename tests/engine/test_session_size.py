"""A session that grows: told once on the way, ended at its bound with words of its own, whatever the budgets say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harnessd.domain.session import NodeKind, letters
from harnessd.domain.task import Counters, StopReason
from harnessd.policy import budget as budget_policy
from harnessd.policy.budget import SESSION_BYTES, SESSION_NODES, session_full
from tests.engine.desk import Desk
from tests.engine.scenery import FREE, NO_LIMITS, calls, policies, says


def grown(size: int) -> Desk:
    """A run that waits for its first answer, in a session that has grown so far."""
    desk = Desk(policies(FREE, **NO_LIMITS))
    desk.lease()
    desk.ledger.counters = replace(desk.ledger.counters, session_bytes=size)
    desk.crash_and_lease()
    return desk


# G19, R3.9
@pytest.mark.parametrize(
    ("nodes", "size", "full"),
    [
        (SESSION_NODES[1] - 1, 0, False),
        (SESSION_NODES[1], 0, True),
        (0, SESSION_BYTES[1] - 1, False),
        (0, SESSION_BYTES[1], True),
    ],
)
def test_a_session_is_full_at_its_bound(nodes: int, size: int, full: bool) -> None:
    assert session_full(nodes, size) is full
    verdict = budget_policy.judge(policies().budget, {"session_nodes": nodes, "session_bytes": size}, ())
    assert (verdict.exhausted is not None) is full


# G19
@pytest.mark.parametrize("used", [{"session_nodes": SESSION_NODES[0]}, {"session_bytes": SESSION_BYTES[0]}])
def test_it_is_warned_of_once(used: dict[str, float]) -> None:
    verdict = budget_policy.judge(policies().budget, used, ())
    (warning,) = verdict.warnings
    assert warning.budget == "session_size"
    assert "51200" in warning.sentence
    assert "50 MB" in warning.sentence
    assert budget_policy.judge(policies().budget, used, warning.marks).warnings == ()
    little = {name: amount - 1 for name, amount in used.items()}
    assert budget_policy.judge(policies().budget, little, ()).warnings == ()


def test_the_bytes_of_a_session_are_those_of_its_text() -> None:
    text = "grün " * 100
    assert letters({"blocks": [{"type": "text", "text": text}]}) >= len(text.encode())
    assert letters({"a": [1, None, True, 2.5]}) < 100
    assert Counters().session_bytes == 0


def test_the_agent_is_told_in_the_newest_result() -> None:  # G19
    desk = grown(SESSION_BYTES[0])
    desk.replied(calls(("look", {})))
    desk.returned("seen")
    assert "it ends at 51200 nodes or 50 MB" in desk.results()[-1].text
    assert [one.data["budget"] for one in desk.ledger.events if one.type == "budget_warning"] == ["session_size"]
    desk.replied(calls(("look", {"again": True}), turn="t2"))
    desk.returned("seen again")
    assert "50 MB" not in desk.results()[-1].text


def test_it_ends_with_a_summing_up_and_words_of_its_own() -> None:  # G19, R3.8
    desk = grown(SESSION_BYTES[1])
    assert desk.requests[-1].request.tool_choice == "none"
    assert "50 MB" in desk.texts(NodeKind.NOTICE)[-1]
    desk.replied(says("half is done"))
    assert desk.ledger.reason is StopReason.BUDGET_EXHAUSTED
    assert "session_size" in desk.ledger.last_move.sentence
    assert "new task" in desk.ledger.last_move.sentence
    assert [step[1] for step in desk.ledger.last_move.next_steps] == ["show", "export", "tree"]
