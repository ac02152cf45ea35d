"""A webhook's receiver for tests: a real HTTP server on loopback in a thread, whose answers the test decides."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Got:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Receiver:
    """`status` and `body` are what it answers from now on."""

    url: str = ""
    status: int = 200
    body: str = "ok"
    headers: dict[str, str] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def take(self, got: Got) -> None:
        with self._news:
            self.got.append(got)
            self._news.notify_all()

    def until(self, count: int, timeout_s: float = 20.0, **wanted: Any) -> list[Got]:
        """Wait until so many requests came whose bodies hold these values."""
        until = time.monotonic() + timeout_s
        with self._news:
            while True:
                found = [one for one in self.got if wanted.items() <= dict(one.body).items()]
                if len(found) >= count:
                    return found
                assert self._news.wait(until - time.monotonic()), f"{len(found)} of {count} {wanted} came: {self.got}"


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that runs until the end of the block."""
    seen = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", "0")))
            status, body = seen.status, seen.body.encode()
            seen.take(Got(self.path, dict(self.headers.items()), json.loads(raw)))
            self.send_response(status)
            for name, value in {**seen.headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the standard library's
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        seen.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()
