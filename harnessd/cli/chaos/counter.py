"""Counter: a service on loopback that counts what is done to it: the effect that must happen once, and only once."""

from __future__ import annotations

from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread


class EffectCounter:
    """Counts `POST /sign/JOB`; answers with a receipt. Ended by `close`."""

    def __init__(self) -> None:
        self._signed: Counter[str] = Counter()
        self._lock = Lock()
        counter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                job = self.path.removeprefix("/sign/")
                counter.count(job)
                body = f"RECEIPT {job}".encode()
                self.send_response(201)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, name="effects", daemon=True)
        self._thread.start()

    @property
    def place(self) -> str:
        """Its address, as `127.0.0.1:4711`."""
        return f"127.0.0.1:{self._server.server_port}"

    def count(self, job: str) -> None:
        """It was asked to sign."""
        with self._lock:
            self._signed[job] += 1

    def signed(self, job: str) -> int:
        """How often it signed a job."""
        return self._signed[job]

    def close(self) -> None:
        """Ended, with its port given back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
