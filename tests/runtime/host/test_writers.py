"""Who changed the policy files: real processes below another one, alive, dead, or long forgotten by their parents."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harnessd.config.watch import targets
from harnessd.runtime.host.forks import Forks
from harnessd.runtime.host.writers import A_TOOL, Seen, Writers
from tests.writing import needs_the_kernel


@dataclass
class Scene:
    """A policy folder, and a shell that stands for the daemon: what it starts are tools, all others are people."""

    folder: Path
    shell: subprocess.Popen[str]
    writers: Writers

    def tool(self, command: str) -> None:
        """Run a command below the shell, in the folder's parent, to its end."""
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f"bash -c {_quoted(command)} >/dev/null; echo done\n")
        self.shell.stdin.flush()
        assert self.shell.stdout.readline() == "done\n"

    def person(self, command: str) -> None:
        subprocess.run(["bash", "-c", command], cwd=self.folder.parent, check=True)

    def seen(self) -> Seen:
        seen = asyncio.run(self.writers.seen())
        assert seen is not None, self.writers.blind
        return seen

    def forget(self) -> None:
        self.writers.catch_up()
        self.writers.forget(time.monotonic())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "budget.yaml").write_text("kind: budget\n")
    shell = subprocess.Popen(["bash"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    writers = Writers(lambda _: "t1", daemon=shell.pid)
    writers.watch(targets(folder, tmp_path / "harness.yaml"))
    with shell:
        yield Scene(folder, shell, writers)
        assert shell.stdin is not None
        shell.stdin.close()
    writers.close()


WRITES = {
    "shell": "echo a > policies/budget.yaml",
    "append": "echo '#' >> policies/budget.yaml",
    "stream editor": "sed -i s/budget/loop/ policies/budget.yaml",
    "copy": "echo a > x; cp x policies/new.yaml",
    "rename": "echo a > x; mv x policies/budget.yaml",
    "link": "echo a > x; ln -s ../x policies/link.yaml",
    "delete": "rm policies/budget.yaml",
    "folder": "mv policies q; mkdir policies",
    "config map": "ln -s nowhere policies/..data",
    "settings": "echo a > harness.yaml",
    "by python": f'{sys.executable} -c \'open("pol" + "icies/budget.yaml", "w").write("x")\'',
    "two forks and a session": "(setsid bash -c '(sleep 0.05; echo a > policies/budget.yaml) &' &); sleep 0.3",
    "by another path": "mkdir -p deep; ln -s ../policies deep/p; cd deep/p; echo a > budget.yaml",
}


@needs_the_kernel
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_a_tool_is_known_by_its_descent_when_it_is_long_dead(scene: Scene, write: str) -> None:
    # Case h22
    scene.tool(write)
    assert scene.seen() == Seen(("t1",), unsure=False, anybody=True)


@needs_the_kernel
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_a_person_is_no_tool_while_tools_run(scene: Scene, write: str) -> None:
    assert scene.shell.stdin is not None
    scene.shell.stdin.write("sleep 0.5 & sleep 0.4 &\n")
    scene.shell.stdin.flush()
    scene.person(write)
    assert scene.seen() == Seen((), unsure=False, anybody=True)


@needs_the_kernel
def test_leavings_and_readers_change_nothing(scene: Scene) -> None:
    scene.tool("cat policies/*; ls policies; echo a > policies/.budget.yaml.swp; echo a > policies/a.txt; echo > other")
    assert scene.seen() == Seen()


@needs_the_kernel
def test_what_is_agreed_on_is_forgotten_and_what_comes_later_is_not(scene: Scene) -> None:
    scene.tool("touch policies/budget.yaml")
    scene.forget()
    scene.person("echo a > policies/budget.yaml")
    assert scene.seen().tools == ()
    scene.tool("echo b > policies/budget.yaml")
    assert scene.seen().tools == ("t1",), "both wrote: the agent's hand is in it"


@needs_the_kernel
def test_a_folder_in_place_of_another_is_watched_in_its_turn(scene: Scene) -> None:
    scene.person("mv policies old; cp -r old policies")
    scene.writers.watch(targets(scene.folder, scene.folder.parent / "harness.yaml"))
    scene.forget()
    scene.tool("echo a > policies/budget.yaml")
    assert scene.seen().tools == ("t1",)


@needs_the_kernel
def test_a_task_that_is_over_leaves_a_tool(scene: Scene) -> None:
    scene.writers.task_of = lambda _: None
    scene.tool("echo a > policies/budget.yaml")
    assert scene.seen().tools == (A_TOOL,)


@needs_the_kernel
def test_what_the_kernel_dropped_is_said_and_the_living_are_known_again() -> None:
    forks = Forks(os.getpid())
    forks.open()
    with socket.socket(fileno=os.dup(forks.fileno())) as events:
        events.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    with subprocess.Popen(["sleep", "30"]) as alive:
        subprocess.run(["bash", "-c", "for i in {1..100}; do (exit); done"], check=True)
        forks.catch_up()
        assert forks.dropped
        assert forks.below[alive.pid] == alive.pid
        alive.kill()
    forks.close()


@needs_the_kernel
def test_thousands_of_forks_are_heard_and_those_of_others_not_kept() -> None:
    forks = Forks(os.getpid())
    forks.open()
    try:
        subprocess.run(["bash", "-c", "for i in {1..800}; do (exit); done"], check=True)
        forks.catch_up()
        assert len(forks.below) > 800
        assert not forks.dropped
        assert os.getpid() not in forks.below
        assert 1 not in forks.below
    finally:
        forks.close()


def test_where_nobody_tells_a_tool_that_stands_in_the_folder_gives_its_task_away(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    script = "cd policies; sleep 0.2; echo a > budget.yaml; read -r _"
    with subprocess.Popen(["bash", "-c", script], cwd=tmp_path, stdin=subprocess.PIPE) as tool:
        writers = Writers(lambda pids: f"t{pids[0]}")
        writers.watch(targets(folder, tmp_path / "harness.yaml"))
        writers.blind = "as for everybody but root"
        while not (folder / "budget.yaml").exists():
            time.sleep(0.01)
        writers.glimpse()
        seen = asyncio.run(writers.seen())
        assert seen is not None
        assert seen.tools == (f"t{tool.pid}",)
        writers.forget(time.monotonic())
        assert asyncio.run(writers.seen()) is None
        writers.close()
        tool.communicate(b"\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_know_says_so() -> None:
    program = (
        "import asyncio, os; from pathlib import Path; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from harnessd.config.watch import targets; from harnessd.runtime.host.writers import Writers\n"
        "writers = Writers(lambda _: None); writers.watch(targets(Path('/etc/policies'), Path('/etc/harness.yaml')))\n"
        "assert writers.blind, 'nobody told us'; assert asyncio.run(writers.seen()) is None; writers.close()\n"
    )
    imports = "import harnessd.config.watch, harnessd.runtime.host.writers, asyncio\n"
    done = subprocess.run([sys.executable, "-c", imports + program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
