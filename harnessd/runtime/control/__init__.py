"""Control API: HTTP/1.1 on the daemon's Unix socket, for people's programs on this machine.

`serve` runs until its stop event is set. What it needs of the daemon is `Live`; all truth comes from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from harnessd.domain.failure import HarnessError, OutcomeUnknown, StorageFull, StoreLocked, StoreLost
from harnessd.domain.ports import Clock, Store
from harnessd.runtime.control.answers import Bad, error
from harnessd.runtime.control.dependencies.port import Dependencies
from harnessd.runtime.control.draining.port import Draining
from harnessd.runtime.control.handlers import Handlers, refuse_method, refuse_path
from harnessd.runtime.control.lineage import Lineage
from harnessd.runtime.control.listen import Listener, listen, open_control_socket
from harnessd.runtime.control.live import Live, Told
from harnessd.runtime.control.peer import Admission, Gate, PeerProtocol
from harnessd.runtime.control.recovery.port import Recovery
from harnessd.runtime.control.routes import ROUTES, Handler
from harnessd.runtime.control.upkeep.port import Upkeep

__all__ = [
    "Dependencies",
    "Lineage",
    "Listener",
    "Live",
    "Told",
    "application",
    "listen",
    "open_control_socket",
    "serve",
]

_log = logging.getLogger(__name__)
Metrics = Callable[[], Awaitable[str]]
# A stream says good-bye within a moment; what is still open after this is cut.
_GRACE_S = 2
_CODES: dict[type[HarnessError], str] = {
    StorageFull: "storage_full",
    StoreLocked: "store_locked",
    StoreLost: "store_lost",
}
_REFUSED_AGAIN_S = 60.0
_REFUSED_KNOWN = 256


async def serve(  # noqa: PLR0913 - each is a different thing the API talks to
    listener: Listener,
    store: Store,
    live: Live,
    stop: asyncio.Event,
    *,
    clock: Clock,
    uid: int,
    started: Callable[[], None] = lambda: None,
    lineage: Lineage | None = None,
    dependencies: Dependencies | None = None,
    recovery: Recovery | None = None,
    metrics: Metrics | None = None,
    upkeep: Upkeep | None = None,
    draining: Draining | None = None,
) -> None:
    """Answer until `stop` is set, then end open streams, close, and take the socket file away.

    `started` is called once requests are accepted. Only `uid`, root and the listener's group may call;
    with `lineage`, processes below the daemon may do no more than read their own task.
    """
    gate = Admission(uid, listener.group)
    parts: dict[str, Any] = {"dependencies": dependencies, "recovery": recovery, "metrics": metrics}
    parts |= {"upkeep": upkeep, "draining": draining}
    app = application(store, live, stop, clock=clock, admission=gate, **parts)
    config = uvicorn.Config(
        app,
        http=type("Protocol", (PeerProtocol,), {"lineage": lineage}),
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=512,
    )
    server = _Server(config, stop, started)
    try:
        await server.serve(sockets=[listener.connection])
    finally:
        listener.remove()


def application(  # noqa: PLR0913 - each is a different thing the API talks to
    store: Store,
    live: Live,
    stop: asyncio.Event,
    *,
    clock: Clock,
    admission: Admission,
    dependencies: Dependencies | None = None,
    recovery: Recovery | None = None,
    metrics: Metrics | None = None,
    upkeep: Upkeep | None = None,
    draining: Draining | None = None,
) -> ASGIApp:
    """The ASGI application, gate included."""
    handlers = Handlers(store, live, clock, stop, dependencies, recovery)
    handlers.metrics_text, handlers.upkeep = metrics, upkeep
    handlers.draining = draining
    routes = [
        Route(row.path, _guarded(getattr(handlers, row.handler), live), methods=[row.method], name=row.handler)
        for row in ROUTES
    ]
    inner = Starlette(routes=routes, exception_handlers={404: refuse_path, 405: refuse_method})
    inner.router.redirect_slashes = False  # an answer is JSON or nothing
    told: dict[str, float] = {}

    async def refused(who: str, why: str) -> None:
        # Once a minute for each user: whoever is turned away must not be able to fill the log.
        now = time.monotonic()
        if now - told.get(who, -_REFUSED_AGAIN_S) >= _REFUSED_AGAIN_S:
            if len(told) >= _REFUSED_KNOWN:
                told.clear()
            told[who] = now
            # A store that cannot take the event is no reason to let anybody in, or to fall silent.
            with contextlib.suppress(HarnessError):
                await store.log("access_refused", {"who": who, "why": why}, clock.now())

    return Gate(inner, admission, refused)


class _Server(uvicorn.Server):
    """uvicorn without its signals (they are the daemon's) and without its tick (an idle daemon sleeps)."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop, self._ready = stop, started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        self._ready()
        await self._stop.wait()
        self.should_exit = True


def _guarded(handler: Handler, live: Live) -> Handler:
    """Every way out of a handler is JSON; our own faults are logged with their traceback and told in one line."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Bad as bad:
            return error(bad.code, bad.message, bad.hint)
        except OutcomeUnknown as lost:
            hint = "Look before you repeat it; a submit with --key may be repeated."
            return error("outcome_unknown", lost.sentence, hint)
        except HarnessError as fault:
            if isinstance(fault, StoreLost):
                live.lost(fault)
            code = next((code for kind, code in _CODES.items() if isinstance(fault, kind)), "internal")
            return error(code, fault.sentence, fault.remedy)
        except Exception as fault:  # noqa: BLE001 - the border: one line for people, the traceback for the log
            _log.exception("request failed", extra={"path": request.url.path})
            return error("internal", f"harnessd has a fault: {type(fault).__name__}.", "See the daemon's log.")

    return answer
