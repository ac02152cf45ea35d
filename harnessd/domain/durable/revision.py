"""Revision: one numbered state of all policies, with what is needed to put it in force again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


class RevisionState(StrEnum):
    """`held`: valid, and waiting for a person; `left`: was in force, or was overtaken while it was held."""

    IN_FORCE = "in_force"
    HELD = "held"
    REFUSED = "refused"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class RevisionDraft:
    """A revision before the store has numbered it.

    Attributes:
        hash: of the effective set; of the bytes, where the set is refused.
        content: `{"files": {shown: text}, "builtin": {name: text}}`, None where the set is refused.
        source: what brought it: `start`, `files`, `SIGHUP`, `reload`, `revert`.
        what: one line for people: the files, the number of problems, or why it is held.
        program: the version of harnessd whose shipped part it holds.
    """

    hash: str
    state: RevisionState
    source: str
    what: str
    program: str
    by: str = ""
    note: str = ""
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """A stored revision. `at` is seconds since the Unix epoch."""

    number: int
    hash: str
    at: float
    state: RevisionState
    source: str
    by: str
    note: str
    what: str
    program: str


class RevisionStore(Protocol):
    """Where revisions are kept."""

    async def add_revision(self, draft: RevisionDraft, now: float, *, hold: bool = False) -> int:
        """Number and keep a revision; one in force takes the place of the last in the same unit.

        `hold` keeps later changes of files out until it is lifted by the next revision that comes into force.
        """

    async def put_in_force(self, number: int, *, hold: bool) -> None:
        """A kept revision comes (back) into force under its own number."""

    async def revisions(self, limit: int = 100) -> Sequence[Revision]:
        """Newest first."""

    async def revision(self, number: int) -> tuple[Revision, Mapping[str, Any] | None] | None:
        """A revision and its content, or None where there is none of this number."""

    async def policy_state(self) -> tuple[int, bool]:
        """The number in force (0 = none yet) and whether files are held out."""
