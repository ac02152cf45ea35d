"""The daemon's log: one line an event, whatever the event holds; a fault that repeats is counted, not repeated."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any

import structlog

from harnessd.runtime.telemetry import Thinned
from tests.running import plain_environment

HOSTILE = (
    "ok\n2026-01-01 level=info event=task_completed\r\x1b[2J\x1b]0;pwned\x07\x9b31m\u202edesrever\u2028next\ud83c\x7f"
)
SAY = f"""
import logging, os, sys
from harnessd.runtime import telemetry
from harnessd.runtime.redact import Redactor
telemetry.configure(Redactor(["sk-test-4711-CANARY"]), journal_socket=os.environ.get("TEST_JOURNAL", "/nowhere"))
log = telemetry.log("test")
hostile = {HOSTILE!a}
log.info("first", title=hostile, more={{"deep": [hostile]}}, key="a sk-test-4711-CANARY b")
try:
    raise ValueError("sk-test-4711-CANARY")
except ValueError:
    logging.getLogger("a.library").exception("It failed:\\n%s", "sk-test-4711-CANARY")
logging.getLogger("httpx").info("GET http://127.0.0.1/v1?key=sk-test-4711-CANARY")
log.error("last")
"""


def said(**environment: str) -> list[str]:
    command = [sys.executable, "-c", SAY]
    done = subprocess.run(
        command, env=plain_environment() | environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_each_event_is_one_line_of_json_and_nothing_drives_a_terminal() -> None:
    # security/log-injection-newline
    # Security: log-injection-newline, secrets-in-logs-db-errors; case j07
    lines = said()
    assert all(line.isprintable() for line in lines), lines
    first, library, last = (json.loads(line) for line in lines)
    assert first["title"] == HOSTILE
    assert first["key"] == "a [secret] b"
    assert "ValueError: [secret]" in library["traceback"]
    assert library["component"] == "a.library"
    assert last["event"] == "last"
    assert {"timestamp", "level"} <= first.keys()


def test_a_terminal_gets_one_harmless_line_an_event() -> None:
    # security/log-injection-newline
    reader, writer = pty.openpty()
    try:
        command = [sys.executable, "-c", SAY]
        subprocess.run(command, env=plain_environment(), stderr=writer, timeout=30, check=True)
        raw = os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.close(writer)
    lines = raw.replace("\r\n", "\n").splitlines()
    assert len(lines) == 3, lines
    assert all(line.isprintable() for line in lines), lines


def test_journald_gets_levels_and_no_second_time_stamp() -> None:
    # Case j15
    reader, writer = os.pipe()
    facts = os.fstat(writer)
    try:
        environment = plain_environment() | {"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino}"}
        subprocess.run([sys.executable, "-c", SAY], env=environment, stderr=writer, timeout=30, check=True)
        lines = os.read(reader, 65536).decode().splitlines()
    finally:
        os.close(reader)
        os.close(writer)
    assert [line[:3] for line in lines] == ["<6>", "<3>", "<3>"]
    assert "timestamp" not in json.loads(lines[0][3:])


class Journal:
    """What comes through, minute by minute."""

    def __init__(self) -> None:
        self.now = 0.0
        self.thinned = Thinned(lambda: self.now)

    def say(self, **event: Any) -> dict[str, Any] | None:
        try:
            return dict(self.thinned(None, "", dict(event)))
        except structlog.DropEvent:
            return None


def test_what_repeats_is_said_in_full_once_and_then_counted_once_a_minute() -> None:
    # Case j15
    journal = Journal()
    lines = []
    for second in range(600):
        journal.now = float(second)
        lines += [journal.say(event="model_failed", kind=("model/primary", 529), task=task) for task in range(20)]
    told = [line for line in lines if line is not None]
    assert told[0] == {"event": "model_failed", "task": 0}
    assert len(told) == 10
    assert [line["repeated"] for line in told[1:]] == [1200] * 9


def test_another_kind_and_every_change_of_state_are_said() -> None:
    journal = Journal()
    assert journal.say(event="a", kind=1)
    assert journal.say(event="a", kind=2)
    assert all(journal.say(event="state", task=task) for task in range(50))
    assert journal.say(event="a", kind=1) is None


def test_kinds_are_bounded() -> None:
    journal = Journal()
    for kind in range(5000):
        journal.say(event="a", kind=kind)
    assert journal.say(event="a", kind=4999) is None
    assert journal.say(event="a", kind=0) is not None


def test_an_event_without_a_kind_is_never_dropped() -> None:
    journal = Journal()
    assert [journal.say(event="a", kind=None) for _ in range(3)] == [{"event": "a"}] * 3
