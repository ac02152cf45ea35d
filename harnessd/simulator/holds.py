"""Holds: a test keeps answers back and lets them go, so that it can act at an exact moment."""

from __future__ import annotations

import asyncio
import fnmatch
from dataclasses import dataclass, field
from typing import Any

from harnessd.simulator.faults import FaultPlan, read_faults
from harnessd.simulator.transcript import Transcript
from harnessd.simulator.values import ScriptError, count_of, fits, one_of_keys


@dataclass(frozen=True, slots=True)
class Hold:
    """Which answers are kept back: of which models, at which turn, before the head or after some events."""

    model: str = "*"
    turn: Any = None
    after: int | None = None

    def keeps(self, transcript: Transcript) -> bool:
        """Whether it keeps this answer back."""
        named = fnmatch.fnmatchcase(transcript.model, self.model)
        return named and (self.turn is None or fits(transcript.turn, self.turn, "turn"))


@dataclass(slots=True)
class Controls:
    """What a test asked for at run time: answers held, and faults beside the scripts' own."""

    holds: list[Hold] = field(default_factory=list)
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    faults: list[tuple[str, FaultPlan]] = field(default_factory=list)

    def hold_for(self, transcript: Transcript) -> Hold | None:
        """The hold that keeps this answer back."""
        return next((hold for hold in self.holds if hold.keeps(transcript)), None)

    async def wait(self) -> None:
        """Wait until a test lets this one go."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        try:
            await future
        finally:
            if future in self.waiting:
                self.waiting.remove(future)

    def release(self, count: int | None) -> int:
        """Let the oldest `count` go, or all. New ones are still held until the hold is taken away."""
        chosen = self.waiting[:count] if count is not None else list(self.waiting)
        for future in chosen:
            self.waiting.remove(future)
            if not future.done():
                future.set_result(None)
        return len(chosen)

    def plans_for(self, model: str) -> list[FaultPlan]:
        """Faults added for a model."""
        return [plan for pattern, plan in self.faults if fnmatch.fnmatchcase(model, pattern)]

    def reset(self) -> None:
        """Forget everything and let everybody go."""
        self.holds.clear()
        self.faults.clear()
        self.release(None)

    def obey(self, order: Any) -> dict[str, Any]:
        """`{hold, release, faults, clear_faults}`: what was asked, and what it did. Raises ScriptError."""
        one_of_keys(order, ("hold", "release", "faults", "clear_faults"), "control")
        done: dict[str, Any] = {}
        if order.get("clear_faults"):
            self.faults.clear()
        for entry in listed(order.get("faults")):
            one_of_keys(entry, ("model", "seed", "plan", "rate"), "control.faults")
            plan = {key: value for key, value in entry.items() if key != "model"}
            self.faults.append((str(entry.get("model", "*")), read_faults(plan, "control.faults")))
        if "hold" in order:
            self.holds = [read_hold(entry) for entry in listed(order["hold"])]
        release = order.get("release")
        if release is True:
            self.holds.clear()
        if release:
            done["released"] = self.release(None if release is True else count_of(release, "control.release"))
        return done | {"holds": len(self.holds), "waiting": len(self.waiting), "faults": len(self.faults)}


def listed(value: Any) -> list[Any]:
    """One entry or a list of them; nothing is none."""
    if value in (None, False):
        return []
    return value if isinstance(value, list) else [value]


def read_hold(raw: Any) -> Hold:
    """`true`, or `{model, turn, after}`."""
    if raw is True:
        return Hold()
    one_of_keys(raw, ("model", "turn", "after"), "control.hold")
    if "turn" in raw:
        fits(0, raw["turn"], "control.hold.turn")
    after = raw.get("after")
    if after is not None:
        count_of(after, "control.hold.after")
    if not isinstance(raw.get("model", ""), str):
        raise ScriptError("control.hold.model: a name, stars allowed")
    return Hold(raw.get("model", "*"), raw.get("turn"), after)
