"""Command tools: a program of harness.yaml, its places filled by the call, run as every other command is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.ports import ToolContext, ToolLimits, ToolOutcome
from harnessd.tools import Declared, Jobs, command_tools
from harnessd.tools.command import fill

SHOW = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get('HARNESSD_IDEMPOTENCY_KEY')]))"
)


@pytest.mark.parametrize(
    ("command", "arguments", "filled"),
    [
        (["a", "{x}"], {"x": "two words; rm -rf $(pwd)"}, ["a", "two words; rm -rf $(pwd)"]),
        (["a", "--x={x}", "{{x}}"], {"x": 3}, ["a", "--x=3", "{x}"]),
        (["a", "{x}", "end"], {}, ["a", "end"]),
        (["a", "--x={x}"], {}, ["a", "--x="]),
        (["a", "{x}", "{y}"], {"x": ["1", "two words"], "y": {"k": [True]}}, ["a", "1", "two words", '{"k": [true]}']),
        (["a", "{x}"], {"x": "{y}", "y": "no"}, ["a", "{y}"]),
        (["a", "{x}"], {"x": False}, ["a", "false"]),
    ],
)
def test_places_are_filled(command: list[str], arguments: dict[str, Any], filled: list[str]) -> None:
    assert list(fill(command, arguments)) == filled


async def call(tmp_path: Path, command: list[str], arguments: dict[str, Any], **limits: Any) -> ToolOutcome | Failure:
    workspace = tmp_path / "ws"
    workspace.mkdir(exist_ok=True)
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    jobs = Jobs()
    tool = command_tools({"show": Declared(command, schema, "Shows.", tmp_path)}, jobs)["show"]
    assert tool.effect is EffectClass.IRREVERSIBLE
    context = ToolContext("t1", "e1", str(workspace), str(tmp_path), ToolLimits(**limits), {"PATH": "/bin"}, key="k1")
    try:
        return await tool.run(arguments, context)
    finally:
        await jobs.aclose()


async def test_a_program_runs_in_the_workspace_with_the_key_of_its_act(tmp_path: Path) -> None:
    answered = await call(tmp_path, [sys.executable, "-c", SHOW, "{x}"], {"x": "-n; echo"})
    assert isinstance(answered, ToolOutcome)
    assert answered.facts["result"] == [["-n; echo"], str(tmp_path / "ws"), "k1"]


async def test_a_relative_program_is_the_operators_and_never_the_workspaces(tmp_path: Path) -> None:
    # security/path-lookup-local-git
    for folder, said in ((tmp_path, "operator"), (tmp_path / "ws", "agent")):
        folder.mkdir(exist_ok=True)
        program = folder / "status"
        program.write_text(f"#!/bin/sh\necho {said}\n")
        program.chmod(0o755)
    answered = await call(tmp_path, ["./status"], {})
    assert isinstance(answered, ToolOutcome)
    assert answered.text == "operator"


async def test_arguments_are_strict(tmp_path: Path) -> None:
    for arguments in ({"x": 42}, {"z": "misspelt"}, {"x": "\0"}):
        failed = await call(tmp_path, ["/bin/echo", "{x}"], arguments)
        assert isinstance(failed, Failure)
        assert failed.hint is ErrorClass.INVALID_ARGUMENTS or arguments == {"x": "\0"}


async def test_a_program_that_fails_or_is_not_there_is_told(tmp_path: Path) -> None:
    failed = await call(tmp_path, ["/bin/sh", "-c", "echo no; exit 3"], {})
    gone = await call(tmp_path, ["./gone"], {})
    slow = await call(tmp_path, ["/bin/sleep", "9"], {}, timeout_s=0.2, on_timeout="kill")
    assert isinstance(failed, ToolOutcome)
    assert (failed.exit_code, failed.is_error) == (3, True)
    assert isinstance(gone, Failure)
    assert gone.hint is ErrorClass.UNAVAILABLE
    assert isinstance(slow, Failure)
    assert (slow.exit_code, slow.hint) == (124, ErrorClass.TIMEOUT)
