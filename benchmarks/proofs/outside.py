"""Outside: a service that the daemon cannot roll back; it counts acts by key and by name, in the sweep's own process.

    POST /act/NAME     do it, under the Idempotency-Key of the request; counted before the answer is sent
    GET  /acts?key=K   how often it was done under a key: what a probe asks
    PUT  /act/NAME     the same by a receiver that honours keys: a second request under a key is no second act
    POST /busy/NAME    a tool says that it runs

Else it honours no keys: each request that reaches it is an act.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

# Between the act and its answer lies the time in which a crash leaves the outcome unknown: it must be hit.
ANSWER_AFTER_S = 0.02


@dataclass(slots=True)
class Outside:
    """The service's books."""

    url: str
    by_key: Counter[str] = field(default_factory=Counter)
    by_name: Counter[str] = field(default_factory=Counter)
    keys_of: dict[str, list[str]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    windows: list[tuple[str, float, float]] = field(default_factory=list)  # name, when it came, when it was answered
    answer_after_s: float = ANSWER_AFTER_S
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def port(self) -> str:
        """Where it listens."""
        return self.url.rsplit(":", 1)[1]

    def reset(self) -> None:
        """Empty books."""
        with self.lock:
            for one in (self.by_key, self.by_name, self.keys_of, self.busy, self.windows):
                one.clear()

    def act(self, name: str, key: str, *, once: bool = False) -> None:
        """One act; `once`: none where the key is known."""
        with self.lock:
            if once and self.by_key[key]:
                return
            self.by_key[key] += 1
            self.by_name[name] += 1
            self.keys_of.setdefault(name, []).append(key)

    def wait_busy(self, name: str, gone: Callable[[], bool], timeout_s: float = 30.0) -> bool:
        """Until a tool of this name said that it runs; False where `gone` came first."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until and not gone():
            if name in self.busy:
                return True
            time.sleep(0.005)
        return False


class _Handler(BaseHTTPRequestHandler):
    outside: Outside

    def do_POST(self) -> None:
        """An act, or a word of a tool."""
        _, what, name = urlsplit(self.path).path.split("/", 2)
        if what == "busy":
            self.outside.busy.add(name)
            self._answer({"busy": name})
            return
        self._act(name, once=False)

    def do_PUT(self) -> None:
        """An act by its key."""
        self._act(urlsplit(self.path).path.split("/", 2)[2], once=True)

    def _act(self, name: str, *, once: bool) -> None:
        came = time.monotonic()
        self.outside.act(name, self.headers.get("Idempotency-Key", ""), once=once)
        time.sleep(self.outside.answer_after_s)
        self.outside.windows.append((name, came, time.monotonic()))
        self._answer({"acted": name})

    def do_GET(self) -> None:
        """What a probe asks."""
        key = parse_qs(urlsplit(self.path).query).get("key", [""])[0]
        self._answer({"count": self.outside.by_key[key]})

    def _answer(self, what: object) -> None:
        body = json.dumps(what).encode() + b"\n"
        # Whoever asked may be dead by now: that is what the sweep is about.
        with contextlib.suppress(ConnectionError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """A client that was killed in the middle of its request is no fault here."""


@contextlib.contextmanager
def outside() -> Iterator[Outside]:
    """The service on a free port of loopback, until the end of the block."""
    handler = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    found = Outside(f"http://127.0.0.1:{server.server_address[1]}")
    handler.outside = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
