"""Policy keeper: which revision is in force; the guard, the hold after a revert, and what people are told of both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harnessd import __version__
from harnessd.config.garbage import COLLECTOR
from harnessd.config.reload import Candidate, Outcome, Refusal, Unchanged
from harnessd.config.stored import content_of, policies_of
from harnessd.domain.durable.revision import Revision, RevisionDraft, RevisionState, RevisionStore
from harnessd.domain.ports import Clock, Refused
from harnessd.policy import Problem
from harnessd.runtime import telemetry
from harnessd.runtime.crashpoints import Crashpoint, nowhere
from harnessd.runtime.policies.authors import Authors
from harnessd.runtime.policies.in_force import InForce, Standing

_log = telemetry.log("policies")
# The guard never holds a set for fewer tasks than this: two may always be stopped by an edit (policies.md, "Guard").
_GUARD_LEAST = 2
_BY_HAND = "reload"


class Events(Protocol):
    """Where events of the daemon are kept."""

    async def log(self, type_: str, data: Mapping[str, Any], now: float, revision: int = 0) -> None:
        """Keep one."""


class KeeperStore(RevisionStore, Events, Protocol):
    """What the keeper needs of the store."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A valid set that is not in force: held by the guard, or kept out by a hold after a revert."""

    candidate: Candidate
    number: int  # 0: not numbered, since a hold only shows it
    why: str
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a reload: `applied`, `unchanged`, `refused`, `held` or `kept_out`."""

    word: str
    revision: int
    sentence: str
    problems: tuple[Problem, ...] = ()
    stops: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """For the control API."""
        return {
            "result": self.word,
            "revision": self.revision,
            "sentence": self.sentence,
            "problems": [str(problem) for problem in self.problems],
            "stops": list(self.stops),
        }


@dataclass(slots=True)
class Keeper:
    """The one place where a set comes into force."""

    store: KeeperStore
    in_force: InForce
    clock: Clock
    running: Callable[[], list[Standing]]
    guard: float
    agents_changed: Callable[[Candidate], None]
    hold: bool = False
    waiting: Waiting | None = None
    refused: tuple[int, tuple[Problem, ...], float] | None = None
    warnings: tuple[Problem, ...] = ()
    restart: tuple[str, ...] = ()
    note: str = ""
    by: str = ""
    files: Candidate | None = None  # what the files said when they were last valid, in force or not
    authors: Authors = field(default_factory=Authors)
    waits: Revision | None = None  # what was held when the daemon last ran
    agents: Mapping[str, Any] | None = None  # as they are in force; None: not known yet
    crashpoint: Crashpoint = nowhere
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(
        self, outcome: Outcome, *, by: str = "", note: str = "", yes: bool = False, expect: str = ""
    ) -> Result:
        """Judge what a reload found; at most one set comes into force, whole or not at all."""
        async with self._lock:
            match outcome:
                case Refusal():
                    return await self._refuse(outcome)
                case Unchanged():
                    return await self._unchanged(outcome, by, note, yes, expect)
                case Candidate():
                    return await self._consider(outcome, by, note, yes, expect)

    async def revert(self, number: int, *, by: str = "", note: str = "") -> Result | Refused:
        """Put a kept revision in force and hold it: files are read and shown, not applied, until a reload."""
        async with self._lock:
            found = await self.store.revision(number)
            if found is None or found[1] is None:
                hint = "See which there are: harnessctl policy history"
                what = (
                    f"There is no revision r{number}."
                    if found is None
                    else f"r{number} was refused; it never was valid."
                )
                return Refused("not_found" if found is None else "refused", what, hint)
            policies, problems = await asyncio.to_thread(policies_of, found[1])
            if problems:
                return Refused("refused", f"r{number} does not fit this harnessd: {problems[0]}", "Choose a newer one.")
            await self.store.put_in_force(number, hold=True)
            self.in_force.swap(policies.at(number), self.clock.now(), "revert")
            self.hold, self.waiting, self.note, self.by = True, None, note, by
            if self.files is not None and self.files.policies.hash != policies.hash:
                self.waiting = Waiting(self.files, 0, f"r{number} is held by a revert")
            await self._tell("policy_applied", revision=number, source="revert", by=by, note=note, hold=True)
            sentence = f"r{number} is in force and held: files are read and checked, not applied, also after a restart."
            return Result("applied", number, sentence)

    async def pin(self, number: int | None) -> None:
        """Make the set of a pinned task available, before its run asks for it."""
        if number is None or number in self.in_force.pinned:
            return
        if number == self.in_force.policies.revision:
            # It is in force now; it is needed when it no longer is.
            self.in_force.pinned[number] = self.in_force.policies
            return
        found = await self.store.revision(number)
        if found is not None and found[1] is not None:
            policies, problems = await asyncio.to_thread(policies_of, found[1])
            if not problems:
                self.in_force.pinned[number] = policies.at(number)

    def lasts(self, event: str) -> bool:
        """Whether what a lasting event said of the policies is still so."""
        open_ = {"policy_invalid": self.refused, "policy_held": self.waiting}
        return event not in open_ or open_[event] is not None

    def facts(self) -> dict[str, Any]:
        """For `status` and `GET /v1/policies`."""
        force = self.in_force
        shown: dict[str, Any] = {
            "revision": force.policies.revision,
            "hash": force.policies.hash,
            "since": force.since,
            "source": force.source,
            "note": self.note,
            "by": self.by,
            "hold": self.hold,
            "restart_needed": list(self.restart),
        }
        if self.refused is not None:
            number, problems, at = self.refused
            shown["refused"] = {
                "revision": number,
                "at": at,
                "count": len(problems),
                "problems": [str(problem) for problem in problems],
            }
        if self.waiting is not None:
            shown["held"] = {
                "revision": self.waiting.number,
                "why": self.waiting.why,
                "stops": list(self.waiting.stops),
                "hash": self.waiting.candidate.policies.hash,
            }
        return shown

    # --- what a reload found ------------------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal) -> Result:
        count, kept = len(refusal.problems), self.in_force.policies.revision
        first = str(refusal.problems[0])
        sentence = f"{first}; r{kept} stays in force" + (f" ({count - 1} more problems)" if count > 1 else "")
        if self.refused is None or self.refused[1] != refusal.problems:
            await self._note_refusal(refusal, count, kept)
        assert self.refused is not None  # noqa: S101 - just noted, or the same as before
        return Result("refused", self.refused[0], sentence, refusal.problems)

    async def _note_refusal(self, refusal: Refusal, count: int, kept: int) -> None:
        """A refused set is a revision too, once: who asks again is told of the same one."""
        what = f"{count} problem{'s' if count != 1 else ''}"
        draft = RevisionDraft("", RevisionState.REFUSED, refusal.trigger, what, __version__)
        now = self.clock.now()
        number = await self.store.add_revision(draft, now)
        self.refused = (number, refusal.problems, now)
        lines = [str(problem) for problem in refusal.problems]
        _log.error("policy_invalid", revision=number, stays_in_force=kept, problems=lines[:20], count=count)
        at = refusal.problems[0]
        await self._tell(
            "policy_invalid", revision=number, stays=kept, count=count, file=at.file, line=at.line, first=lines[0]
        )

    async def _unchanged(self, outcome: Unchanged, by: str, note: str, yes: bool, expect: str) -> Result:
        self.refused = None
        number = self.in_force.policies.revision
        # "Unchanged" is said of the files; what they say need not be in force: held, kept out, or not as expected.
        apart = self.files is not None and self.files.policies.hash != self.in_force.policies.hash
        if outcome.trigger == _BY_HAND and self.files is not None and (apart or self.waiting is not None or expect):
            return await self._consider(replace(self.files, trigger=_BY_HAND), by, note, yes, expect)
        if outcome.trigger == _BY_HAND and self.hold:
            # The files say what is in force: there is nothing left to hold against.
            await self.store.put_in_force(number, hold=False)
            self.hold = False
        return Result("unchanged", number, f"r{number} is in force; the files say the same.")

    async def _consider(self, candidate: Candidate, by: str, note: str, yes: bool, expect: str) -> Result:
        self.refused, self.files = None, candidate
        self.warnings, self.restart = candidate.warnings, candidate.restart
        number = self.in_force.policies.revision
        if expect and candidate.policies.hash != expect:
            sentence = f"The files have the hash {candidate.policies.hash}, not {expect}; r{number} stays in force."
            return Result("held", number, sentence)
        if self.hold and candidate.trigger != _BY_HAND:
            self.waiting = Waiting(candidate, 0, f"r{number} is held by a revert")
            return Result("kept_out", number, f"r{number} is held by a revert; the files are valid and wait.")
        if not yes and not self._agreed(candidate):
            before = self.waits.what if self.waits is not None and self.waits.hash == candidate.policies.hash else ""
            if what := before or await self.authors.objection((*candidate.files, "harness.yaml"), by):
                return await self._hold(candidate, (), by, note, what)
        if candidate.policies.hash == self.in_force.policies.hash:
            return await self._same(candidate)
        stops = self.in_force.stopped_by(candidate.policies, self.running(), self.clock.now())
        allowed = max(_GUARD_LEAST, self.guard * len(self.running()))
        if len(stops) > allowed and not yes:
            what = f"would stop {len(stops)} of {len(self.running())} running tasks; guard {self.guard:.0%}"
            return await self._hold(candidate, stops, by, note, what)
        return await self._apply(candidate, by, note)

    def _agreed(self, candidate: Candidate) -> bool:
        """The files mean what is in force: the same policies, and the same agents."""
        agents = self.agents if self.agents is not None else candidate.settings.agents
        return candidate.policies.hash == self.in_force.policies.hash and candidate.settings.agents == agents

    def same(self, at: float) -> None:
        """The files were, at this time, as they were at the last candidate: if that is in force, so they are."""
        if self.waiting is None and not self.hold:
            self.authors.agreed(at)

    def _take_agents(self, candidate: Candidate) -> None:
        self.agents = candidate.settings.agents
        self.agents_changed(candidate)
        self.authors.agreed(candidate.read_at)

    async def _same(self, candidate: Candidate) -> Result:
        number = self.in_force.policies.revision
        self.waiting = None
        if self.hold:
            await self.store.put_in_force(number, hold=False)
            self.hold = False
        self._take_agents(candidate)
        return Result("unchanged", number, f"r{number} is in force; the files mean the same.")

    async def _hold(self, candidate: Candidate, stops: Sequence[str], by: str, note: str, what: str) -> Result:
        running = len(self.running())
        if (
            self.waiting is not None
            and self.waiting.number
            and self.waiting.candidate.policies.hash == candidate.policies.hash
        ):
            number, what = self.waiting.number, self.waiting.why
            return Result("held", number, _held_sentence(number, what), stops=tuple(stops))
        if self.waits is not None and self.waits.hash == candidate.policies.hash:
            self.waiting = Waiting(candidate, self.waits.number, what, tuple(stops))
            return Result("held", self.waits.number, _held_sentence(self.waits.number, what), stops=tuple(stops))
        draft = await self._draft(candidate, RevisionState.HELD, what, by, note)
        number = await self.store.add_revision(draft, self.clock.now())
        self.waiting = Waiting(candidate, number, what, tuple(stops))
        await self._tell("policy_held", revision=number, what=what, stops=list(stops)[:50], running=running)
        return Result("held", number, _held_sentence(number, what), stops=tuple(stops))

    async def _apply(self, candidate: Candidate, by: str, note: str) -> Result:
        around = await self.authors.around()
        what = ", ".join(candidate.files) or "built-in defaults"
        draft = await self._draft(candidate, RevisionState.IN_FORCE, what, by, note)
        now = self.clock.now()
        self.crashpoint("J23")
        number = await self.store.add_revision(draft, now)
        self.crashpoint("J23-after")
        self.in_force.swap(candidate.policies.at(number), now, candidate.trigger)
        if not self.running():
            COLLECTOR.walk_if_due()
        self.hold, self.waiting, self.waits, self.note, self.by = False, None, None, note, by
        self._take_agents(candidate)
        facts: dict[str, Any] = {"revision": number, "source": candidate.trigger, "by": by, "note": note, "files": what}
        if not by and (tasks := around):
            # Nobody signed the change, and an agent's tools were at work: whoever looks into it shall see whose.
            facts["while_tools_ran"] = tasks
        await self._tell("policy_applied", **facts)
        return Result("applied", number, f"r{number} is in force.")

    async def _draft(self, candidate: Candidate, state: RevisionState, what: str, by: str, note: str) -> RevisionDraft:
        return RevisionDraft(
            candidate.policies.hash,
            state,
            candidate.trigger,
            what,
            __version__,
            by=by,
            note=note,
            content=await asyncio.to_thread(content_of, candidate.snapshot),
        )

    async def _tell(self, event: str, **data: Any) -> None:
        if event != "policy_invalid":
            _log.info(event, **data)
        await self.store.log(event, data, self.clock.now(), self.in_force.policies.revision)


def _held_sentence(number: int, what: str) -> str:
    return f"r{number} is held: it {what}. Mend it, or apply it: harnessctl policy reload --yes"
