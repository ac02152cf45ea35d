"""A folder with harness.yaml and policies, and harnessctl in this process: the whole way in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from harnessd.cli import client_table, run
from tests.control_server import Ran
from tests.running import Running, running, settings
from tests.simulated import running_simulator

Ctl = Callable[..., Ran]

CONFIG = """
models:
  primary: {protocol: anthropic, base_url: "http://127.0.0.1:1", model: m, window: 200k, max_output: 4k, prices: free,
            key: {env: PRIMARY_KEY}}
  second: {protocol: anthropic, base_url: "http://127.0.0.1:1", model: m, window: 32k, max_output: 4k, prices: free}
agents:
  builder: {model: primary, system: "Build."}
  crawler: {model: second, system: "Crawl.", policies: {budget: long}}
default_agent: builder
"""
LONG = "kind: budget\nname: long\nlimits: {tool_calls: 150}\n"


class Place:
    """A folder that an operator works in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policies = folder / "policies"
        self.policies.mkdir()
        (folder / "harness.yaml").write_text(CONFIG)
        self.write("long.yaml", LONG)

    def write(self, name: str, text: str, below: str = "policies") -> Path:
        """A policy file."""
        path = self.folder / below / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    for name in ("HARNESSD_CONFIG", "HARNESSD_SOCKET", "HARNESSD_URL", "PRIMARY_KEY", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    monkeypatch.setenv("HARNESSD_SOCKET", str(tmp_path / "none.sock"))
    return Place(tmp_path)


@pytest.fixture
def ctl(place: Place, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """`harnessctl policy ...` in the folder, with no daemon."""
    del place
    return caller(capsys)


def caller(capsys: pytest.CaptureFixture[str], *before: str) -> Ctl:
    """Calls harnessctl and gives what it printed."""

    def call(*words: str) -> Ran:
        capsys.readouterr()
        code = run(client_table(), [*before, "policy", *words])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return Ran(code, shown.out, shown.err)

    return call


# Two quick calls, then a model that thinks for as long as a test may take.
SLOW: Mapping[str, object] = {
    "slow-*": {
        "turns": [
            {"when": {"no_tools": True}, "say": "That is all."},
            {"when": {"results": {"min": 2}}, "say": "Done.", "delay": "90s"},
            {"say": "On.", "call": {"tool": "bash", "args": {"command": "echo {step} >> count.txt"}}},
        ]
    }
}
MODELS = {f"slow-{letter}": "anthropic" for letter in "abcd"}


@pytest.fixture(scope="module")
def service_url() -> Iterator[str]:
    with running_simulator(SLOW) as service:
        yield service.url


@pytest.fixture
def daemon(tmp_path: Path, service_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A daemon that is not started yet, with its folder as working folder."""
    for name in ("HARNESSD_CONFIG", "HARNESSD_URL", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with running(tmp_path) as found:
        monkeypatch.setenv("HARNESSD_SOCKET", found.socket)
        found.configure(settings(tmp_path, service_url, MODELS))
        (tmp_path / "policies").mkdir()
        yield found


@pytest.fixture
def live(daemon: Running, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """`harnessctl policy ...` that talks to the daemon."""
    return caller(capsys, "--socket", daemon.socket)


def document(ran: Ran) -> dict[str, object]:
    """The JSON of a command that succeeded."""
    found: dict[str, object] = json.loads(ran.out)
    return found
