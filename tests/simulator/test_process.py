"""The simulator as a program: how it starts, what it says of a bad script, and that it never outlives its use."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harnessd.simulator.faults import KINDS
from harnessd.simulator.script import SCRIPT_KEYS, TURN_KEYS, WHEN_KEYS
from tests.simulated import ROOT, command, running_simulator


def alive(pid: int) -> bool:
    """Whether a process of this id still runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def test_it_says_where_it_listens_and_ends_on_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [*command(), "--ready-file", str(ready), "--print-address"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        address = out.readline().strip()
        assert address == ready.read_text().strip()
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_it_ends_with_an_open_stall() -> None:
    stalled = {"m": {"turns": [{"say": "x"}], "faults": {"plan": [{"request": 1, "do": {"stall": 1}}]}}}
    with (
        running_simulator(stalled) as service,
        socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])), timeout=5) as client,
    ):
        body = b'{"model": "m", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "Hi."}]}'
        head = b"POST /v1/messages HTTP/1.1\r\nanthropic-version: 1\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        assert client.recv(100)
    assert not alive(service.pid)


def test_it_dies_with_its_parent() -> None:
    program = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({command()!r}, stdout=subprocess.PIPE, text=True)\n"
        "p.stdout.readline()\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as out:
        child = int(out.readline())
        assert alive(child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(10)
        ends = time.monotonic() + 10
        while alive(child):
            assert time.monotonic() < ends
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {m: {turns: [{say: x, sya: y}]}}", "models.m.turns[0].sya: unknown key; did you mean say?"),
        ("models: {m: {turns: {}}}", "turns: a list of turns"),
        ("a: [", "cannot be read:"),
        ("just words", "a script is a map with `models` or `turns`"),
    ],
)
def test_a_bad_script_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = subprocess.run(command([path]), cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert (done.stderr.count("\n"), str(path) in done.stderr, words in done.stderr) == (1, True, True), done.stderr


def test_a_single_script_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "parrot.yaml").write_text(
        "turns: [{say: 'Polly.'}]\nfaults: {seed: 7, plan: [{request: 2, do: overloaded}]}\n"
    )
    with running_simulator(tmp_path) as service:
        assert "parrot" in service.ask_now("GET", "/health")["models"]


def test_only_loopback_hears_it() -> None:
    with running_simulator() as service:
        port = int(service.url.rpartition(":")[2])
        inodes = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if f":{port:04X} " in line}
        assert f"0100007F:{port:04X}" in inodes
        assert f"00000000:{port:04X}" not in inodes


def test_the_documented_script_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    example = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "example.yaml").write_text(example, encoding="utf-8")
    with running_simulator(tmp_path) as service:
        assert "count-*" in service.ask_now("GET", "/health")["models"]


def test_the_documentation_names_every_word() -> None:
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    words = {*WHEN_KEYS, *TURN_KEYS, *SCRIPT_KEYS, *KINDS} - {"name", "model", "when"}
    assert sorted(word for word in words if not re.search(rf"`[^`]*\b{word}\b[^`]*`", page)) == []
