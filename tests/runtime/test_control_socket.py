"""The control socket: where it stands, who may connect, what a killed daemon leaves, and how quietly it waits."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harnessd.domain.failure import ConfigError, HarnessError
from harnessd.runtime.control import listen
from harnessd.runtime.host.socket_path import (
    MAX_BYTES,
    SYSTEM_SOCKET,
    client_socket_paths,
    daemon_socket_path,
    find_socket,
)
from tests.control_server import control_server


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="hd-") as place:
        yield Path(place).resolve()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_may_connect(folder: Path) -> None:
    listener = listen(folder / "run" / "api.sock")
    with closing(listener.connection):
        assert mode(listener.path) == 0o600
        assert mode(listener.path.parent) == 0o700
    listener.remove()
    assert not listener.path.exists()


def test_the_system_socket_is_for_its_group(folder: Path) -> None:
    listener = listen(folder / "run" / "api.sock", for_group=True)
    with closing(listener.connection):
        assert mode(listener.path) == 0o660
        assert mode(listener.path.parent) == 0o750
        assert listener.group == listener.path.stat().st_gid


def test_a_strict_umask_changes_nothing(folder: Path) -> None:
    before = os.umask(0o777)
    try:
        listener = listen(folder / "api.sock")
    finally:
        os.umask(before)
    with closing(listener.connection):
        assert mode(listener.path) == 0o600


def test_what_a_killed_daemon_left_is_removed(folder: Path) -> None:
    # j04: SIGKILL, then start again
    program = (
        "import sys, time; from pathlib import Path; from harnessd.runtime.control import listen\n"
        "kept = listen(Path(sys.argv[1])); print('listening', flush=True); time.sleep(60)"
    )
    path = folder / "api.sock"
    first = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    with first.stdout:
        assert first.stdout.readline() == "listening\n"
        with pytest.raises(HarnessError, match="Another daemon listens"):
            listen(path)
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert path.exists()
    with closing(listen(path).connection), closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(path))


def test_a_socket_of_a_newer_daemon_is_left_alone(folder: Path) -> None:
    old = listen(folder / "api.sock")
    old.connection.close()
    new = listen(folder / "api.sock")
    with closing(new.connection):
        old.remove()
        assert new.path.exists()


def test_a_path_the_kernel_cannot_take_is_refused_with_both_numbers(folder: Path) -> None:
    # j18
    path = folder / ("x" * 150) / "api.sock"
    with pytest.raises(ConfigError) as refused:
        listen(path)
    assert f"{len(str(path))} bytes" in refused.value.sentence
    assert str(MAX_BYTES) in refused.value.sentence
    assert "socket.path" in refused.value.remedy


def test_the_longest_path_works(folder: Path) -> None:
    name = "x" * (MAX_BYTES - len(str(folder)) - 1)
    with closing(listen(folder / name).connection):
        pass


@pytest.mark.parametrize("what", ["file", "link", "dangling"])
def test_what_is_no_socket_is_not_removed(folder: Path, what: str) -> None:
    # socket-other-user: a link in our place leads elsewhere
    path, other = folder / "api.sock", folder / "other"
    if what == "file":
        path.write_text("mine")
    else:
        path.symlink_to(other)
        if what == "link":
            other.write_text("mine")
    with pytest.raises(ConfigError):
        listen(path)
    assert path.is_symlink() == (what != "file")
    assert what == "dangling" or path.read_text() == "mine"


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o720])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, bits: int) -> None:
    # security/socket-other-user
    # socket-other-user: whoever may write there may replace the socket
    place = folder / "run"
    place.mkdir()
    place.chmod(bits)
    with pytest.raises(ConfigError, match="Others may write"):
        listen(place / "api.sock")
    link = folder / "link"
    link.symlink_to(place)
    with pytest.raises(ConfigError, match="Others may write"):
        listen(link / "api.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_what_belongs_to_somebody_else_is_refused(folder: Path) -> None:
    # security/socket-other-user
    place = folder / "run"
    place.mkdir(mode=0o700)
    listener = listen(place / "api.sock")
    listener.connection.close()
    os.chown(listener.path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        listen(place / "api.sock")
    os.chown(place, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        listen(place / "api.sock")


def test_an_idle_server_sleeps() -> None:
    # performance.md 7: at most one wake-up a second. uvicorn's own loop would make ten.
    with control_server() as server:
        time.sleep(0.3)
        thread = next(thread for thread in threading.enumerate() if thread.name == "control")
        task = Path(f"/proc/self/task/{thread.native_id}")
        assert server.socket.exists()
        before = _switches(task)
        time.sleep(2)
        assert _switches(task) - before <= 2


def _switches(task: Path) -> int:
    lines = (task / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


# --- where it stands --------------------------------------------------------------------------------------------------


def test_daemon_and_client_choose_the_same_place() -> None:
    for environment, uid in (
        ({"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/home/a"}, 1000),
        ({"HOME": "/home/a"}, 1000),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/data/a"}, 1000),
        ({"HOME": "/", "XDG_RUNTIME_DIR": "relative"}, 1000),
        ({}, 0),
    ):
        assert daemon_socket_path(environment, uid) == client_socket_paths(environment, uid)[0]
        assert daemon_socket_path(environment, uid).startswith("/")


def test_the_places_in_order() -> None:
    user = {"XDG_RUNTIME_DIR": "/run/user/1000", "HOME": "/home/a"}
    assert client_socket_paths(user, 1000) == (
        "/run/user/1000/harnessd/api.sock",
        "/home/a/.local/state/harnessd/api.sock",
        SYSTEM_SOCKET,
    )
    assert daemon_socket_path({"HOME": "/"}, 0) == SYSTEM_SOCKET
    assert daemon_socket_path({"RUNTIME_DIRECTORY": "/run/harnessd:/run/more"}, 1000) == SYSTEM_SOCKET


def test_a_client_takes_the_socket_that_is_there(folder: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(folder / "none"), "HOME": str(folder)}
    # The system's daemon may be running on the machine of this test.
    assert find_socket(environment, 1000) in (str(folder / "none" / "harnessd" / "api.sock"), SYSTEM_SOCKET)
    listener = listen(folder / ".local" / "state" / "harnessd" / "api.sock")
    with closing(listener.connection):
        assert find_socket(environment, 1000) == str(listener.path)
