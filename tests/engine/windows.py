"""A model with a small window, played in these tests: it counts what it is shown, and writes summaries as told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import FinishReason, Message, ModelReply, TextBlock, ToolUseBlock, Usage, message_to_json
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.tokens import estimate_tokens
from harnessd.engine.protocol import CallModel, ModelFacts, RunBrief
from tests.engine.desk import Desk
from tests.engine.scenery import BRIEF, FREE, NO_LIMITS, policies

SUMMARY = "## Goal\nAll steps.\n## Progress\nSome.\n## Decisions\nNone.\n## Files\nsteps/\n## Next steps\nGo on."
SMALL = "---\nkind: compaction\nreserve: 4k\nsummary: {max_tokens: 1k}\nkeep_turns: 3\n"


def brief(window: int = 16_000, max_output: int = 2_000, prompt: str = "Do all the steps.", **more: Any) -> RunBrief:
    """A task with a small window."""
    model = ModelFacts("primary", window, max_output, input_usd=3.0, output_usd=15.0)
    return replace(BRIEF, model=model, prompt=prompt, **more)


def counted(request: Any) -> int:
    """What a service counts for a request: as our estimate does, so that a factor can be put on it."""
    shown = [message_to_json(Message(message.role, message.blocks)) for message in request.messages]
    texts = [request.system, *(block.get("text") or str(block) for message in shown for block in message["blocks"])]
    return sum(estimate_tokens(text) + 4 for text in texts) + 20 * len(request.tools)


Answer = ModelReply | Failure


@dataclass
class Played:
    """Drives a desk step by step; what the service said is kept."""

    desk: Desk
    factor: float = 1.0
    result: Callable[[int], str] = lambda k: f"wrote step {k}\n" + "line of output\n" * 140
    summariser: Callable[[CallModel], Answer] | None = None
    true_window: int = 10**9
    steps: int = 0
    sizes: list[int] = field(default_factory=list)
    summaries: list[CallModel] = field(default_factory=list)
    ask: Callable[[int], ToolUseBlock] = lambda k: ToolUseBlock(f"c{k}", "put", {"path": f"steps/{k}.txt", "n": k})
    say: str = "Next."

    def usage(self, request: Any, output: int) -> Usage:
        return Usage(round(counted(request) * self.factor), output)

    def model(self) -> None:
        """The model's next answer: a call, or a summary where one is wanted."""
        act = self.desk.under_way[self.desk.call]
        assert isinstance(act, CallModel)
        if not act.request.tools:
            self.summaries.append(act)
            answer = self.summariser(act) if self.summariser else self.summary(act)
        else:
            size = round(counted(act.request) * self.factor)
            self.sizes.append(size)
            if size > self.true_window:
                answer = overflow(size, self.true_window)
            else:
                self.steps += 1
                blocks = (TextBlock(self.say), self.ask(self.steps))
                answer = reply_of(act, blocks, FinishReason.TOOL_USE, self.usage(act.request, 40))
        if isinstance(answer, Failure):
            self.desk.model_failed(answer)
        else:
            self.desk.replied(answer)

    def summary(self, act: CallModel, text: str = SUMMARY) -> ModelReply:
        """An answer to a summary's request."""
        return reply_of(act, (TextBlock(text),), FinishReason.STOP, self.usage(act.request, estimate_tokens(text)))

    def go(self, steps: int, most: int = 4_000) -> None:
        """On until so many steps are done, or the run is over."""
        until = self.steps + steps
        for _ in range(most):
            if self.desk.last is not None or (self.steps >= until and self._asked()):
                return
            if self.desk.wait is not None:
                self.desk.waited()
            elif self._asked():
                self.model()
            else:
                self.desk.returned(self.result(self.steps))
        raise AssertionError("it goes round and round")

    def request_is_its_own(self) -> bool:
        """The call under way is the task's, not a summary's."""
        act = self.desk.under_way[self.desk.call]
        return isinstance(act, CallModel) and bool(act.request.tools)

    def _asked(self) -> bool:
        return bool(self.desk.under_way) and isinstance(self.desk.under_way[self.desk.call], CallModel)

    @property
    def request(self) -> Any:
        """The newest request of the task itself."""
        return next(act.request for act in reversed(self.desk.requests) if act.request.tools)

    @property
    def shown(self) -> str:
        """All that the newest request shows."""
        return "\n".join(str(message_to_json(message)) for message in self.request.messages)

    def nodes(self) -> list[Node]:
        """The compactions on the path."""
        return [node for node in self.desk.ledger.path if node.kind is NodeKind.COMPACTION]

    def told(self, type_: str) -> list[Mapping[str, Any]]:
        """What events of a type said."""
        return [event.data for event in self.desk.ledger.events if event.type == type_]


def reply_of(act: CallModel, blocks: tuple[Any, ...], finish: FinishReason, usage: Usage) -> ModelReply:
    """A model's whole answer."""
    return ModelReply(Message("assistant", blocks), finish, usage, act.request.model, "req", 0.01)


def overflow(size: int, window: int, alias: str = "primary") -> Failure:
    """The service's own words for a prompt that does not fit."""
    return Failure("model", f"model/{alias}", f"prompt is too long: {size} tokens > {window} maximum", status=400)


def played(text: str = FREE + SMALL, *, of: RunBrief | None = None, **about: Any) -> Played:
    """A task that waits for its first answer."""
    desk = Desk(policies(text + LOOSE, **NO_LIMITS), of or brief())
    found = Played(desk, **about)
    desk.lease()
    return found


LOOSE = "---\nkind: loop\nno_progress: none\nrepeat_call: none\nalternate: none\nsame_error: none\n"
