"""Authors: does anything speak for an agent's hand in the policy files? Agents do not decide about agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Seen(Protocol):
    """Who changed the files since they were last agreed on; see `runtime.host.writers`."""

    @property
    def tools(self) -> tuple[str, ...]:
        """Tasks whose tools did."""

    @property
    def unsure(self) -> bool:
        """Somebody did who is not known."""

    @property
    def anybody(self) -> bool:
        """A change was seen at all."""


class Witness(Protocol):
    """Who sees the writers of the files."""

    async def seen(self) -> Seen | None:
        """What was seen up to now; None where nothing can be."""

    def forget(self, until: float) -> None:
        """The files of this time (time.monotonic) are agreed on."""


@dataclass(frozen=True, slots=True)
class Authors:
    """What is known of who writes.

    `tools_ran` are the tasks whose tools ran just now; `naming` those of them whose calls name one of these files.
    """

    witness: Witness | None = None
    tools_ran: Callable[[], list[str]] = list
    naming: Callable[[Sequence[str]], list[str]] = lambda _: []

    async def objection(self, files: Sequence[str], by: str) -> str:
        """Why a change waits for a person, as the end of a sentence; empty if nothing speaks against it.

        `by` is the person who asks for the change, if one does: that outweighs what is only likely.
        """
        seen = await self.witness.seen() if self.witness is not None else None
        if seen is not None and seen.tools:
            return f"was written by a tool of {', '.join(seen.tools)}: agents do not decide about agents"
        if by or (seen is not None and seen.anybody and not seen.unsure):
            return ""
        if seen is not None and (around := self.tools_ran()):
            # What a watch on the folder does not see: a hard link from elsewhere, or too many changes at once.
            return f"was changed by nobody who was seen, while tools of {', '.join(around)} ran"
        if named := self.naming(files):
            return f"was written while tools of {', '.join(named)} named the files: an agent may have changed them"
        return ""

    async def around(self) -> list[str]:
        """Tasks whose tools ran while an unsigned change was made, where its writers are not known better."""
        seen = await self.witness.seen() if self.witness is not None else None
        return [] if seen is not None and seen.anybody and not seen.unsure else self.tools_ran()

    def agreed(self, until: float) -> None:
        """The files of this time are in force, whoever wrote them."""
        if self.witness is not None:
            self.witness.forget(until)
