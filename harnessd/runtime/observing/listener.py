"""Listener: metrics over TCP on this machine, for a Prometheus that reaches no Unix socket; nothing else is there."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Generator

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from harnessd.domain.failure import ConfigError
from harnessd.runtime import telemetry
from harnessd.runtime.observing.meters import CONTENT_TYPE

_log = telemetry.log("metrics")
_HOSTS = ("127.0.0.1", "localhost", "[::1]", "::1")


class MetricsListener:
    """Serves `GET /metrics` to whoever shows the token, which is read at each request: a new one needs no restart."""

    def __init__(
        self, place: tuple[str, int], token: Callable[[], str | None], text: Callable[[], Awaitable[str]]
    ) -> None:
        """Take the address. Raises ConfigError where it cannot be had."""
        self._token, self._text = token, text
        host, port = place
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(place)
        except OSError as fault:
            self._socket.close()
            raise ConfigError(
                f"metrics.listen: {host}:{port} cannot be had: {fault.strerror}.",
                remedy="Choose another port, or end what listens there.",
            ) from None

    async def run(self) -> None:
        """Until cancelled."""
        config = uvicorn.Config(
            self, ws="none", loop="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            date_header=False, timeout_graceful_shutdown=1, limit_concurrency=32,
        )  # fmt: skip
        server = _Server(config)
        try:
            await server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http":
            answer = await self._answer(Request(scope))
            await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.lower() not in _HOSTS or "origin" in request.headers:
            # A page in somebody's browser, whose name was made to point here.
            return PlainTextResponse("Ask by the address of this machine.\n", 403)
        wanted = self._token()
        shown = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if wanted is None or not hmac.compare_digest(shown.encode(), wanted.encode()):
            return PlainTextResponse("Show the token.\n", 401, {"www-authenticate": "Bearer"})
        if request.url.path != "/metrics" or request.method not in ("GET", "HEAD"):
            return PlainTextResponse("There is GET /metrics and nothing else.\n", 404)
        return Response(await self._text(), media_type=CONTENT_TYPE)


class _Server(uvicorn.Server):
    """uvicorn without its signals and without its tick, as the control API has it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def main_loop(self) -> None:
        await asyncio.Event().wait()
