"""What traffic control meets in these tests: real policies, a real store, a clock under control, a scripted service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Block, FinishReason, Message, ModelReply, ModelRequest, TextBlock, Usage
from harnessd.domain.ports import CallClocks, Progress
from harnessd.policy import PolicySet
from harnessd.runtime.gateway import Gateway, Prices, Service
from harnessd.runtime.traffic.caller import Caller
from harnessd.runtime.traffic.chaos import Chaos
from harnessd.runtime.traffic.passage import Traffic
from harnessd.stores import SqlStore, open_store
from tests.policy.written import policies

NOW = 1_800_000_000.0  # 2027-01-15 08:00 UTC


@dataclass
class Clock:
    """Time that a test moves."""

    at: float = NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@dataclass
class ScriptedService:
    """A model service: the world's edge. Answers what is next in its script, or well; `hold` keeps answers back."""

    script: list[Failure | Usage] = field(default_factory=list)
    says: tuple[Block, ...] = (TextBlock("Hello."),)
    calls: list[CallClocks] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.let_go.set()

    def hold(self) -> None:
        self.let_go.clear()

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        self.calls.append(clocks)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.let_go.wait()
        finally:
            self.under_way -= 1
        answer = self.script.pop(0) if self.script else Usage(10, 10)
        if isinstance(answer, Failure):
            return answer
        progress("text")
        return ModelReply(Message("assistant", self.says), FinishReason.STOP, answer, request.model)

    async def aclose(self) -> None:
        pass


@dataclass
class Scene:
    """One daemon's traffic control. `set` puts other policies in force."""

    store: SqlStore
    clock: Clock
    service: ScriptedService
    traffic: Traffic
    gateway: Gateway
    _in_force: list[PolicySet]
    changed: Callable[[], None] = lambda: None  # who else hears of other policies

    def set(self, text: str) -> None:
        self._in_force[0] = policies(text)
        self.traffic.changed()
        self.changed()

    async def call(self, alias: str = "primary", **facts: object) -> ModelReply | Failure:
        """One attempt of a caller; facts as in `Caller`."""
        caller = Caller(**{"task": "t1", "agent": "builder", **facts})  # type: ignore[arg-type]
        return await self.gateway.call(request(alias), lambda _: None, caller)

    async def spin(self, fits: Callable[[], bool]) -> None:
        """Let everything run until a condition holds."""
        async with asyncio.timeout(5):
            while not fits():
                await asyncio.sleep(0.001)

    async def events(self) -> list[str]:
        await self.traffic.breakers.flush()
        return [event.type for event in await self.store.events()]


def request(alias: str = "primary", text: str = "Hi", max_tokens: int = 100) -> ModelRequest:
    return ModelRequest(alias, "Be brief.", (Message("user", (TextBlock(text),)),), (), max_tokens)


def failed(status: int = 529, **facts: object) -> Failure:
    return Failure("model", "model/primary", "no", status=status, ended="none", **facts)  # type: ignore[arg-type]


@asynccontextmanager
async def scene(
    folder: Path,
    text: str = "",
    *,
    prices: Prices | None = None,
    clock: Clock | None = None,
    minute_s: float = 60.0,
    chaos: Callable[[], None] | None = None,
) -> AsyncIterator[Scene]:
    """Traffic control over the store of a folder, as after a start. `chaos`: faults are on, and this is the crash."""
    store = open_store(folder / "harnessd.db")
    await store.open("a1")
    try:
        clock, service = clock or Clock(), ScriptedService()
        in_force = [policies(text) if text else policies()]
        faults = Chaos(lambda: in_force[0], clock, chaos) if chaos is not None else None
        traffic = Traffic(lambda: in_force[0], clock, store, local_tools=("bash",), minute_s=minute_s, chaos=faults)
        await traffic.load()
        services = {alias: Service(service, prices or Prices()) for alias in ("primary", "second")}
        yield Scene(store, clock, service, traffic, Gateway(services, traffic=traffic), in_force)
        await traffic.breakers.flush()
    finally:
        await store.close()
