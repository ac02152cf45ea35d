"""Rollback: what is to be taken back and to where, as it is kept while it is under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from harnessd.domain.effect import Effect, EffectState
from harnessd.domain.session import Node
from harnessd.domain.task import Counters, Task, Verb


@dataclass(frozen=True, slots=True)
class Rollback:
    """A rollback that was decided on, durable with the task's move to `rolling_back`; it is carried out to its end.

    Attributes:
        to: the node that becomes the pointer; `since` the pointer when it was decided.
        manifest: the workspace as it is to be; empty where no file is to be touched. `checkpoint` is its name.
        keep, overwrite: paths that a person chose by name.
        by: who wanted it: a person, or the rule of a policy.
        why: one sentence.
        note: our words to the model, at the head of the new branch; empty: none. `prompt` are a person's.
        after: what the task does then: go on (`queued`), stay as a person left it (`paused`).
        undo_effects: ids of effects whose declared undo is to be called.
        undoes: the token of the restore that this one takes back.
        free: the workspace is given back after it, since the task had ended.
        was: how an ended task had ended; a rollback that fails leaves it so.
        unresolved: the manifest is still to be found: the newest checkpoint on the way to the node.
    """

    to: str
    since: str | None
    manifest: str = ""
    checkpoint: str = ""
    keep: tuple[str, ...] = ()
    overwrite: tuple[str, ...] = ()
    by: str = ""
    why: str = ""
    note: str = ""
    prompt: str = ""
    after: str = "paused"
    undo_effects: tuple[str, ...] = ()
    undoes: str = ""
    free: bool = False
    was: Mapping[str, Any] = field(default_factory=dict)
    unresolved: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it stands in the task's counters."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Back from the counters."""
        tuples = {name: tuple(stored.get(name, ())) for name in ("keep", "overwrite", "undo_effects")}
        return cls(**{**stored, **tuples})


class RollbackStore(Protocol):
    """The moves of a task that is being rolled back. Each is one unit of work."""

    async def roll_back(self, task: Task, rollback: Rollback, counters: Counters, now: float) -> bool:
        """The task is `rolling_back` from now on and holds its workspace; its open questions are withdrawn.

        False where it moved meanwhile, or somebody else works in the workspace: nothing was written.
        """

    async def rolled_back(  # noqa: PLR0913 - one unit: all of it, or nothing
        self,
        task: Task,
        verb: Verb,
        counters: Counters,
        now: float,
        *,
        to: str | None,
        notice: Node | None,
        say: str,
        tell: str,
        restore: tuple[str, str, Mapping[str, Any]] | None,
        data: Mapping[str, Any],
        free: bool,
        was: Mapping[str, Any],
    ) -> None:
        """The end: pointer, task state, budgets, the notice and the restore's row together.

        `to` is None where nothing was taken back and the pointer stays. `say` is a person's word to the new branch,
        `tell` ours to the model that goes on where it was, `restore` token, state and report, `was` how a task had
        ended that stays so.
        """

    async def plan_undo(self, task: str, effect: Effect) -> None:
        """The intent of an undo, durable before it is called."""

    async def settle_undo(self, task: str, effect: str, state: EffectState, result: Mapping[str, Any]) -> None:
        """Its outcome."""
