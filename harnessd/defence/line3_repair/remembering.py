"""Remembering: a view that was legal is not built again from its beginning at every call.

What stands before the newest answer, and needed no repair, is as legal as it was. Only what came since is looked at,
and whether it touches what was before: an id that is used again, a result for an older call. Then all is built anew.
A call late in a long session costs what is new, like one at its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harnessd.defence.line3_repair.known import EffectOf, no_journal
from harnessd.defence.line3_repair.transcript import Receiver
from harnessd.defence.line3_repair.view import View, view_of
from harnessd.domain.messages import Message, TextBlock, ToolResultBlock, ToolUseBlock
from harnessd.domain.session import Node, NodeKind, user_payload

# Stands for what is remembered: the talk before, which ends with the user's side.
_BEFORE = Node("", None, NodeKind.USER, user_payload("before"), 0.0)
_SAID = Message("user", (TextBlock("before"),))


@dataclass(slots=True)
class Memory:
    """The legal beginning of the last view: its nodes, its messages, the ids of its calls, and for whom it is."""

    whose: tuple[Receiver, str] | None = None
    nodes: Sequence[Node] = ()
    messages: tuple[Message, ...] = ()
    ids: set[str] = field(default_factory=set)

    def view(
        self,
        nodes: Sequence[Node],
        to: Receiver,
        model: str = "",
        effects: EffectOf = no_journal,
        now: float | None = None,
    ) -> View:
        """What `view_of` gives, from what is remembered and what is new; the same messages, always."""
        found = self._continued(nodes, to, model, effects, now) or view_of(nodes, to, model, effects, now)
        self._remember(nodes, to, model, found)
        return found

    def _continued(
        self, nodes: Sequence[Node], to: Receiver, model: str, effects: EffectOf, now: float | None
    ) -> View | None:
        count = len(self.nodes)
        if self.whose != (to, model) or not 0 < count < len(nodes) or nodes[count].kind is not NodeKind.ASSISTANT:
            return None
        if not all(one is other or one == other for one, other in zip(self.nodes, nodes, strict=False)):
            return None
        fresh = view_of((_BEFORE, *nodes[count:]), to, model, effects, now)
        if fresh.findings or fresh.messages[:1] != (_SAID,) or _touches(fresh.messages, self.ids):
            return None
        return View((*self.messages, *fresh.messages[1:]))

    def _remember(self, nodes: Sequence[Node], to: Receiver, model: str, found: View) -> None:
        # A template that wants turns looks back over calls: its views are built whole.
        if found.findings or to.alternates:
            self.whose, self.nodes, self.messages, self.ids = None, (), (), set()
            return
        last = max((place for place, node in enumerate(nodes) if _speaks(node)), default=0)
        answers = [place for place, message in enumerate(found.messages) if message.role == "assistant"]
        if not answers or not last:
            return
        before = found.messages[: answers[-1]]
        known = self.ids if self.whose == (to, model) and before[: len(self.messages)] == self.messages else set()
        fresh = before[len(self.messages) :] if known else before
        self.whose, self.nodes, self.messages = (to, model), tuple(nodes[:last]), before
        self.ids = known | {block.id for message in fresh for block in message.tool_uses}


def _speaks(node: Node) -> bool:
    """An answer with something in it: an empty one is no message."""
    return node.kind is NodeKind.ASSISTANT and bool(node.payload.get("blocks"))


def _touches(messages: Sequence[Message], ids: set[str]) -> bool:
    """Whether something new has to do with what is remembered."""
    for message in messages:
        for block in message.blocks:
            if isinstance(block, ToolUseBlock) and block.id in ids:
                return True
            if isinstance(block, ToolResultBlock) and block.tool_use_id in ids:
                return True
    return False
