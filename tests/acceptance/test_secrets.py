"""Secrets: no tool and no service carries the daemon's own keys into store, log, or what people are shown."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.running import Running, running, settings
from tests.simulated import running_simulator

pytestmark = pytest.mark.acceptance

KEY = "sk-test-4711-CANARY-abcdef"
OTHER = "aws-CANARY-0815"
LOOK = {
    "turns": [
        {"when": {"results": {"min": 3}}, "say": "Done."},
        {
            "when": {"results": 2},
            "say": "What does my parent hold?",
            "call": {
                "tool": "bash",
                "args": {
                    "command": "echo up; tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' '\\n' </proc/self/environ; "
                    "ls -l /proc/$PPID/fd | grep -c harnessd.db; exit 3"
                },
            },
        },
        {"when": {"results": 1}, "say": "As a file.", "call": {"tool": "read_file", "args": {"path": ".env"}}},
        {
            "say": "As a command.",
            "call": {"tool": "bash", "args": {"command": "env; cat .env; base64 -w0 .env; sleep 0.3"}},
        },
    ]
}
ECHO = {
    "turns": [{"say": "Never said."}],
    "faults": {"plan": [{"request": 1, "do": "unavailable"}, {"request": 2, "do": {"auth": True, "echo_key": True}}]},
}


def kept(daemon: Running, but: str = "") -> bytes:
    """Everything the daemon wrote: store with its side files, artefacts, log.

    Not the contents of checkpoints: they are the workspace's own bytes, which a rollback gives back as they were.
    """
    files = [path for path in daemon.folder.rglob("*") if path.is_file() and path.name not in ("harness.yaml", but)]
    files = [path for path in files if "checkpoints" not in path.relative_to(daemon.folder).parts]
    assert any(path.name == "harnessd.db" for path in files)
    return b"".join(path.read_bytes() for path in files)


def assert_clean(words: bytes) -> None:
    for form in (KEY.encode(), OTHER.encode(), base64.b64encode(KEY.encode())[:28]):
        place = words.find(form)
        assert place < 0, words[max(0, place - 200) : place + 60]


def test_a_key_that_tools_read_is_not_kept(tmp_path: Path) -> None:
    # security/secrets-in-logs-db-errors, security/env-secret-in-child
    with running_simulator({"look": LOOK}) as service, running(tmp_path) as daemon:
        document = settings(tmp_path, service.url, {"look": "anthropic"})
        document["models"]["look"]["key"] = {"env": "MY_KEY"}
        daemon.configure(document)
        client = daemon.start(MY_KEY=KEY, AWS_SECRET_ACCESS_KEY=OTHER)
        space = daemon.workspace("a")
        (space / ".env").write_text(f"KEY={KEY}\n")
        task = daemon.submit(client, prompt="Look around.", agent="look", workspace=str(space))
        assert daemon.until_ended(client, task)["state"] == "completed"
        shown = [daemon.ctl(word, task).stdout for word in ("status", "logs", "tree")]
        shown += [daemon.ctl("show", task, f"n{number}").stdout for number in range(1, 9)]
        assert "[secret]" in "".join(shown)
        assert "up" in "".join(shown)
        assert_clean("".join(shown).encode())
        assert_clean(str(service.requests_now(shown=True)).encode())
        assert daemon.stop() == 0
        assert_clean(kept(daemon, but=".env"))


def test_a_key_that_a_service_echoes_is_not_kept(tmp_path: Path) -> None:
    # security/secrets-in-logs-db-errors
    # Case j09
    with running_simulator({"echo": ECHO}) as service, running(tmp_path) as daemon:
        document = settings(tmp_path, service.url, {"echo": "anthropic"})
        document["models"]["echo"]["key"] = {"env": "MY_KEY"}
        daemon.configure(document)
        client = daemon.start(MY_KEY=KEY)
        task = daemon.submit(client, prompt="Ask.", agent="echo", workspace=str(daemon.workspace("a")))
        row = daemon.until(client, task, ("stopped", "waiting", "parked"))
        assert service.requests_now()["total"] == 2
        shown = daemon.ctl("status", task).stdout + daemon.ctl("logs", task).stdout + str(row)
        assert "auth" in shown
        assert_clean(shown.encode())
        assert daemon.stop() == 0
        assert_clean(kept(daemon))
