"""Targets: the node a rollback goes to, and the checkpoint that holds the workspace as it was there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harnessd.defence import trusted
from harnessd.domain.effect import Effect, EffectClass
from harnessd.domain.ports import Refused
from harnessd.domain.session import Checkpoint, Node, NodeKind, path_to
from harnessd.domain.workspace import KeptRestore

LAST_GOOD = "last-good"
_BACK = ("done", "disturbed")  # what a restore ends as that put files back


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person wants: one of `to` (a node, or last-good), `steps`, `undo`; and their choices by name."""

    to: str = ""
    steps: int = 0
    undo: bool = False
    keep: tuple[str, ...] = ()
    overwrite: tuple[str, ...] = ()
    undo_effects: tuple[str, ...] = ()
    prompt: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that is kept of a task's way."""

    task: str
    pointer: str | None
    nodes: Mapping[str, Node]
    effects: Sequence[Effect]
    checkpoints: Sequence[Checkpoint]
    restores: Sequence[KeptRestore]

    @property
    def path(self) -> tuple[Node, ...]:
        """The way to the pointer."""
        return path_to(self.nodes, self.pointer)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to go: the node, the checkpoint of its workspace (None: no file was ever written), what it takes back."""

    node: Node
    checkpoint: Checkpoint | None
    undoes: str = ""


def find(known: Known, wish: Wish) -> Target | Refused:
    """The target of a wish, or why there is none and what could be chosen."""
    if wish.undo:
        return _undone(known)
    node = _node(known, wish)
    if isinstance(node, Refused):
        return node
    checkpoint = workspace_at(known, node)
    return checkpoint if isinstance(checkpoint, Refused) else Target(node, checkpoint)


def workspace_at(known: Known, node: Node) -> Checkpoint | Refused | None:
    """The checkpoint that holds the workspace as it was while this node was the head.

    The newest one that was taken on the way to it. Before the first of them nothing was written: the first look, made
    before the first call that could write, shows that time too.
    """
    there = {each.id for each in path_to(known.nodes, node.id)}
    # What a safety checkpoint holds is what a person left there; only undoing a rollback goes back to it.
    own = [one for one in known.checkpoints if one.why != "safety"]
    on_the_way = [one for one in own if one.node in there]
    if on_the_way:
        return on_the_way[-1]
    if own and _written_before(known, own[0], there):
        words = f"The files of {known.task} as they were at {node.id} are not kept here: it was imported after that."
        return Refused("refused", words, f"Choose a node since then: harnessctl tree {known.task}")
    if own:
        return own[0]
    if any(_may_write(effect) for effect in known.effects):
        return Refused(
            "refused",
            f"{known.task} has no checkpoint of that time: what the agent believes can go back, its files cannot.",
            f"See what it did: harnessctl effects {known.task} --all",
        )
    return None


def left_behind(known: Known, node: Node) -> tuple[Effect, ...]:
    """What was done outside the workspace since that node: files that go back take none of it back."""
    there = {each.id for each in path_to(known.nodes, node.id)}
    here = {each.id for each in known.path}
    return tuple(
        effect
        for effect in known.effects
        if effect.kind == "tool"
        and effect.node in here - there
        and effect.effect_class in (EffectClass.IDEMPOTENT, EffectClass.IRREVERSIBLE)
        and effect.state.value in ("done", "unknown", "started")
        and effect.name not in ("tool/task_list", "tool/job_stop")  # the agent's own state goes back with it
    )


def _node(known: Known, wish: Wish) -> Node | Refused:
    path = known.path
    if not path:
        return Refused("refused", f"{known.task} has not begun: there is nothing to go back from.", "")
    if wish.steps:
        found = trusted.before_steps(path, wish.steps)
        turns = sum(node.kind is NodeKind.ASSISTANT for node in path)
        hint = f"See the way: harnessctl tree {known.task}"
        return found or Refused(
            "refused", f"{known.task} has made {turns} turns, and cannot go back {wish.steps}.", hint
        )
    if wish.to in (LAST_GOOD, LAST_GOOD.replace("-", "_")):
        found = trusted.last_good(path, changes(known.checkpoints))
        words = f"Nothing failed or changed since the last word to {known.task}: there is no last good node to go to."
        return found or Refused("refused", words, f"Choose one: harnessctl tree {known.task}; then --to NODE")
    chosen = known.nodes.get(wish.to)
    if chosen is None:
        marked = next((one for one in known.checkpoints if one.ref == wish.to), None)
        words = f"{known.task} has no node {wish.to or '(none given)'}" + (": that is a checkpoint." if marked else ".")
        near = f"It was taken at {marked.node}: --to {marked.node}. " if marked else ""
        return Refused("not_found", words, f"{near}See: harnessctl tree {known.task}")
    return _whole(known, chosen)


def _whole(known: Known, node: Node) -> Node | Refused:
    """A node where a session can stand; else the nearest ones that are."""
    if trusted.whole(path_to(known.nodes, node.id)):
        return node
    before = node.id
    while not trusted.whole(path_to(known.nodes, before)):
        before = known.nodes[before].parent or ""
        if not before:
            break
    after = _first_whole(known, {node.id})
    near = " or ".join(f"--to {one}" for one in (before, after) if one)
    return Refused(
        "refused", f"{node.id} is in the middle of a turn: a call of it has no result yet.", f"Write {near}."
    )


def _first_whole(known: Known, under: Collection[str]) -> str:
    for node in known.nodes.values():
        path = path_to(known.nodes, node.id)
        if any(each.id in under for each in path[:-1]) and trusted.whole(path):
            return node.id
    return ""


def _undone(known: Known) -> Target | Refused:
    taken_back = {str(one.about.get("undoes", "")) for one in known.restores if one.state in _BACK}
    for one in reversed(known.restores):
        if one.state in _BACK and one.token not in taken_back and not one.about.get("undoes"):
            since = known.nodes.get(str(one.about.get("since")))
            if since is None:
                break
            safety = next((each for each in reversed(known.checkpoints) if each.manifest == one.safety), None)
            if one.safety and safety is None:
                words = f"The state before the last rollback of {known.task} is not kept any more."
                return Refused("refused", words, f"See: harnessctl tree {known.task}")
            return Target(since, safety, undoes=one.token)
    hint = f"See the way: harnessctl tree {known.task}"
    return Refused("refused", f"{known.task} was not rolled back, or it was undone already.", hint)


def changes(checkpoints: Sequence[Checkpoint]) -> trusted.Changes:
    """Whether the workspace had changed when a result came: a look after a call is kept only where it saw a change."""
    changed = {one.node for one in checkpoints if one.why == "after"}
    return lambda node: node in changed


def _may_write(effect: Effect) -> bool:
    return effect.kind == "tool" and effect.effect_class is not EffectClass.READ_ONLY and effect.state.value != "intent"


def _written_before(known: Known, first: Checkpoint, there: Collection[str]) -> bool:
    """Whether what lies behind the target may have written before the first look: so it is after an import."""
    order = {name: place for place, name in enumerate(known.nodes)}
    since = order.get(first.node, 0)
    return any(
        _may_write(effect) and effect.node not in there and order.get(effect.node or "", since) < since
        for effect in known.effects
    )
