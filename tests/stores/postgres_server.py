"""A PostgreSQL server of our own from Debian's package: an empty cluster in memory, one for each test process."""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from harnessd.stores import open_store

PROGRAMS = Path("/usr/lib/postgresql")
QUICK = ("fsync=off", "full_page_writes=off")  # a killed server loses nothing by it; a machine would
NAMES = itertools.count(1)
_RUNNING: list[Server] = []


def programs() -> Path | None:
    """The newest version's folder."""
    found = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


def need_programs() -> Path:
    """Where CI runs the programs have to be there; a developer's machine may do without."""
    found = programs()
    if found is None:
        assert not os.environ.get("CI"), "CI needs Debian's package postgresql: .ci/run installs it"
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    return found


class Server:
    """One server process that is started, stopped and killed."""

    def __init__(self, *settings: str, memory: bool = True) -> None:
        """Make the cluster. The server refuses to run as root."""
        self.programs = need_programs()
        self.user = "postgres" if os.geteuid() == 0 else None
        place = "/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="harnessd-pg-", dir=place))
        if self.user is not None:
            owner = pwd.getpwnam(self.user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        made = self._program("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        assert made.wait() == 0

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = [word for setting in self.settings for word in ("-c", setting)]
        where = ("-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder), "-c", "max_connections=100")
        self.process = self._program("postgres", "-D", self.data, *where, *options)
        ends = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < ends, "the server did not come up"
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, as after a power cut; SIGINT: in order."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, text: str, database: str = "postgres") -> str:
        """What a statement says, as the server's owner. Raises CalledProcessError."""
        place = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        words = [str(self.programs / "psql"), "-qXAt", *place, "-c", text, database]
        said: str = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return said.strip()

    def _answers(self) -> bool:
        try:
            return self.ask("SELECT 1") == "1"
        except subprocess.CalledProcessError:
            return False

    def _program(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self.programs / name, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                user=self.user,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )


@cache
def shared_server() -> Server:
    """This process's server, without syncs: for what does not ask how durable it is."""
    server = Server(*QUICK)
    _RUNNING.append(server)
    server.start()
    return server


def remove_servers() -> None:
    """At the end of a test process."""
    while _RUNNING:
        _RUNNING.pop().remove()


@cache
def _template() -> str:
    """A store with its schema and nothing else: copying it is quicker than making each one anew."""
    server = shared_server()
    server.ask("CREATE DATABASE template_store")

    async def make() -> None:
        store = open_store(server.url("template_store"))
        await store.open("template")
        await store.close()

    # In a thread of its own: the caller may be inside a loop.
    thread = threading.Thread(target=lambda: asyncio.run(make()))
    thread.start()
    thread.join()
    server.ask("DELETE FROM daemons; UPDATE meta SET owner_epoch = 0, commits = 0", "template_store")
    return "template_store"


def new_store() -> str:
    """The address of an empty store on the shared server."""
    server, name = shared_server(), f"store{next(NAMES)}"
    server.ask(f"CREATE DATABASE {name} TEMPLATE {_template()}")
    return server.url(name)


def new_database() -> str:
    """The address of an empty database on the shared server."""
    server, name = shared_server(), f"store{next(NAMES)}"
    server.ask(f"CREATE DATABASE {name}")
    return server.url(name)
