"""Spans leave by OTLP and nobody waits for it: a collector that is down, slow or full costs spans, never work."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from harnessd.config.observing import TracesSettings
from harnessd.config.settings import Settings
from harnessd.runtime.observing.otel import OtelTracer
from harnessd.runtime.observing.service import tracer
from harnessd.runtime.observing.spans import NoTracer
from harnessd.runtime.redact import Redactor
from tests.otlp import collector
from tests.running import plain_environment

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_spans_arrive_with_the_trace_id_of_the_attempt_and_without_secrets() -> None:
    with collector() as service:
        one = OtelTracer(service.url, {"service.name": "harnessd"}, Redactor(["sk-4711-CANARY"]).text, content=True)
        root = one.attempt("invoke_agent coder", TRACE, {"gen_ai.agent.name": "coder"})
        call = one.call(root, "chat m", {"prompt": "my key is sk-4711-CANARY \ud83c"}, outwards=True)
        call.happened("decision", {"harnessd.decision.do": "retry"})
        call.end("overloaded", "sk-4711-CANARY is busy")
        root.end()
        one.close(30.0)
        chat, attempt = service.spans
        assert one.counts() == {"exported": 2, "dropped": 0, "failed": 0, "waiting": 0}
    assert (attempt.trace, attempt.parent, attempt.failed) == (TRACE, "", False)
    assert (chat.trace, chat.parent, chat.kind, chat.failed) == (TRACE, attempt.id, 3, True)
    assert chat.attributes == {"prompt": "my key is [secret] ?", "error.type": "overloaded"}
    assert chat.events == [("decision", {"harnessd.decision.do": "retry"})]
    assert service.resources[0]["service.name"] == "harnessd"
    assert b"CANARY" not in b"".join(service.raw)


def test_a_collector_that_stands_still_costs_spans_and_no_time() -> None:
    with collector() as service:
        service.hold.clear()
        one = OtelTracer(service.url, {}, str, content=False)
        begun = time.thread_time()
        for _ in range(6000):
            one.attempt("invoke_agent coder", TRACE, {}).end()
        assert time.thread_time() - begun < 30
        counts = one.counts()
        assert counts["dropped"] >= 6000 - 4096 - 2 * 256
        assert counts["waiting"] <= 4096 + 256
        before = time.monotonic()
        one.close(0.2)
        assert time.monotonic() - before < 30
        assert sum(one.counts().values()) >= 6000
        assert one.counts()["exported"] == 0
        service.hold.set()


def test_a_collector_that_says_no_or_is_not_there_is_counted() -> None:
    with collector() as service:
        service.answer = 400
        one = OtelTracer(service.url, {}, str, content=False)
        one.attempt("invoke_agent coder", TRACE, {}).end()
        one.close(30.0)
        assert one.counts()["failed"] == 1
        gone = service.url
    other = OtelTracer(gone, {}, str, content=False)
    other.attempt("invoke_agent coder", TRACE, {}).end()
    other.close(30.0)
    assert other.counts()["failed"] + other.counts()["dropped"] >= 1


def settings(endpoint: str | None) -> Settings:
    return Settings.model_construct(traces=TracesSettings.model_construct(endpoint=endpoint, content=False))


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        (None, {}, False),
        ("http://127.0.0.1:9/v1/traces", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/x"}, True),
        ("http://127.0.0.1:9/v1/traces", {"OTEL_SDK_DISABLED": "true"}, False),
        ("http://127.0.0.1:9/v1/traces", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_traces_are_made_where_somebody_asks_for_them(
    endpoint: str | None, environ: dict[str, str], wanted: bool
) -> None:
    made, missing = tracer(settings(endpoint), environ, Redactor())
    assert isinstance(made, NoTracer) != wanted
    assert missing == ""
    made.close(0.0)


def test_without_the_extra_a_sentence_says_so_and_nothing_else_changes() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # as where it is not installed
from harnessd.config.observing import TracesSettings
from harnessd.config.settings import Settings
from harnessd.runtime.observing.service import tracer
from harnessd.runtime.redact import Redactor
asked = TracesSettings.model_construct(endpoint="http://127.0.0.1:9/v1/traces", content=False)
made, missing = tracer(Settings.model_construct(traces=asked), {}, Redactor())
print(type(made).__name__, missing)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain_environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("NoTracer traces are asked for")
    assert "pip install 'harnessd[otel]'" in done.stdout


def test_nothing_of_the_extra_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, harnessd.app; print(any(name.startswith('opentelemetry') for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain_environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"
