"""Calls: around each attempt of a task, model call and tool call: figures, and spans by OpenTelemetry's conventions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import urlsplit

from structlog.contextvars import bind_contextvars, bound_contextvars

from harnessd.domain.effect import EffectState, canonical_json
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ModelReply, ModelRequest, Usage, message_to_json
from harnessd.domain.ports import Progress, ToolOutcome
from harnessd.domain.record import AppendNode, ChangeTask, Record, RecordDecision, RecordEvent, SettleEffect
from harnessd.domain.task import Lease, Task
from harnessd.engine.protocol import CallTool
from harnessd.runtime.host.disk import Recorder
from harnessd.runtime.observing import conventions as named
from harnessd.runtime.observing.figures import Figures
from harnessd.runtime.observing.spans import NO_SPAN, NoTracer, Span, Tracer
from harnessd.runtime.traffic.caller import Caller
from harnessd.runtime.traffic.hedge import IN_LINE, SENT

ClassOf = Callable[[Failure, Caller], ErrorClass | None]
_TELLING = frozenset(("retry_wait", "compaction", "context_repaired", "degraded", "recovered", "nudge", "rung"))


@dataclass(slots=True)
class Attempt:
    """One run of a task under one lease."""

    span: Span
    end: str = "cut"  # until the journal says otherwise
    error: str = ""
    words: str = ""


_NOBODYS = Attempt(NO_SPAN)
_current: ContextVar[Attempt] = ContextVar("attempt", default=_NOBODYS)


@dataclass(slots=True)
class ModelCall:
    """A model call under way; `ended` is called at most once."""

    alias: str
    began: float = field(default_factory=monotonic)
    first: float | None = None
    answer: ModelReply | Failure | None = None

    def watched(self, progress: Progress) -> Progress:
        """Progress that remembers the first useful event."""

        def seen(word: str) -> None:
            if self.first is None and word not in (IN_LINE, SENT):
                self.first = monotonic()
            progress(word)

        return seen

    def ended(self, answer: ModelReply | Failure) -> ModelReply | Failure:
        """What came of it."""
        self.answer = answer
        return answer


@dataclass(slots=True)
class ToolCall:
    """A tool call under way."""

    outcome: ToolOutcome | Failure | None = None

    def ended(self, outcome: ToolOutcome | Failure) -> ToolOutcome | Failure:
        """What came of it."""
        self.outcome = outcome
        return outcome


@dataclass(slots=True)
class Calls:
    """The seams where things are counted and timed. `models`: alias -> `protocol`, `name`, `base_url`."""

    figures: Figures = field(default_factory=Figures)
    tracer: Tracer = field(default_factory=NoTracer)
    models: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    class_of: ClassOf = lambda failure, _: failure.hint

    # --- a task's attempt --------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, task: Task) -> Iterator[None]:
        """What is logged meanwhile, also by the calls that begin inside, names task, trace and node."""
        trace = task.lease.trace if task.lease is not None else ""
        agent = task.draft.agent
        facts = named.task_attributes(task)
        one = Attempt(self.tracer.attempt(f"{named.INVOKE_AGENT} {agent}", trace, facts))
        token = _current.set(one)
        known = {"task": task.id, "trace": trace, "node": task.pointer}
        try:
            with bound_contextvars(**{name: value for name, value in known.items() if value}):
                yield
        finally:
            _current.reset(token)
            self.figures.attempts.add(1, one.end)
            one.span.set({named.TASK_END: one.end})
            one.span.end(one.error, one.words)

    async def serve(self, task: Task, work: Callable[[Task], Awaitable[None]]) -> None:
        """The work on a task, inside its attempt."""
        with self.attempt(task):
            await work(task)

    def journal(self, journal: Recorder) -> Recorder:
        """The same journal; what it took is counted."""
        return _Seen(journal, self)

    def recorded(self, record: Record) -> None:
        """A record of the caller's task is durable."""
        one = _current.get()
        match record:
            case AppendNode(node):
                # A context belongs to the asyncio task that records: the runner. Its calls copy it when they begin.
                bind_contextvars(node=node.id)
            case RecordDecision(_, _, decision):
                facts = named.decision_attributes(decision)
                self.figures.decisions.add(1, str(facts[named.DECISION_DO]), decision.error_class)
                one.span.happened("decision", facts)
            case SettleEffect(_, EffectState.UNKNOWN):
                self.figures.effects_unknown.add()
            case RecordEvent(type=word) if word in _TELLING:
                one.span.happened(word, {})
            case ChangeTask(verb, reason, error_class) if one is not _NOBODYS:
                one.end = reason.value if reason is not None else verb.value
                one.error = "" if error_class is None else error_class
                one.words = record.sentence
            case _:
                pass

    # --- its calls ---------------------------------------------------------------------------------------------------

    @contextmanager
    def model(self, request: ModelRequest, caller: Caller) -> Iterator[ModelCall]:
        """Around one attempt to call a model."""
        facts = self.models.get(request.model, {})
        name = f"{named.CHAT} {facts.get('name', request.model)}"
        span = self.tracer.call(
            _current.get().span, name, _asked(request, facts, caller, content=self.tracer.content), outwards=True
        )
        call = ModelCall(request.model)
        try:
            yield call
        finally:
            self._count_model(call, caller, span)

    def _count_model(self, call: ModelCall, caller: Caller, span: Span) -> None:
        alias, answer, now, figures = call.alias, call.answer, monotonic(), self.figures
        outcome, class_ = "cancelled", ""
        usage, words = Usage(), ""
        if isinstance(answer, ModelReply):
            outcome, usage = "ok", answer.usage
            figures.cost_usd.add(answer.cost_usd, alias)
        elif answer is not None:
            usage, words = answer.usage or usage, answer.message
            if not answer.cancelled:
                found = self.class_of(answer, caller)
                outcome, class_ = "failed", found.value if found is not None else "ok"
        figures.model_calls.add(1, alias, outcome, class_)
        figures.model_call_s.observe(now - call.began, alias)
        if call.first is not None:
            figures.first_event_s.observe(call.first - call.began, alias)
        for type_, count in named.token_types(usage).items():
            if count:
                figures.tokens.add(count, alias, type_)
        span.set(named.answer_attributes(answer, usage, content=self.tracer.content))
        if call.first is not None:
            span.set({named.TIME_TO_FIRST_CHUNK: call.first - call.began})
        span.end(class_ or ("" if outcome == "ok" else outcome), words)

    @contextmanager
    def tool(self, command: CallTool) -> Iterator[ToolCall]:
        """Around one tool call."""
        facts = named.tool_attributes(command)
        if self.tracer.content:
            facts |= {named.TOOL_ARGUMENTS: canonical_json(dict(command.arguments))}
        span = self.tracer.call(_current.get().span, f"{named.EXECUTE_TOOL} {command.tool}", facts, outwards=False)
        call, began = ToolCall(), monotonic()
        try:
            yield call
        finally:
            self._count_tool(command.tool, call.outcome, monotonic() - began, span)

    def _count_tool(self, tool: str, outcome: ToolOutcome | Failure | None, took_s: float, span: Span) -> None:
        word, class_, words = "cancelled", "", ""
        if isinstance(outcome, ToolOutcome):
            # A tool that says no has answered: the model reads why. It is an error of the call all the same.
            word = "failed" if outcome.is_error else "ok"
            class_ = ErrorClass.EXECUTION_FAILED.value if outcome.is_error else ""
            if self.tracer.content:
                span.set({named.TOOL_RESULT: outcome.text})
        elif outcome is not None and not outcome.cancelled:
            word, words = "failed", outcome.message
            class_ = (outcome.hint or ErrorClass.EXECUTION_FAILED).value
        self.figures.tool_calls.add(1, tool, word, class_)
        self.figures.tool_call_s.observe(took_s, tool)
        span.end(class_ or ("" if word == "ok" else word), words)


UNSEEN = Calls()


@dataclass(frozen=True, slots=True)
class _Seen(Recorder):
    journal: Recorder
    calls: Calls

    async def record(self, lease: Lease, records: Sequence[Record], now: float, revision: int = 0) -> None:
        """See `Journal`."""
        await self.journal.record(lease, records, now, revision)
        for record in records:
            self.calls.recorded(record)


def _asked(
    request: ModelRequest, facts: Mapping[str, object], caller: Caller, *, content: bool
) -> dict[str, str | bool | int | float | tuple[str, ...]]:
    address = urlsplit(str(facts.get("base_url", "")))
    asked = named.request_attributes(request, str(facts.get("protocol", "")), str(facts.get("name", request.model)))
    asked |= {named.ATTEMPT: caller.attempt}
    if address.hostname:
        asked[named.SERVER_ADDRESS] = address.hostname
        asked[named.SERVER_PORT] = address.port or (443 if address.scheme == "https" else 80)
    if content:
        asked[named.INPUT_MESSAGES] = json.dumps([message_to_json(one) for one in request.messages], default=str)
        asked[named.SYSTEM_INSTRUCTIONS] = request.system
    return asked
