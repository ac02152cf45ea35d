"""Start: the set that a daemon starts with: what was held stays held, what is not valid gives way to the last good."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from harnessd import __version__
from harnessd.config.reload import Candidate
from harnessd.config.stored import content_of, policies_of
from harnessd.domain.durable.revision import Revision, RevisionDraft, RevisionState, RevisionStore


@dataclass(frozen=True, slots=True)
class Start:
    """What a daemon starts with: the set, its number, whether files are held out, and where it came from.

    `waits`: the revision that waits for a person's word; its files are still there.
    """

    policies: Any
    revision: int
    hold: bool
    source: str
    waits: Revision | None = None


async def choose_start(store: RevisionStore, candidate: Candidate | None, now: float) -> Start | None:
    """The set to start with: a held revision, the files, or the last good one where the files are not to be used.

    None: the files are not valid and nothing was ever in force.
    """
    number, hold = await store.policy_state()
    kept = await store.revision(number) if number else None
    waits = await _waiting(store, candidate, number)
    if kept is not None and kept[1] is not None and (hold or waits is not None or candidate is None):
        policies, problems = await asyncio.to_thread(policies_of, kept[1])
        if not problems:
            source = "revert" if hold else kept[0].source if waits is not None else "last good one"
            return Start(policies.at(number), number, hold, source, waits)
    if candidate is None:
        return None
    if kept is not None and kept[0].hash == candidate.policies.hash:
        return Start(candidate.policies.at(number), number, hold=False, source=kept[0].source)
    what = ", ".join(candidate.files) or "built-in defaults"
    draft = RevisionDraft(
        candidate.policies.hash,
        RevisionState.IN_FORCE,
        "start",
        what,
        __version__,
        content=await asyncio.to_thread(content_of, candidate.snapshot),
    )
    new = await store.add_revision(draft, now)
    return Start(candidate.policies.at(new), new, hold=False, source="start")


async def _waiting(store: RevisionStore, candidate: Candidate | None, in_force: int) -> Revision | None:
    """The newest valid set of the files, if it was held: a restart is nobody's word that it is right."""
    for revision in await store.revisions():
        if candidate is None or revision.number <= in_force:
            return None
        if revision.state is RevisionState.HELD:
            return revision if revision.hash == candidate.policies.hash else None
    return None
