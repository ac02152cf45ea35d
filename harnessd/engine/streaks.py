"""Streaks: what the path tells of repetition: turns for the loop detectors, tallies for escalation.

Only result nodes are read: each carries digests of what was asked and of what came, so that a long session costs no
more than its last turns, and a restored run counts as the unbroken one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harnessd.defence.incident import Tallies
from harnessd.domain.failure import ErrorClass
from harnessd.domain.session import Node, NodeKind
from harnessd.engine.situation import PendingCall, Situation
from harnessd.policy.loop import Call, LoopPolicy, Turn, fingerprint, identity

# What was not done says nothing of the model's skill.
_NOT_DONE = ("not_started", "cancelled")
_FEWEST_TURNS = 50


def digest(text: str) -> str:
    """A text's digest in letters alone: the detectors take numbers for noise."""
    return "".join(chr(97 + byte % 26) for byte in hashlib.sha256(text.encode("utf-8", "replace")).digest()[:20])


def marks(call: PendingCall, text: str, *, polling: bool, reason: str | None) -> dict[str, Any]:
    """What a result node keeps for later: digests of the call, of its result and of an error's reason."""
    return {
        "place": call.place,
        "asked": _asked_of(call),
        "print": digest(fingerprint(text)),
        **({"reason": digest(fingerprint(reason))} if reason is not None else {}),
        **({"polling": True} if polling else {}),
    }


def number(node: Node) -> int:
    """The place of a node in the order of creation, over all branches."""
    return int(node.id[1:])


def turns_of(path: Sequence[Node], policy: LoopPolicy) -> list[tuple[int, Turn]]:
    """The newest turns, oldest first, each with the number of its assistant node; as many as a detector may need."""
    shape = policy.shape
    longest = max(shape.repeat_call or 0, 4 * (shape.alternate or 0), shape.same_error or 0, shape.no_progress or 0)
    found: list[tuple[int, Turn]] = []
    results: list[Node] = []
    for node in reversed(path):
        if node.kind is NodeKind.TOOL_RESULT:
            results.append(node)
        elif node.kind is NodeKind.ASSISTANT:
            found.append((number(node), _turn(results[::-1])))
            results = []
            if len(found) >= max(_FEWEST_TURNS, 3 * longest):
                break
    return found[::-1]


def _turn(results: list[Node]) -> Turn:
    # Results of parallel calls arrive in any order, and no detector shall depend on it.
    results.sort(key=lambda node: node.payload.get("facts", {}).get("place", 0))
    facts = [node.payload.get("facts", {}) for node in results]
    return Turn(
        tuple(_call(node, its) for node, its in zip(results, facts, strict=True)),
        any("changed" in its for its in facts),
    )


def _call(node: Node, facts: dict[str, Any]) -> Call:
    return Call(
        tool=facts.get("tool", ""),
        arguments={"asked": facts.get("asked", node.id)},
        result=facts.get("print", ""),
        error_class=facts.get("error_class"),
        reason=facts.get("reason", ""),
        polling=facts.get("polling", False),
        failed=facts.get("failed", False),
    )


def progressed(turns: Sequence[Turn]) -> bool:
    """The newest turn brought something new, compared with those before it."""
    seen = {(_asked(call), call.result) for turn in turns[:-1] for call in turn.calls}
    newest = turns[-1]
    return newest.changed or any(
        call.polling or (call.error_class is None and (_asked(call), call.result) not in seen) for call in newest.calls
    )


def _asked(call: Call) -> str:
    return f"{call.tool} {call.arguments['asked']}"


def tool_tallies(s: Situation, call: PendingCall, error_class: ErrorClass) -> Tallies:
    """How often a call of this sort failed in a row, this time included.

    What counts are turns: calls of one reply were asked for before the model saw the first of them fail.
    `consecutive` looks at all tools and one class, `failed_corrections` at one tool and any class.
    """
    since, now = s.counters.tallies_from, s.asked_node
    alike = {now} | set(_streak(s, since, lambda its: its.get("error_class") == error_class.value))
    tool = call.use.name
    failing = {now} | set(
        _streak(s, since, lambda its: None if its.get("tool") != tool else its.get("error_class") is not None)
    )
    return Tallies(len(alike), len(failing) - 1, recoveries(s))


def failures_of(s: Situation, call: PendingCall) -> int:
    """How many turns had this very call fail, since it last did not, the newest result included."""
    asked = _asked_of(call)
    failing = _streak(s, s.counters.tallies_from, lambda its: None if its.get("asked") != asked else _failed(its))
    return len(set(failing))


def corrections_of(s: Situation, call: PendingCall) -> int:
    """How often something else changed the workspace, and then this very call failed with the same words as before.

    A failure that says something else is progress, as in tests written before their code; without a change in between
    nothing was corrected, and what the call itself writes is no correction.
    """
    asked, newest, corrections, changed = _asked_of(call), None, 0, False
    for node in reversed(s.path):
        if number(node) <= s.counters.tallies_from or node.kind is NodeKind.USER:
            break
        facts = node.payload.get("facts", {})
        if node.kind is not NodeKind.TOOL_RESULT or facts.get("state") in _NOT_DONE:
            continue
        if facts.get("asked") != asked:
            changed = changed or node.id in s.look.changed
            continue
        if not _failed(facts) or facts.get("print") != (newest or facts.get("print")):
            break
        corrections += changed and newest is not None
        newest, changed = facts.get("print"), False
    return corrections


def _asked_of(call: PendingCall) -> str:
    return digest(identity(call.name, call.use.arguments if call.use.arguments is not None else call.use.raw))


def _failed(facts: Mapping[str, Any]) -> bool:
    return bool(facts.get("failed") or facts.get("error_class"))


def recoveries(s: Situation) -> int:
    """How often the task was taken up again after crashes without a step since."""
    return max(0, s.brief.recoveries - s.counters.recoveries_seen)


def _streak(s: Situation, since: int, counts: Any) -> Iterator[str]:
    """The assistant nodes behind the newest results that count, until one that does not; None: looked past."""
    met: list[dict[str, Any]] = []
    for node in reversed(s.path):
        if number(node) <= since:
            return
        if node.kind is NodeKind.TOOL_RESULT:
            met.append(node.payload.get("facts", {}))
        elif node.kind is NodeKind.ASSISTANT:
            for facts in met:
                verdict = None if facts.get("state") in _NOT_DONE else counts(facts)
                if verdict is False:
                    return
                if verdict:
                    yield node.id
            met = []
