"""docs/how-to/take-a-task-back.md: its commands are run as written, on a running daemon."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.acceptance.test_rollback import BREAKER, repository
from tests.running import running, settings
from tests.simulated import running_simulator
from tests.workspace.trees import look

pytestmark = pytest.mark.acceptance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "take-a-task-back.md"


def test_what_the_how_to_says_is_what_happens(tmp_path: Path) -> None:
    # R5.2: broken, back, forth, and back again
    page = PAGE.read_text(encoding="utf-8")
    commands = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    (rules,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(commands) == 7
    with running_simulator({"breaker": BREAKER}) as service, running(tmp_path) as daemon:
        (tmp_path / "policies").mkdir()
        (tmp_path / "policies" / "escalation.yaml").write_text(rules)
        daemon.configure(settings(tmp_path, service.url, {"breaker": "anthropic"}))
        space = daemon.workspace("w")
        repository(space)
        good = look(space)
        client = daemon.start()
        task = daemon.submit(client, prompt="Tidy up.", agent="breaker", workspace=str(space))
        daemon.until_ended(client, task)
        bad = look(space)
        for command in commands:
            told = daemon.ctl(*shlex.split(command.replace("TASK", task))[1:])
            assert told.returncode == 0, (command, told.stderr)
            if "rollback" in command and "--dry-run" not in command:
                assert look(space) == (bad if "--undo" in command else good), command
