"""Trusted: nodes of a path that a task can go back to: whole turns, and the last one that was still good."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.effect import canonical_json
from harnessd.domain.session import Node, NodeKind, assistant_message, open_calls

Changes = Callable[[str], bool]  # whether the workspace had changed when this result came


@dataclass(frozen=True, slots=True)
class Act:
    """One call of a turn: what was asked, by its words, and how it ended; `ran`: it was carried out, well or not."""

    words: str
    tool: str
    failed: bool
    ran: bool
    changed: bool


@dataclass(slots=True)
class Turn:
    """One answer of the model with the results of its calls."""

    asked: Node
    acts: list[Act] = field(default_factory=list)
    last: Node | None = None  # its newest result

    @property
    def end(self) -> Node:
        """Where the turn is whole."""
        return self.last if self.last is not None else self.asked


def whole(path: Sequence[Node]) -> bool:
    """Whether a session can stand at the end of this path: no call of it waits for its result."""
    return not open_calls(path)


def last_good(path: Sequence[Node], changes: Changes) -> Node | None:
    """The last node that was still good; None where nothing since the person's last word says that anything is bad.

    Where a check fails that passed before: the turn in which it last passed. Else: before the failing streak and the
    changes that led to it. Where calls could not even be carried out, nothing says that what was written before them
    is bad: before the first of them. Where nothing failed: before the newest change.
    """
    turns = _turns(path, changes)
    failing = next((act for turn in reversed(turns) for act in reversed(turn.acts) if act.failed), None)
    if failing is None:
        newest = next((place for place in range(len(turns) - 1, -1, -1) if _changed(turns[place])), None)
        return None if newest is None else _before(path, turns[_change_before(turns, newest + 1)].asked)
    if not failing.ran:
        return _before(path, turns[_refused_since(turns, failing.tool)].asked)
    passed = next(
        (turn for turn in reversed(turns) for act in turn.acts if act.words == failing.words and not act.failed), None
    )
    if passed is not None:
        return passed.end
    first = next(place for place, turn in enumerate(turns) if _fails(turn, failing.words))
    return _before(path, turns[_change_before(turns, first)].asked)


def work_since(path: Sequence[Node], node: Node, changes: Changes) -> bool:
    """Whether the newest failure was a call that could not be carried out, and others changed files after this node."""
    turns = _turns(path, changes)
    failing = next((act for turn in reversed(turns) for act in reversed(turn.acts) if act.failed), None)
    if failing is None or failing.ran:
        return False
    after = path[path.index(node) + 1 :]
    return any(act.changed and not act.failed for turn in turns if turn.asked in after for act in turn.acts)


def before_steps(path: Sequence[Node], steps: int) -> Node | None:
    """The node before the newest so many turns; None where there are not so many."""
    asked = [node for node in path if node.kind is NodeKind.ASSISTANT]
    return _before(path, asked[-steps]) if 0 < steps <= len(asked) else None


def before_loop(path: Sequence[Node], turns: int) -> Node | None:
    """The node before the newest so many turns that asked for something."""
    asked = [node for node in path if node.kind is NodeKind.ASSISTANT and assistant_message(node).tool_uses]
    return _before(path, asked[max(0, len(asked) - turns)]) if asked else None


def _before(path: Sequence[Node], asked: Node) -> Node | None:
    """The node that stood before a turn."""
    return next((node for node in path if node.id == asked.parent), None)


def _fails(turn: Turn, words: str) -> bool:
    return any(act.failed and act.words == words for act in turn.acts)


def _refused_since(turns: Sequence[Turn], tool: str) -> int:
    """The first turn of the row in which no call of this tool could be carried out; turns without one are passed."""
    first = len(turns) - 1
    for place in range(len(turns) - 1, -1, -1):
        mine = [act for act in turns[place].acts if act.tool == tool]
        if any(not act.failed or act.ran for act in mine):
            break
        first = place if mine else first
    return first


def _changed(turn: Turn) -> bool:
    return any(act.changed for act in turn.acts)


def _change_before(turns: Sequence[Turn], place: int) -> int:
    """Where the changes began that led to the turn at `place`: turns that only looked may stand between."""
    change = place - 1
    while change >= 0 and not _changed(turns[change]):
        change -= 1
    if change < 0:
        return min(place, len(turns) - 1)
    while change > 0 and _changed(turns[change - 1]):
        change -= 1
    return change


def _turns(path: Sequence[Node], changes: Changes) -> list[Turn]:
    """The turns since the person's last word; an answer without calls is none."""
    turns: list[Turn] = []
    asked: Mapping[str, tuple[str, str]] = {}
    for node in path:
        if node.kind is NodeKind.USER and any(block.get("type") == "text" for block in node.payload["blocks"]):
            turns.clear()
        elif node.kind is NodeKind.ASSISTANT:
            uses = assistant_message(node).tool_uses
            asked = {use.id: (_words(use.name, use.arguments), use.name) for use in uses}
            if uses:
                turns.append(Turn(node))
        elif node.kind is NodeKind.TOOL_RESULT and turns:
            for block in node.payload["blocks"]:
                words, tool = asked.get(block["tool_use_id"], ("", ""))
                failed, ran = bool(block.get("is_error")), "error_class" not in node.payload.get("facts", {})
                turns[-1].acts.append(Act(words, tool, failed, ran, changes(node.id)))
            turns[-1].last = node
    return turns


def _words(tool: str, arguments: Mapping[str, Any] | None) -> str:
    return canonical_json([tool, dict(arguments or {})])
