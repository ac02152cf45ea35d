"""config show: every value with its origin; no secret in any of it, nor in what is said of a wrong file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harnessd.cli import client_table, run
from tests.control_server import Ran

SECRET = "sk-test-0000"  # too short to look like a key: it must be known by where it stands
CONFIG = """\
store: {url: {env: STORE_URL}}
workers: 7
models:
  primary:
    protocol: anthropic
    base_url: https://api.example.com
    model: m
    key: {env: MY_KEY}
    window: 200k
    prices: {input: 3, output: 15}
agents:
  coder:
    model: primary
    system: "Ask https://me:hunter2@git.example/x for it."
    env: {set: {GITHUB_TOKEN: sk-test-0000, NPM_AUTH: sk-test-0000, apiKey: sk-test-0000, MODE: fast}}
tools:
  fetch: {command: [curl, -H, "Authorization: Bearer sk-test-0000"], about: It fetches.}
"""
Config = Callable[..., Ran]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Config:
    """`harnessctl config show` in a folder with a harness.yaml, without a daemon."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.delenv("HARNESSD_CONFIG", raising=False)
    (tmp_path / "harness.yaml").write_text(CONFIG)

    def call(*words: str, text: str | None = None) -> Ran:
        if text is not None:
            (tmp_path / "harness.yaml").write_text(text)
        capsys.readouterr()
        code = run(client_table(), ["config", "show", *words])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return Ran(code, shown.out, shown.err)

    return call


def test_each_value_with_its_origin(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESSD_DRAIN", "5s")
    monkeypatch.setenv("HARNESSD_MODELS__PRIMARY__KEY", "{env: OTHER}")
    rows = {line.split()[0]: line for line in config().out.splitlines()}
    assert rows["workers"].split() == ["workers", "7", "harness.yaml:2"]
    assert rows["drain"].split() == ["drain", "5s", "HARNESSD_DRAIN"]
    assert rows["policies.settle"].split() == ["policies.settle", "50ms", "default"]
    assert rows["models.primary.key"].split(None, 1)[1].split("  ")[0] == "{env: OTHER}"
    assert rows["models.primary.key"].endswith("HARNESSD_MODELS__PRIMARY__KEY")
    assert rows["models.primary.max_output"].endswith("default")
    shown = json.loads(config("models.primary.key", "--json").out)
    assert shown["settings"] == [
        {
            "path": "models.primary.key",
            "value": "{env: OTHER}",
            "from": "environment",
            "file": None,
            "line": None,
            "variable": "HARNESSD_MODELS__PRIMARY__KEY",
        }
    ]


def test_a_part_of_it(config: Config) -> None:
    assert {line.split()[0].rpartition(".")[0] for line in config("store.lease").out.splitlines()} == {"store.lease"}
    assert config("stor").code == 1


def test_no_secret_is_shown(config: Config) -> None:
    # h17
    for words in ((), ("--json",), ("agents",), ("tools", "--json")):
        done = config(*words)
        assert done.code == 0
        assert SECRET not in done.out + done.err
        assert "hunter2" not in done.out + done.err
    (shown,) = json.loads(config("agents.coder.env.set", "--json").out)["settings"]
    assert shown["value"] == "{GITHUB_TOKEN: [redacted], NPM_AUTH: [redacted], apiKey: [redacted], MODE: fast}"


WRONG = {
    "a map": "key: {x: sk-test-0000}",
    "a word": "key: sk-test-0000",
    "a list": "key: [sk-test-0000]",
    "another name": "api_key: sk-test-0000",
    "another name of a map": "api_key: {x: sk-test-0000}",
    "two": "key: {env: MY_KEY, credential: sk-test-0000}",
    "a block": "key: |\n      sk-test-0000",
    "twice": "key: sk-test-0000\n    key: sk-test-0000",
    "a reference of nothing": "key: ${sk-test-0000}",
}


@pytest.mark.parametrize("line", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_a_key_is_said_without_it(config: Config, line: str) -> None:
    # h17
    text = CONFIG.replace("key: {env: MY_KEY}", line)
    for words in ((), ("--json",)):
        done = config(*words, text=text)
        assert done.code == 1
        assert SECRET not in done.out + done.err
        assert "harness.yaml:8:" in done.out


def test_there_is_no_file(config: Config, tmp_path: Path) -> None:
    (tmp_path / "harness.yaml").unlink()
    done = config()
    assert (done.code, "There is no harness.yaml" in done.err) == (78, True)
