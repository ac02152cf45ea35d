"""A socket that systemd hands over: taken as it is, never taken away, and refused where callers would be unknown."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What systemd does before it starts a service: descriptor 3 and three variables with the service's own pid.
CHILD = """
import json, os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2], LISTEN_FDNAMES="api")
from harnessd.domain.failure import ConfigError
from harnessd.runtime.control.listen import open_control_socket
try:
    listener = open_control_socket(None, os.environ)
except ConfigError as wrong:
    print(json.dumps({"wrong": wrong.sentence, "remedy": wrong.remedy}))
else:
    listener.remove()
    left = [name for name in os.environ if name.startswith("LISTEN_")]
    facts = {"path": str(listener.path), "group": listener.group, "left": left, "inherits": os.get_inheritable(3)}
    print(json.dumps(facts))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hd-") as folder:
        yield Path(folder) / "api.sock"


def handed_over(connection: socket.socket, count: str = "1") -> Any:
    number = connection.fileno()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(number), count],
        capture_output=True, text=True, check=False, pass_fds=[number], stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_socket_is_taken_as_it_is_and_stays(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.bind(str(place))
        connection.listen()
        place.chmod(0o660)
        found = handed_over(connection)
        assert found == {"path": str(place), "group": os.getegid(), "left": [], "inherits": False}
        assert place.exists(), "the file is systemd's"
        place.chmod(0o600)
        assert handed_over(connection)["group"] is None


def test_what_cannot_be_trusted_is_refused(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.bind(str(place))
        assert "not a listening Unix socket" in handed_over(connection)["wrong"]
        connection.listen()
        place.chmod(0o666)
        assert "Anybody may connect" in handed_over(connection)["wrong"]
        assert "takes one" in handed_over(connection, "2")["wrong"]
    with socket.socket(socket.AF_INET) as network:
        network.bind(("127.0.0.1", 0))
        network.listen()
        assert "not a listening Unix socket" in handed_over(network)["wrong"]
