"""Bad input: one line that says what is wrong, where and what to do, and the exit status of the contract."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import Running, plain_environment, running, settings
from tests.simulated import SimulatedService, running_simulator

pytestmark = pytest.mark.acceptance


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with running_simulator({"m": {"turns": [{"say": "Hello."}]}}) as found:
        yield found


@pytest.fixture
def daemon(tmp_path: Path, service: SimulatedService) -> Iterator[Running]:
    with running(tmp_path) as found:
        found.configure(settings(tmp_path, service.url, {"m": "anthropic"}))
        yield found


def harnessd(daemon: Running, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harnessd", *arguments],
        capture_output=True,
        text=True,
        cwd=daemon.folder,
        env=plain_environment() | environment,
        timeout=30,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """The status, all the words, no traceback, no more than a few lines."""
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_no_daemon(daemon: Running) -> None:
    told(daemon.ctl("status"), 3, "does not answer", daemon.socket, "harnessd run")


def test_no_such_agent(daemon: Running) -> None:
    daemon.start()
    told(daemon.ctl("submit", "x", "--agent", "n", "--workspace", str(daemon.workspace("a"))), 4, 'agent "n"', "m")


def test_no_such_task(daemon: Running) -> None:
    daemon.start()
    told(daemon.ctl("status", "zzzz"), 4, "zzzz")
    told(daemon.ctl("cancel", "zzzz"), 4, "zzzz")


def test_unreadable_workspace(daemon: Running) -> None:
    daemon.start()
    told(daemon.ctl("submit", "x", "--workspace", str(daemon.folder / "work" / "missing")), 4, "missing")


def test_workspace_that_holds_the_configuration(daemon: Running) -> None:
    daemon.start()
    done = daemon.ctl("submit", "x", "--workspace", str(daemon.folder))
    assert done.returncode in (2, 5)
    told(done, done.returncode, str(daemon.folder))


def test_missing_key(daemon: Running, service: SimulatedService) -> None:
    document = settings(daemon.folder, service.url, {"m": "anthropic"})
    document["models"]["m"]["key"] = {"env": "SOME_SERVICE_KEY"}
    daemon.configure(document)
    daemon.start()
    done = daemon.ctl("submit", "x", "--workspace", str(daemon.workspace("a")))
    told(done, 5, "model m: SOME_SERVICE_KEY is not set", "environment")


def test_a_second_daemon_on_the_same_store(daemon: Running) -> None:
    daemon.start()
    told(harnessd(daemon, "run", "--config", str(daemon.config)), 75, "harnessd.db")


def test_a_store_from_a_newer_version(daemon: Running) -> None:
    daemon.start()
    assert daemon.stop() == 0
    database = sqlite3.connect(daemon.folder / "state" / "harnessd.db")
    database.execute("PRAGMA user_version = 9999")
    database.close()
    told(harnessd(daemon, "run", "--config", str(daemon.config)), 78, "newer", "harnessd.db")


def test_an_unwritable_folder(daemon: Running, service: SimulatedService) -> None:
    # Nobody, root included, may make a folder in /proc.
    document = settings(daemon.folder, service.url, {"m": "anthropic"}, store={"url": "sqlite:/proc/state/harnessd.db"})
    daemon.configure(document)
    told(harnessd(daemon, "run", "--config", str(daemon.config)), 1, "/proc/state", "store.url")


def test_a_state_folder_that_cannot_be_made(daemon: Running) -> None:
    (daemon.folder / "state").write_text("a file stands in the way")
    told(harnessd(daemon, "run", "--config", str(daemon.config)), 1, "state")


def test_a_malformed_harness_yaml(daemon: Running) -> None:
    text = daemon.config.read_text().replace('"workers": 8', '"worker": 8')
    daemon.config.write_text(text)
    line = next(number for number, row in enumerate(text.splitlines(), 1) if '"worker"' in row)
    told(harnessd(daemon, "run", "--config", str(daemon.config)), 78, f"{daemon.config}:{line}:", "workers")


def test_no_harness_yaml(daemon: Running) -> None:
    told(harnessd(daemon, "run", "--config", str(daemon.folder / "none.yaml")), 78, "none.yaml")


def test_a_mistyped_variable(daemon: Running) -> None:
    done = harnessd(daemon, "run", "--config", str(daemon.config), HARNESSD_WORKRES="3")
    told(done, 78, "HARNESSD_WORKRES", "HARNESSD_WORKERS")


def test_a_broken_policy_names_its_place_and_nothing_starts(daemon: Running) -> None:
    folder = daemon.folder / "policies"
    folder.mkdir()
    (folder / "budget.yaml").write_text("kind: budget\nlimits: {tool_call: 9}\n")
    told(harnessd(daemon, "run", "--config", str(daemon.config)), 78, "budget.yaml:2:10", "tool_calls")
    done = harnessd(daemon, "check", "--config", str(daemon.config))
    assert done.returncode == 78
    assert "budget.yaml:2:10" in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "1 problem, 0 warnings; nothing was changed."


def test_the_same_key_with_another_body(daemon: Running) -> None:
    daemon.start()
    space = str(daemon.workspace("a"))
    first = daemon.ctl("submit", "one", "--workspace", space, "--key", "k", "-q")
    again = daemon.ctl("submit", "one", "--workspace", space, "--key", "k", "-q")
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stdout == again.stdout
    told(daemon.ctl("submit", "two", "--workspace", space, "--key", "k"), 5, "k")
