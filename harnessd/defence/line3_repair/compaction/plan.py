"""Plan: what stands word for word after a compaction, what is squeezed, and what a summary has to stand for (R4.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harnessd.defence.line3_repair.compaction.clip import clip
from harnessd.defence.line3_repair.compaction.standing import Replaced, is_squeezed, replaced_by, squeezed
from harnessd.domain.session import Node, NodeKind
from harnessd.policy.compaction import CompactionPolicy

# How hard it is tried: fewer turns word for word, then their results squeezed, then all but the newest exchange gone.
ORDINARY, TIGHT, HARD, LAST = range(4)
# Shorter results are not worth a reference to a file.
_SQUEEZE_FLOOR_BYTES = 256
_DUPLICATE_FLOOR = 200
_EXCERPT_BYTES = 400
_LEAST_SUMMARY = 200


@dataclass(frozen=True, slots=True)
class Scene:
    """What a plan is made from.

    Attributes:
        nodes: what the model is shown now (`standing`).
        size_of: tokens of a node, measure: of a text; both in the service's own measure where that is known.
        overhead: tokens of system prompt and tools, which no compaction can touch.
        window: tokens that a view may use at all.
        size: tokens of the whole request now.
        readable: the agent has the tool that reads what was kept as a file.
    """

    nodes: Sequence[Node]
    size_of: Callable[[Node], int]
    measure: Callable[[str], int]
    overhead: int
    window: int
    size: int
    policy: CompactionPolicy
    readable: bool = True

    @property
    def before(self) -> Replaced:
        """What the newest compaction said."""
        return replaced_by(self.nodes[0]) if self.compacted else Replaced()

    @property
    def compacted(self) -> bool:
        """There was a compaction before."""
        return bool(self.nodes) and self.nodes[0].kind is NodeKind.COMPACTION

    @property
    def room(self) -> int:
        """Tokens beside the fixed overhead."""
        return max(1, self.window - self.overhead)

    @property
    def goal(self) -> int:
        """A size with some way to go until the first tier."""
        return int(self.policy.shape.tiers.compact * self.window * 0.85)


@dataclass(frozen=True, slots=True)
class Plan:
    """A smaller history. `files` are whole texts that are kept outside of the view, by name; `after` in tokens."""

    level: int
    dropped: tuple[Node, ...]
    kept: tuple[Node, ...]
    squeezed: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, str], ...] = ()
    after: int = 0

    @property
    def kept_from(self) -> str | None:
        """The first node that stands."""
        return self.kept[0].id if self.kept else None


def kept_as(node: Node) -> str:
    """The name under which a whole result is kept; the tool `job_output` reads it by this name."""
    return f"kept-{node.id}"


def squeeze(scene: Scene) -> Plan | None:
    """The cheap steps: old results into files, duplicates dropped. None where that does not bring enough."""
    shape = scene.policy.shape
    body = list(scene.nodes[1:] if scene.compacted else scene.nodes)
    start = _turn_start(body, shape.keep_turns)
    done = _Squeezing(scene, shape.squeeze_over)
    shown = [done.result(node) for node in _deduplicated(body[:start], body[start:], done)] + body[start:]
    after = scene.size - sum(map(scene.size_of, body)) + sum(map(scene.size_of, shown))
    enough = scene.size - after >= 2 * shape.gain_at_least * scene.size and after <= scene.goal
    return Plan(ORDINARY, (), tuple(shown), done.texts, tuple(done.files), after) if enough else None


def plan(scene: Scene, first: int = ORDINARY, last: int = LAST) -> Plan | None:
    """The gentlest plan that reaches the goal; else the one that frees most. None where none frees enough."""
    best: Plan | None = None
    for level in range(first, last + 1):
        found = _at(scene, level)
        if best is None or found.after < best.after:
            best = found
        if found.after <= scene.goal:
            break
    least = scene.policy.shape.gain_at_least * scene.size
    return best if best is not None and scene.size - best.after >= least else None


def shares(scene: Scene, level: int) -> Mapping[str, int]:
    """Tokens that each part of the words in front may take: summary, requests, receipts, notes, newest exchange."""
    parts = (0.25, 0.25, 0.15, 0.08, 0.0) if level < LAST else (0.10, 0.20, 0.08, 0.05, 0.20)
    names = ("summary", "requests", "receipts", "notes", "exchange")
    tokens = {name: int(part * scene.room) for name, part in zip(names, parts, strict=True)}
    tokens["summary"] = max(1, min(tokens["summary"], scene.policy.shape.summary.max_tokens))
    return tokens


def _at(scene: Scene, level: int) -> Plan:
    shape = scene.policy.shape
    body = list(scene.nodes[1:] if scene.compacted else scene.nodes)
    turns = (shape.keep_turns, -(-shape.keep_turns // 2), 1, 0)[level]
    start = _turn_start(body, turns)
    dropped, kept = body[:start], body[start:]
    over = (None, min(shape.squeeze_over, 1024), _SQUEEZE_FLOOR_BYTES, _SQUEEZE_FLOOR_BYTES)[level]
    done = _Squeezing(scene, over)
    if over is not None:
        newest = _turn_start(kept, 1)
        older = [done.result(node) for node in kept[:newest]]
        kept = older + (_fitted(kept[newest:], done) if level >= HARD else kept[newest:])
    before = scene.before.squeezed
    known = {node.id: before[node.id] for node in kept if node.id in before}
    front = _in_front(scene, level, longest_summary(scene, level, dropped))
    after = scene.overhead + front + sum(map(scene.size_of, kept))
    return Plan(level, tuple(dropped), tuple(kept), {**known, **done.texts}, tuple(done.files), after)


def longest_summary(scene: Scene, level: int, dropped: Sequence[Node]) -> int:
    """Tokens of a summary of these nodes: a part of what it stands for, within its share."""
    whole = sum(map(scene.size_of, dropped)) + scene.measure(scene.before.summary)
    return min(shares(scene, level)["summary"], max(_LEAST_SUMMARY, whole // 3))


def _in_front(scene: Scene, level: int, summary: int) -> int:
    """Tokens of the words that will stand for what is dropped, rather too many than too few."""
    limits, before = shares(scene, level), scene.before
    wanted = [request.text for request in before.requests]
    wanted += [words(node) for node in scene.nodes if node.kind is NodeKind.USER]
    about = {
        "summary": summary,
        "requests": scene.measure("\n".join(wanted)),
        "receipts": 40 * (len(before.receipts) + 2),
        "notes": scene.measure(str(before.notes)) + 100,
        "exchange": limits["exchange"],
    }
    return sum(min(about[name], limits[name]) for name in limits)


def words(node: Node) -> str:
    """All words of a node."""
    return "\n".join(str(block["text"]) for block in node.payload["blocks"] if block.get("text"))


def _turn_start(body: Sequence[Node], turns: int) -> int:
    """Where the newest turns begin: always at an answer of the model, so that no call loses its result."""
    if turns == 0:
        return len(body)
    for place in range(len(body) - 1, -1, -1):
        if body[place].kind is NodeKind.ASSISTANT:
            turns -= 1
            if turns == 0:
                return place
    # All of it stands: what comes before the first answer is what persons said, and is carried over by code.
    return next((place for place, node in enumerate(body) if node.kind is NodeKind.ASSISTANT), len(body))


class _Squeezing:
    """Long results become a beginning, an end, and the name of the file that holds the whole."""

    def __init__(self, scene: Scene, over_bytes: int | None) -> None:
        self.scene = scene
        self.over_bytes = over_bytes
        self.texts: dict[str, str] = {}
        self.files: list[tuple[str, str]] = []

    def result(self, node: Node, tokens: int | None = None) -> Node:
        """The node as it stands now."""
        if node.kind is not NodeKind.TOOL_RESULT or is_squeezed(node) or self.over_bytes is None:
            return node
        text = words(node)
        size = len(text.encode("utf-8", "replace"))
        if size <= self.over_bytes:
            return node
        room = tokens if tokens is not None else max(60, self.scene.measure(text) * _EXCERPT_BYTES // size)
        return self.put(node, clip(text, room, self.scene.measure, self._where(node)), whole=text)

    def put(self, node: Node, text: str, whole: str = "") -> Node:
        """The node with other words."""
        self.texts[node.id] = text
        if whole:
            self.files.append((kept_as(node), whole))
        return squeezed(node, text)

    def _where(self, node: Node) -> str:
        name = kept_as(node)
        return f"{name} (job_output reads it)" if self.scene.readable else name


def _deduplicated(older: Sequence[Node], newer: Sequence[Node], done: _Squeezing) -> list[Node]:
    """An old result that a newer one repeats word for word is dropped from the view."""
    seen: dict[str, str] = {}
    for node in newer:
        if node.kind is NodeKind.TOOL_RESULT:
            seen.setdefault(words(node), node.id)
    shown: list[Node] = []
    for node in reversed(older):
        if node.kind is NodeKind.TOOL_RESULT and not is_squeezed(node):
            text = words(node)
            if len(text) > _DUPLICATE_FLOOR and text in seen:
                node = done.put(node, "[the same as a newer result below]")  # noqa: PLW2901 - the node as it stands now
            else:
                seen.setdefault(text, node.id)
        shown.append(node)
    return shown[::-1]


def _fitted(exchange: Sequence[Node], done: _Squeezing) -> list[Node]:
    """The newest exchange, its results cut to an equal share each: a turn larger than the window is split."""
    scene = done.scene
    results = [node for node in exchange if node.kind is NodeKind.TOOL_RESULT]
    share = int(0.35 * scene.room) // max(1, len(results))
    return [done.result(node, share) if scene.size_of(node) > share else node for node in exchange]
