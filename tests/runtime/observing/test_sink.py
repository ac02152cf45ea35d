"""A log that nobody reads blocks nobody: lines are dropped and counted, and the loss is told. F38."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from harnessd.runtime.observing.sink import Line, Sink, journal_datagram, journal_name
from tests.running import plain_environment

PATIENCE_S = 30.0


def until(fits: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not fits():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_pipe_that_nobody_reads_blocks_nobody_and_the_loss_is_told() -> None:
    # F38
    reader, writer = os.pipe()
    sink = Sink(writer, lost=lambda count: Line(f"LOST {count}"), lines_max=100)
    line = Line("x" * 1000)
    for _ in range(1000):
        sink.put(line)  # a pipe holds 64 KiB: the thread stands still, and this goes on
    assert sink.dropped > 500
    assert not sink.flush(0.05)
    read = b""
    while b"LOST" not in read:
        read += os.read(reader, 65536)
    os.set_blocking(reader, False)
    while not sink.flush(0.01):
        read += os.read(reader, 65536)
    read += os.read(reader, 1 << 20) if b"LOST" not in read.splitlines()[-1] else b""
    told = [int(found) for found in re.findall(rb"LOST (\d+)", read)]
    assert sum(told) == sink.dropped
    assert sink.written == 1000 - sink.dropped + len(told)
    os.close(reader)
    os.close(writer)


def test_bytes_are_bounded_too(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    sink = Sink(writer, bytes_max=200_000)
    for _ in range(50):
        sink.put(Line("y" * 20_000))
    assert sink.dropped >= 30
    assert sink.waiting * 20_000 <= 200_000
    os.close(reader)  # EPIPE ends the thread's wait
    assert sink.flush(PATIENCE_S)
    os.close(writer)


def test_a_full_or_closed_stream_costs_its_lines_and_nothing_else(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:
        sink = Sink(full.fileno())
        for _ in range(5):
            sink.put(Line("z"))
        assert sink.flush(PATIENCE_S)
        until(lambda: sink.dropped == 5)
        assert sink.written == 0


def test_the_daemon_program_goes_on_while_its_log_stands_still() -> None:
    # F38: the same with the whole pipeline, as a process whose standard error nobody reads.
    code = """
from harnessd.runtime import telemetry
from harnessd.runtime.redact import Redactor
sink = telemetry.configure(Redactor())
log = telemetry.log("test")
for number in range(15000):
    log.info("event", number=number, more="x" * 200)
print(sink.dropped > 0, flush=True)
import os
os._exit(0)
"""
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=plain_environment(),
            stdout=subprocess.PIPE,
            stderr=writer,
            timeout=60,
            check=True,
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout == b"True\n"


def test_the_journal_gets_every_value_as_a_field_of_its_own(tmp_path: Path) -> None:
    # Real datagrams to a socket of ours in the place of journald's.
    place = os.path.relpath(tmp_path / "j") if len(str(tmp_path / "j")) > 100 else str(tmp_path / "j")
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(place)
    journal.settimeout(PATIENCE_S)
    reader, writer = os.pipe()
    facts = os.fstat(writer)
    code = f"""
from harnessd.runtime import telemetry
from harnessd.runtime.redact import Redactor
telemetry.configure(Redactor(["sk-test-4711-CANARY"]), journal_socket={place!r})
telemetry.log("worker").warning("moved", task="t1", trace="ab", key="sk-test-4711-CANARY", words="one\\ntwo")
"""
    try:
        environment = plain_environment() | {"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino}"}
        subprocess.run([sys.executable, "-c", code], env=environment, stderr=writer, timeout=30, check=True)
        entry = fields_of(journal.recv(65536))
    finally:
        journal.close()
        os.close(reader)
        os.close(writer)
    assert entry["HARNESS_TASK"] == "t1"
    assert entry["HARNESS_TRACE"] == "ab"
    assert entry["HARNESS_WORDS"] == "one\ntwo"
    assert entry["PRIORITY"] == "4"
    assert entry["MESSAGE"].startswith("moved ")
    assert "\n" not in entry["MESSAGE"]
    assert "CANARY" not in json.dumps(entry)


def test_names_of_fields_are_what_the_journal_takes() -> None:
    assert journal_name("blocked_s") == "HARNESS_BLOCKED_S"
    assert re.fullmatch(r"[A-Z0-9_]{1,64}", journal_name("wörd-" * 30))
    assert fields_of(journal_datagram({"A": "x=y", "B": "\n\n", "C": ""})) == {"A": "x=y", "B": "\n\n", "C": ""}


def fields_of(datagram: bytes) -> dict[str, str]:
    """An entry of the journal's native protocol, read strictly."""
    fields, at = {}, 0
    while at < len(datagram):
        end = datagram.index(b"\n", at)
        name, plain, value = datagram[at:end].partition(b"=")
        if plain:
            at = end + 1
        else:
            (size,) = struct.unpack_from("<Q", datagram, end + 1)
            value = datagram[end + 9 : end + 9 + size]
            at = end + 9 + size
            assert datagram[at : at + 1] == b"\n"
            at += 1
        assert re.fullmatch(rb"[A-Z][A-Z0-9_]{0,63}", name)
        fields[name.decode()] = value.decode()
    return fields
