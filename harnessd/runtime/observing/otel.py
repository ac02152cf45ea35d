"""OpenTelemetry: the tracer of the extra `otel`: spans leave by OTLP over HTTP, from a thread that nobody waits for.

Imported where traces are asked for, and only there. The SDK's own variables hold: OTEL_EXPORTER_OTLP_*,
OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from harnessd.runtime.observing.conventions import ERROR_TYPE
from harnessd.runtime.observing.spans import Attributes, Span, Tracer, Value

QUEUE_MAX = 4096  # spans; a task's turn makes two or three
BATCH_MAX = 256
BATCH_S = 2.0  # a span waits for others so long at most
EXPORT_S = 10.0  # one try, the library's own retries included
_TEXT_MAX = 64 * 1024

Redact = Callable[[str], str]
_wanted: ContextVar[str] = ContextVar("wanted_trace", default="")


class OtelTracer(Tracer):
    """Spans of the SDK. Strings pass the redactor; a span that was not sampled costs next to nothing."""

    def __init__(self, endpoint: str | None, resource: Mapping[str, str], redact: Redact, *, content: bool) -> None:
        """`endpoint` is the whole address, `.../v1/traces`; None: as OTEL_EXPORTER_OTLP_* say."""
        self.content = content
        self._redact = redact
        self._processor = QueuedExport(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S))
        provider = TracerProvider(
            resource=Resource.create(dict(resource)),
            id_generator=_Ids(),
            span_limits=SpanLimits(max_attribute_length=_TEXT_MAX),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("harnessd")

    def attempt(self, name: str, trace: str, attributes: Attributes) -> Span:
        """See `Tracer`."""
        token = _wanted.set(trace)
        try:
            return self._begun(name, Context(), attributes, outwards=False)
        finally:
            _wanted.reset(token)

    def call(self, parent: Span, name: str, attributes: Attributes, *, outwards: bool) -> Span:
        """See `Tracer`."""
        inside = trace.set_span_in_context(parent.span, Context()) if isinstance(parent, _Span) else Context()
        return self._begun(name, inside, attributes, outwards=outwards)

    def counts(self) -> Mapping[str, int]:
        """See `Tracer`."""
        return self._processor.counts()

    def close(self, timeout_s: float) -> None:
        """See `Tracer`."""
        self._processor.close(timeout_s)

    def _begun(self, name: str, context: Context, attributes: Attributes, *, outwards: bool) -> Span:
        kind = trace.SpanKind.CLIENT if outwards else trace.SpanKind.INTERNAL
        span = self._tracer.start_span(self._redact(name), context, kind)
        made = _Span(span, self._redact)
        made.set(attributes)
        return made


class _Span(Span):
    """One span of the SDK."""

    def __init__(self, span: trace.Span, redact: Redact) -> None:
        self.span, self._redact = span, redact

    def set(self, attributes: Attributes) -> None:
        """See `Span`."""
        if self.span.is_recording():
            self.span.set_attributes({name: self._clean(value) for name, value in attributes.items()})

    def happened(self, name: str, attributes: Attributes) -> None:
        """See `Span`."""
        if self.span.is_recording():
            self.span.add_event(name, {key: self._clean(value) for key, value in attributes.items()})

    def end(self, error: str = "", words: str = "") -> None:
        """See `Span`."""
        if error:
            self.set({ERROR_TYPE: error})
            self.span.set_status(trace.StatusCode.ERROR, self._redact(words)[:500])
        self.span.end()

    def _clean(self, value: Value) -> Value:
        if isinstance(value, str):
            # Half a surrogate pair has no UTF-8, and would cost the whole batch.
            return self._redact(value).encode("utf-8", "replace").decode()
        if isinstance(value, tuple):
            return tuple(self._redact(one) for one in value)
        return value


class _Ids(RandomIdGenerator):
    """The trace id of a root is the one that the attempt has already: in the log, in events, in `show`."""

    def generate_trace_id(self) -> int:
        wanted = _wanted.get()
        return int(wanted, 16) if wanted else super().generate_trace_id()


class QueuedExport(SpanProcessor):
    """A bounded queue and one thread that exports. What does not fit is dropped and counted; nobody waits."""

    def __init__(self, exporter: SpanExporter, *, queue_max: int = QUEUE_MAX, batch_s: float = BATCH_S) -> None:
        self._exporter, self._queue_max, self._batch_s = exporter, queue_max, batch_s
        self._queue: deque[ReadableSpan] = deque()
        self._bell = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._under_way = 0
        self.exported = self.dropped = self.failed = 0

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        """See `SpanProcessor`."""

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`: in the thread of whoever ended it, which must not wait."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._bell:
            if self._closing or len(self._queue) >= self._queue_max:
                self.dropped += 1
                return
            self._queue.append(span)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trace export", daemon=True)
                self._thread.start()
            if len(self._queue) == 1 or len(self._queue) >= BATCH_MAX:
                self._bell.notify_all()

    def counts(self) -> Mapping[str, int]:
        """See `Tracer`."""
        counts = {"exported": self.exported, "dropped": self.dropped, "failed": self.failed}
        return counts | {"waiting": len(self._queue) + self._under_way}

    def close(self, timeout_s: float) -> None:
        """Export what waits; what is left after this time is dropped."""
        with self._bell:
            self._closing = True
            self._bell.notify_all()
            done = self._thread is None or self._bell.wait_for(self._all_out, timeout_s)
            if not done:
                self.dropped += len(self._queue)
                self._queue.clear()
        self._exporter.shutdown()

    def shutdown(self) -> None:
        """See `SpanProcessor`."""
        self.close(0.0)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See `SpanProcessor`."""
        with self._bell:
            return self._bell.wait_for(self._all_out, timeout_millis / 1000)

    def _all_out(self) -> bool:
        return not self._queue and not self._under_way

    def _run(self) -> None:
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._queue or self._closing)
                if self._closing and not self._queue:
                    return
                self._bell.wait_for(lambda: len(self._queue) >= BATCH_MAX or self._closing, self._batch_s)
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
                self._under_way = len(batch)
            taken = False
            with contextlib.suppress(Exception):  # whatever a library does with our spans ends no thread of ours
                taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
            with self._bell:
                self._under_way = 0
                self.exported += len(batch) if taken else 0
                self.failed += 0 if taken else len(batch)
                self._bell.notify_all()
