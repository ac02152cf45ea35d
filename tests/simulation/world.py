"""The world's edge of a simulated run: what was really done, a model that does its plan, tools that reach the world."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import (
    FinishReason,
    Message,
    ModelReply,
    ModelRequest,
    TextBlock,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
    Usage,
)
from harnessd.domain.ports import CallClocks, Progress, ToolContext, ToolOutcome

CLASSES: Mapping[str, EffectClass] = {
    "look": EffectClass.READ_ONLY,
    "put": EffectClass.IDEMPOTENT,
    "pay": EffectClass.IRREVERSIBLE,
}
SCHEMA = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
WAYS: Sequence[Mapping[str, Any]] = (
    {"status": 529, "type": "overloaded_error", "ended": "none"},
    {"status": 500, "ended": "none"},
    {"status": 429, "type": "rate_limit_error", "ended": "none", "retry_after_s": 3.0},
    {"transport": "reset", "ended": "none"},
    {"transport": "connect", "ended": "none"},
    {"transport": "read_timeout", "ended": "none"},
    {"status": 200, "ended": "cut"},
)


class Dead(Exception):  # noqa: N818 - the simulated end of a process, not an error
    """The process that asks has been killed: nothing it does reaches the world any more."""


@dataclass
class World:
    """What outlives every daemon. `trouble` is how likely each call meets a fault (0..1); healing sets it to 0."""

    luck: random.Random
    trouble: float = 0.0
    counts: int = 1  # how often one act counts: two is a negative control, which the check must notice
    done: Counter[tuple[str, str]] = field(default_factory=Counter)  # (task's prompt, act) -> how often in truth
    asked: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    unpaired: list[str] = field(default_factory=list)

    def strikes(self, what: str, share: float = 1.0) -> bool:
        """Whether a fault happens now."""
        if self.luck.random() < self.trouble * share:
            self.faults[what] += 1
            return True
        return False


@dataclass
class Process:
    """One life of the daemon: once dead, nothing of it moves any more."""

    dead: bool = False

    def check(self) -> None:
        """Raise Dead after the kill."""
        if self.dead:
            raise Dead


@dataclass
class Model:
    """Does its task's plan act by act; told of a failure it tries again with a new call, as models do."""

    world: World
    process: Process

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        """See the port."""
        del clocks
        self.process.check()
        self.world.asked += 1
        self.world.unpaired += unpaired(request.messages)
        await asyncio.sleep(self.world.luck.choice((0.2, 1.0, 5.0)))
        self.process.check()
        if self.world.strikes("model"):
            if self.world.strikes("hang", 0.2):
                await asyncio.sleep(self.world.luck.choice((40.0, 400.0)))
            return Failure("model", "model/primary", "the model failed", **self.world.luck.choice(WAYS))
        progress("text")
        act = next_act(request)
        if act is None or request.tool_choice == "none":
            block: TextBlock | ToolUseBlock = TextBlock("All is done.")
            finish = FinishReason.STOP
        else:
            name, what = act.split(":")
            block = ToolUseBlock(f"call_{self.world.luck.getrandbits(48):x}", name, {"what": what})
            finish = FinishReason.TOOL_USE
        return ModelReply(Message("assistant", (block,)), finish, Usage(100, 20), "primary")

    async def aclose(self) -> None:
        """Nothing is held."""


def plan_of(request: ModelRequest) -> list[str]:
    """The acts that the task's prompt asks for, such as `pay:3`."""
    first = next(message for message in request.messages if message.role == "user")
    return first.text.split("do ", 1)[1].split(".", 1)[0].split()


def next_act(request: ModelRequest) -> str | None:
    """The first act of the plan that no result confirms: a model believes what it is told, by a tool or a person."""
    blocks = [block for message in request.messages for block in message.blocks]
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    said = {call.id: f"{call.name}:{(call.arguments or {}).get('what')}" for call in calls}
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    confirmed = {said.get(block.tool_use_id) for block in results if not block.is_error}
    return next((act for act in plan_of(request) if act not in confirmed), None)


def unpaired(messages: Sequence[Message]) -> list[str]:
    """Calls without their one result in the very next message, and results without a call."""
    wrong = []
    for at, message in enumerate(messages):
        calls = [block.id for block in message.blocks if isinstance(block, ToolUseBlock)]
        after = messages[at + 1].blocks if at + 1 < len(messages) else ()
        results = [block.tool_use_id for block in after if isinstance(block, ToolResultBlock)]
        if message.role == "assistant" and sorted(calls) != sorted(results):
            wrong.append(f"message {at}: calls {calls}, results {results}")
    return wrong


@dataclass
class WorldTool:
    """A tool that acts on the world: the act counts, whatever becomes of the answer."""

    world: World
    process: Process
    name: str
    spec: ToolSpec = field(init=False)
    effect: EffectClass = field(init=False)

    def __post_init__(self) -> None:
        self.spec = ToolSpec(self.name, f"To {self.name}.", SCHEMA)
        self.effect = CLASSES[self.name]

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        """See the port."""
        self.process.check()
        act = f"{self.name}:{arguments['what']}"
        if self.world.strikes("refused"):
            return self._failed(ErrorClass.EXECUTION_FAILED, "refused before anything was done", begun=False)
        await asyncio.sleep(self.world.luck.choice((0.1, 2.0)))
        self.process.check()
        self.world.done[context.workspace, act] += self.world.counts
        await asyncio.sleep(self.world.luck.choice((0.1, 2.0)))
        self.process.check()
        if self.world.strikes("answer lost"):
            return self._failed(ErrorClass.TIMEOUT, "no answer came", begun=True)
        return ToolOutcome(f"DONE {act}.")

    def _failed(self, hint: ErrorClass, words: str, *, begun: bool) -> Failure:
        return Failure("tool", f"tool/{self.name}", words, effect_begun=begun, hint=hint)
