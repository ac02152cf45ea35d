"""Service: all that looks on, as one part of the daemon: figures, traces, the log's sink, the watch over the loop."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harnessd import __version__
from harnessd.config.environment import resolve_secret
from harnessd.config.settings import Settings
from harnessd.domain.ports import Clock, Store
from harnessd.runtime import telemetry
from harnessd.runtime.configured import Configured
from harnessd.runtime.observing.calls import Calls, ClassOf
from harnessd.runtime.observing.figures import Figures
from harnessd.runtime.observing.listener import MetricsListener
from harnessd.runtime.observing.loop_watch import LoopWatch
from harnessd.runtime.observing.scrape import Around, Models, Scrape
from harnessd.runtime.observing.sink import Sink
from harnessd.runtime.observing.spans import NoTracer, Tracer
from harnessd.runtime.policies.in_force import InForce
from harnessd.runtime.redact import Redactor
from harnessd.runtime.worker import Pool

_log = telemetry.log("observing")
_CLOSE_S = 3.0  # spans that wait may leave for so long at the end
_MISSING = "traces are asked for, and the extra otel is not installed: pip install 'harnessd[otel]'"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def blocked(seconds: float, stack: str) -> None:
    """The loop stands still: said from another thread, while it does."""
    words = "nothing else was heard meanwhile; the watchdog of systemd is not pinged either"
    more = {"stack": stack} if stack else {}
    _log.error("event_loop_blocked", blocked_s=round(seconds, 2), sentence=words, **more)


@dataclass(frozen=True, slots=True)
class Seen:
    """The parts of the daemon that are looked at. `facts`: what `status` says of it."""

    store: Store
    pool: Pool
    in_force: InForce
    models: Models
    facts: Callable[[], Mapping[str, Any]]
    configured: Configured
    clock: Clock


@dataclass(slots=True)
class Observing:
    """Made before the parts that it looks at; knows them from `attach` on."""

    sink: Sink | None = None
    loop: LoopWatch = field(default_factory=LoopWatch)
    tracer: Tracer = field(default_factory=NoTracer)
    calls: Calls = field(default_factory=Calls)
    scrape: Scrape | None = None
    missing: str = ""  # what was asked for and is not installed
    _listener: MetricsListener | None = None

    def configure(self, settings: Settings, configured: Configured, class_of: ClassOf) -> Calls:
        """Set up what counts and what traces; gives the seams. `class_of`: what kind of failure one is."""
        self.tracer, self.missing = tracer(settings, configured.environ, configured.redactor)
        if self.missing:
            _log.error("traces_off", sentence=self.missing)
        self.calls = Calls(Figures(), self.tracer, configured.models(), class_of)
        return self.calls

    async def attach(self, seen: Seen) -> None:
        """Know what to look at, and begin. Raises ConfigError where the port of the metrics cannot be had."""
        pool, configured = seen.pool, seen.configured
        around = Around(
            seen.store,
            seen.clock,
            seen.facts,
            pool.standing,
            lambda: pool.busy,
            lambda: pool.draining,
            seen.in_force.for_task,
            seen.models,
            configured.state,
            self.sink,
            self.loop,
            self.tracer,
        )
        self.scrape = Scrape(self.calls.figures, around)
        await self.scrape.begin()
        pool.attempt = self.calls.serve
        self.loop.told = blocked
        self.loop.start()
        wanted = configured.settings.metrics
        if wanted is not None:
            token = partial(_token, configured.settings, configured.environ, configured.redactor)
            self._listener = MetricsListener(wanted.place, token, self.scrape.text)

    async def text(self) -> str:
        """The metrics."""
        return await self.scrape.text() if self.scrape is not None else ""

    @property
    def work(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """What runs until cancelled."""
        return () if self._listener is None else (self._listener.run,)

    def warnings(self) -> list[dict[str, Any]]:
        """What `status` says of it."""
        found = [{"what": "traces", "sentence": self.missing}] if self.missing else []
        if self.sink is not None and self.sink.dropped:
            words = f"{self.sink.dropped} log lines were dropped: whoever reads the log is too slow, or stands still"
            found.append({"what": "log", "sentence": words})
        return found

    def close(self) -> None:
        """Let the last spans leave. Blocks for seconds at most; for a thread."""
        self.tracer.close(_CLOSE_S)


def tracer(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> tuple[Tracer, str]:
    """The tracer that is asked for; none, and why, where it is not installed."""
    endpoint = settings.traces.endpoint
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off or not (endpoint or any(environ.get(name) for name in _ENDPOINTS)):
        return NoTracer(), ""
    try:
        from harnessd.runtime.observing.otel import OtelTracer  # noqa: PLC0415 - an extra
    except ImportError:
        return NoTracer(), _MISSING
    resource = {"service.version": __version__, "service.instance.id": socket.gethostname()}
    if not environ.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = "harnessd"
    return OtelTracer(endpoint, resource, redactor.text, content=settings.traces.content), ""


def _token(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> str | None:
    if settings.metrics is None:
        return None
    found = resolve_secret(settings.metrics.token, environ, "metrics.token")
    return redactor.learn(found.value) if found.value is not None else None
