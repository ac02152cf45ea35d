"""A receiver of OTLP over HTTP on loopback: takes real requests, reads the protobuf, keeps the spans."""

from __future__ import annotations

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Span:
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    failed: bool
    seconds: float


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    answer: int = 200
    hold: threading.Event = field(default_factory=threading.Event)

    def until(self, fits: Callable[[list[Span]], bool], timeout_s: float = 30.0) -> list[Span]:
        ends = time.monotonic() + timeout_s
        while not fits(self.spans):
            assert time.monotonic() < ends, [span.name for span in self.spans]
            time.sleep(0.02)
        return list(self.spans)


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kept.hold.wait(60)
            if kept.answer == 200:
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                _take(kept, body)
            self.send_response(kept.answer)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    kept.hold.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        kept.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _take(kept: Collector, body: bytes) -> None:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    kept.raw.append(body)
    for resource in request.resource_spans:
        kept.resources.append(_values(resource.resource.attributes))
        for scope in resource.scope_spans:
            kept.spans += [_span(one) for one in scope.spans]


def _span(one: Any) -> Span:
    return Span(
        one.name,
        one.trace_id.hex(),
        one.span_id.hex(),
        one.parent_span_id.hex(),
        one.kind,
        _values(one.attributes),
        [(event.name, _values(event.attributes)) for event in one.events],
        one.status.code == 2,
        (one.end_time_unix_nano - one.start_time_unix_nano) / 1e9,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
