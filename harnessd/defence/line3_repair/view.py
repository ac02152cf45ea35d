"""View: what a model is shown of a path, legal for its receiver; the nodes themselves never change (R4.7).

Built for every model call from the same nodes in the same way, so that what was sent once leaves byte-identical again
and the service's prompt cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harnessd.defence.line3_repair.carrying import carried, messages_of
from harnessd.defence.line3_repair.known import EffectOf, known_of, no_journal
from harnessd.defence.line3_repair.stale import redacted, stale
from harnessd.defence.line3_repair.transcript import Known, Receiver, legal
from harnessd.defence.line3_repair.transcript.turns import Notes, Part, Turn
from harnessd.domain.messages import Block, Message, ToolResultBlock
from harnessd.domain.session import Node, NodeKind, assistant_message, blocks_of


@dataclass(frozen=True, slots=True)
class Finding:
    """One repair: what was wrong, in which message of the view (from 0) and of which node, in a sentence."""

    code: str
    index: int
    node: str
    sentence: str

    @property
    def mark(self) -> str:
        """By which it is told that it was told already."""
        return f"{self.code}:{self.node}"


@dataclass(frozen=True, slots=True)
class View:
    """A legal view, and what was done to make it so."""

    messages: tuple[Message, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class _Shown:
    """The messages of a path as they stand, each with the node it comes from."""

    messages: list[Message] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def view_of(
    nodes: Sequence[Node],
    to: Receiver,
    model: str = "",
    effects: EffectOf = no_journal,
    now: float | None = None,
) -> View:
    """The view of nodes in order (a path, or what a compaction left of it) for a receiver.

    `model` is the service's own name of the model: only it gets its thoughts back; empty: whoever they are from. `now`
    in seconds since the Unix epoch: a confirmation that waited too long is not shown as one (`stale`).
    """
    shown = _shown(nodes, now)
    found = legal_view(shown.messages, to, model, effects, shown.nodes)
    return View(found.messages, (*shown.findings, *found.findings))


def legal_view(
    messages: Sequence[Message],
    to: Receiver,
    model: str = "",
    effects: EffectOf = no_journal,
    nodes: Sequence[str] = (),
) -> View:
    """The same for messages; `nodes` names where each comes from."""
    notes = Notes()
    before = [carried(message, place, to, model, notes) for place, message in enumerate(messages)]

    def journal(turn: Turn, call: Part) -> Known:
        return known_of(effects(_node(nodes, turn.place), call.id), call.name, unreadable=call.invalid)

    turns = legal([turn for one in before for turn in one.turns], to, notes, journal)
    findings = tuple(Finding(n.code, n.index, _node(nodes, n.index), n.message) for n in notes.found)
    return View(messages_of(turns, before, to, model), findings)


def _node(nodes: Sequence[str], place: int | None) -> str:
    return nodes[place] if place is not None and place < len(nodes) else ""


def _shown(nodes: Sequence[Node], now: float | None) -> _Shown:
    """Neighbours of the user's side are one message: results first, in the order of their calls.

    Results of parallel calls arrive in any order; every service wants them together, right after the calls.
    """
    shown = _Shown()
    side: list[Block] = []
    order: dict[str, int] = {}
    first = ""
    for node in _fresh(nodes, now, shown):
        try:
            found: Message | tuple[Block, ...] = (
                assistant_message(node) if node.kind is NodeKind.ASSISTANT else blocks_of(node)
            )
        except (KeyError, ValueError, TypeError, AttributeError):
            sentence = "a node that cannot be read is left out of the view"
            shown.findings.append(Finding("unreadable_node", len(shown.messages), node.id, sentence))
            continue
        if not isinstance(found, Message):
            first = first or node.id
            side.extend(found)
            continue
        if not found.blocks:
            continue  # an answer without anything in it is history, but no service takes it back
        _close(shown, side, order, first)
        side, first = [], ""
        order = {use.id: place for place, use in enumerate(found.tool_uses)}
        shown.messages.append(found)
        shown.nodes.append(node.id)
    _close(shown, side, order, first)
    return shown


def _fresh(nodes: Sequence[Node], now: float | None, shown: _Shown) -> Sequence[Node]:
    """The nodes; confirmations that waited too long stand as what they are."""
    try:
        places = stale(nodes, now)
    except (KeyError, ValueError, TypeError, AttributeError):
        return nodes  # one of them cannot be read, and is told of where it stands
    for place in sorted(places):
        sentence = "a confirmation that waited more than a minute is not shown as one"
        shown.findings.append(Finding("stale_confirmation", place, nodes[place].id, sentence))
    return [redacted(node) if place in places else node for place, node in enumerate(nodes)] if places else nodes


def _close(shown: _Shown, side: list[Block], order: dict[str, int], first: str) -> None:
    if not side:
        return
    results = [block for block in side if isinstance(block, ToolResultBlock)]
    results.sort(key=lambda block: order.get(block.tool_use_id, len(order)))
    others = [block for block in side if not isinstance(block, ToolResultBlock)]
    shown.messages.append(Message("user", (*results, *others)))
    shown.nodes.append(first)
