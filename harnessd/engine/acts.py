"""Acts: the journal and the path by call and by key, kept as they grow, so that step 2,000 costs what step 20 did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.effect import Effect, canonical_json, plain
from harnessd.domain.messages import ToolUseBlock
from harnessd.domain.session import Node, NodeKind

# A model may use an id in many turns: a call is named by the answer that asked for it, too.
Call = tuple[str, str]
Asked = Callable[[Node], Sequence[ToolUseBlock]]


@dataclass(slots=True)
class Journal:
    """Ids of effects, by their call and by their key, in order."""

    of_call: dict[Call, list[str]] = field(default_factory=dict)
    of_key: dict[str, list[str]] = field(default_factory=dict)

    def add(self, effect: Effect) -> None:
        """One more row."""
        if effect.kind == "tool":
            self.of_call.setdefault((effect.node, effect.call_id), []).append(effect.id)
            if effect.key is not None:
                self.of_key.setdefault(effect.key, []).append(effect.id)


@dataclass(slots=True)
class Done:
    """The calls whose outcome stands on the path, how many of them were equal, and the state that tools keep there.

    `shown` counts those whose result the model is still shown, word for word; `lost` has, by act, the calls that the
    compactions took out of its sight, of the newest answer that had asked for them. `met` has the keys of those that
    were answered from the journal. `left` has the acts that went on in the background when their calls had a result,
    until a notice says that they are done.
    """

    calls: set[Call] = field(default_factory=set)
    notes: dict[str, Any] = field(default_factory=dict)
    equal: Counter[str] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)
    lost: dict[str, list[Call]] = field(default_factory=dict)
    met: dict[Call, str] = field(default_factory=dict)
    left: dict[Call, list[str]] = field(default_factory=dict)
    _in_sight: list[tuple[Call, str, str]] = field(default_factory=list)  # call, act, node of its result
    _uses: dict[Call, list[str]] = field(default_factory=dict)
    _asked: str = ""
    _read: int = 0
    _last: str = ""

    def follow(self, path: Sequence[Node], asked: Asked) -> Done:
        """Read what the path has grown by; all of it again where it is another one."""
        if self._read > len(path) or (self._read and path[self._read - 1].id != self._last):
            self._forget()  # a branch: nothing of the old path counts
        for node in path[self._read :] if self._read < len(path) else ():
            if node.kind is NodeKind.ASSISTANT:
                self._asked, self._uses = node.id, {}
                for use in asked(node):
                    if use.arguments is not None:
                        self._uses.setdefault((node.id, use.id), []).append(act(use))
            elif node.kind is NodeKind.TOOL_RESULT:
                self._heard(node)
            elif node.kind is NodeKind.NOTICE:
                self._told(node)
            elif node.kind is NodeKind.COMPACTION:
                self._compacted(node, path)
        self._read = len(path)
        self._last = path[-1].id if path else ""
        return self

    def _heard(self, node: Node) -> None:
        facts = node.payload.get("facts", {})
        if "note" in facts:
            self.notes[facts["tool"]] = facts["note"]
        if facts.get("state") == "done" and not facts.get("keeps_key"):
            for block in node.payload["blocks"]:
                call = (self._asked, block["tool_use_id"])
                self._add(call, node.id, self._uses.get(call, ()))
                if "met" in facts:
                    self.met[call] = facts["met"]
        elif facts.get("state") == "unknown":
            for block in node.payload["blocks"]:
                call = (self._asked, block["tool_use_id"])
                self.left[call] = list(self._uses.get(call, ()))

    def _told(self, node: Node) -> None:
        """What went on in the background is done in the model's sight once it was told so."""
        for asked, use in node.payload.get("facts", {}).get("done", ()):
            self._add((asked, use), node.id, self.left.pop((asked, use), ()))

    def _compacted(self, node: Node, path: Sequence[Node]) -> None:
        """What the model is no longer shown is out of its sight: it may plan it again (R3.13)."""
        kept, first = set(), node.payload.get("facts", {}).get("kept_from")
        for one in reversed(path[: path.index(node)] if first is not None else ()):
            kept.add(one.id)
            if one.id == first:
                break
        for call, act_, result in [row for row in self._in_sight if row[2] not in kept]:
            self._in_sight.remove((call, act_, result))
            self.shown[act_] -= 1
            together = self.lost.get(act_, [])
            self.lost[act_] = [*together, call] if together and together[-1][0] == call[0] else [call]

    def _forget(self) -> None:
        self.calls, self.equal, self.notes, self._uses = set(), Counter(), {}, {}
        self.shown, self.lost, self.met, self.left, self._in_sight = Counter(), {}, {}, {}, []
        self._asked, self._read = "", 0

    def _add(self, call: Call, result: str, acts: Sequence[str]) -> None:
        if call not in self.calls:
            self.calls.add(call)
            self.equal.update(acts)
            self.shown.update(acts)
            self._in_sight += [(call, act_, result) for act_ in acts]


def act(use: ToolUseBlock) -> str:
    """What makes two calls equal: the tool and its arguments."""
    return canonical_json([use.name, plain(dict(use.arguments or {}))])
