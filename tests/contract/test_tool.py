"""Contract of tools: what the runtime may rely on, proved for each tool of the registry."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harnessd.domain.effect import EffectClass, canonical_json
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.ports import Tool, ToolContext, ToolLimits, ToolOutcome
from harnessd.tools import Jobs, builtin_tools
from harnessd.tools.arguments import schema_problem, validate
from harnessd.workspace.confine import confine
from tests.loopback import Visit, loopback

CLASSES = {
    "bash": EffectClass.REVERSIBLE,
    "read_file": EffectClass.READ_ONLY,
    "write_file": EffectClass.REVERSIBLE,
    "edit_file": EffectClass.REVERSIBLE,
    "list_files": EffectClass.READ_ONLY,
    "search_files": EffectClass.READ_ONLY,
    "job_output": EffectClass.READ_ONLY,
    "job_stop": EffectClass.IDEMPOTENT,
    "task_list": EffectClass.IDEMPOTENT,
    "http_request": EffectClass.IRREVERSIBLE,
}


@dataclass
class Sample:
    """Calls of one tool: one that works, ones that do not fit, one that is refused, one that answers at length."""

    good: Mapping[str, Any]
    bad: tuple[Mapping[str, Any], ...]
    refused: Mapping[str, Any] | None = None
    long: Mapping[str, Any] | None = None
    escapes: tuple[Mapping[str, Any], ...] = field(default=())


OUT = ("../secret", "/etc/passwd", "out/secret", "folder/../../secret")
SAMPLES = {
    "bash": Sample(
        {"command": "echo hello"},
        ({}, {"command": 1}, {"command": ""}, {"command": "x", "timeout_s": 0}, {"cmd": "x"}),
        long={"command": "seq 50000; printf '\\377%.0s' $(seq 5000)"},
    ),
    "read_file": Sample(
        {"path": "a.txt"}, ({}, {"path": 42}, {"path": "a.txt", "offset": 0}, {"path": "a.txt", "limit": "3"}),
        {"path": "gone"}, {"path": "big.txt"}, tuple({"path": path} for path in OUT),
    ),
    "write_file": Sample(
        {"path": "new.txt", "content": "x"}, ({"path": "x"}, {"content": "x"}, {"path": "x", "content": ["x"]}),
        {"path": "folder", "content": "x"}, None, tuple({"path": path, "content": "x"} for path in OUT),
    ),
    "edit_file": Sample(
        {"path": "a.txt", "old": "one", "new": "two"}, ({"path": "a.txt", "old": "", "new": "x"}, {"path": "a.txt"}),
        {"path": "a.txt", "old": "not there", "new": "x"}, None,
        tuple({"path": path, "old": "CANARY", "new": "x"} for path in OUT),
    ),
    "list_files": Sample(
        {}, ({"path": 1}, {"pattern": ""}, {"depth": 3}), {"path": "gone"}, {"path": "many"},
        tuple({"path": path} for path in OUT),
    ),
    "search_files": Sample(
        {"pattern": "one"}, ({}, {"pattern": ""}, {"pattern": "x", "path": []}), {"pattern": "("}, {"pattern": "line"},
        tuple({"pattern": "CANARY", "path": path} for path in OUT),
    ),
    "job_output": Sample(
        {"job": "job1"}, ({}, {"job": "../../x"}, {"job": "job1", "offset": -1}), {"job": "unknown"}, {"job": "big"},
    ),
    "job_stop": Sample({"job": "job1"}, ({}, {"job": 1}, {"job": "a b"}), {"job": "unknown"}),
    "task_list": Sample(
        {"items": [{"text": "x", "state": "todo"}]},
        ({}, {"items": "[]"}, {"items": [{"text": "x", "state": "later"}]}),
        None, {"items": [{"text": "ü" * 400, "state": "todo"}] * 100},
    ),
    "http_request": Sample(
        {"method": "GET", "url": "SERVER/hello"},
        ({}, {"method": "GET"}, {"method": "FETCH", "url": "SERVER/"},
         {"method": "GET", "url": "SERVER/", "body": "x"}),
        {"method": "GET", "url": "http://169.254.169.254/latest"}, {"method": "GET", "url": "SERVER/long"},
    ),
}  # fmt: skip


@dataclass
class House:
    folder: Path
    jobs: Jobs
    tools: Mapping[str, Tool]
    server: str

    def placed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A sample's arguments with the address of this house's server."""
        told = {name: str(value).replace("SERVER", self.server) for name, value in arguments.items() if name == "url"}
        return {**arguments, **told}

    async def call(self, name: str, arguments: Mapping[str, Any], **limits: Any) -> ToolOutcome | Failure:
        return await self.tools[name].run(self.placed(arguments), self.context(**limits))

    def context(self, **limits: Any) -> ToolContext:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        return ToolContext(
            "t1", "call_1", str(self.folder / "ws"), str(self.folder / "art"), ToolLimits(**limits), environment
        )


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    workspace, artefacts = tmp_path / "ws", tmp_path / "art"
    (workspace / "folder").mkdir(parents=True)
    (workspace / "many").mkdir()
    artefacts.mkdir()
    (tmp_path / "secret").write_text("CANARY")
    (workspace / "out").symlink_to(tmp_path)
    (workspace / "a.txt").write_text("one\n")
    (workspace / "big.txt").write_text("".join(f"line {number} ü\n" for number in range(10_000)))
    for number in range(500):
        (workspace / "many" / f"{number:03d}{'ü' * 20}").touch()
    (artefacts / "job1.out").write_text("output\n")
    (artefacts / "big.out").write_bytes(b"\xff\0line\n" * 20_000)
    jobs = Jobs()
    async with loopback(_serve) as server:
        tools = builtin_tools(confine, jobs, [server.url.removeprefix("http://")])
        yield House(tmp_path, jobs, tools, server.url)
    await jobs.aclose()


async def _serve(visit: Visit) -> None:
    await visit.answer(200, b"line\n" * 20_000 if b"/long" in visit.head else b"hello")


@pytest.fixture(params=sorted(SAMPLES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_registry_holds_what_the_contracts_name(house: House) -> None:
    assert {name: tool.effect for name, tool in house.tools.items()} == CLASSES
    assert sorted(SAMPLES) == sorted(house.tools)


def test_the_spec_is_fit_for_a_model(house: House, name: str) -> None:
    spec = house.tools[name].spec
    assert spec.name == name
    assert re.fullmatch(r"[a-z_]{1,64}", name)
    assert spec.about.endswith(".")
    assert 40 < len(spec.about) < 600
    assert schema_problem(spec.schema) is None
    assert spec.schema["type"] == "object"
    assert spec.schema["additionalProperties"] is False
    assert json.loads(canonical_json(spec.schema)) == spec.schema


def test_the_samples_tell_fitting_from_unfitting(house: House, name: str) -> None:
    spec = house.tools[name].spec
    assert validate(spec, SAMPLES[name].good) == []
    assert all(validate(spec, bad) or bad.get("body") for bad in SAMPLES[name].bad)


async def test_a_good_call_gives_an_outcome(house: House, name: str) -> None:
    outcome = await house.call(name, SAMPLES[name].good)
    assert isinstance(outcome, ToolOutcome)
    assert outcome.text
    assert not outcome.is_error
    canonical_json({"text": outcome.text, "note": outcome.note, "facts": dict(outcome.facts)})


async def test_bad_arguments_are_refused_with_a_place_and_nothing_happens(house: House, name: str) -> None:
    # R2.3
    before = sorted(path.name for path in (house.folder / "ws").iterdir())
    for bad in SAMPLES[name].bad:
        failure = await house.call(name, bad)
        assert isinstance(failure, Failure)
        assert failure.hint is ErrorClass.INVALID_ARGUMENTS
        assert re.match(r"[a-z_\[\]0-9.]+: ", failure.message)
        assert not failure.effect_begun
    assert sorted(path.name for path in (house.folder / "ws").iterdir()) == before


async def test_what_the_world_refuses_is_a_classified_failure_with_advice(house: House, name: str) -> None:
    # R2.1
    refused = SAMPLES[name].refused
    if refused is None:
        assert name in ("bash", "task_list")  # the one answers with exit codes, the other touches no world
        return
    failure = await house.call(name, refused)
    assert isinstance(failure, Failure)
    assert (failure.source, failure.dependency) == ("tool", f"tool/{name}")
    assert failure.hint is not None
    assert failure.message
    assert failure.advice
    assert "Traceback" not in failure.message
    assert str(house.folder) not in failure.message + failure.advice


async def test_an_answer_is_bounded_and_of_whole_characters(house: House, name: str) -> None:
    long = SAMPLES[name].long
    if long is None:
        assert name in ("write_file", "edit_file", "job_stop")  # they answer in one line
        return
    outcome = await house.call(name, long, output_max=4096)
    assert isinstance(outcome, ToolOutcome)
    assert 1000 < len(outcome.text.encode()) <= 4096
    assert "\0" not in outcome.text


async def test_paths_do_not_lead_out(house: House, name: str) -> None:
    # security/path-*
    escapes = SAMPLES[name].escapes
    assert bool(escapes) is ("path" in house.tools[name].spec.schema["properties"])
    for arguments in escapes:
        failure = await house.call(name, arguments)
        assert isinstance(failure, Failure)
        assert failure.hint is ErrorClass.PERMISSION_DENIED
        assert failure.message == f"{arguments['path']}: the path leaves the workspace"
    assert (house.folder / "secret").read_text() == "CANARY"


async def test_odd_strings_in_every_place_never_raise(house: House, name: str) -> None:
    # j11
    for odd in ("\ud800", "\0", "a\nb", "\x1b[2J", "x" * 5000, "\udcff/../x", "-rf", "%s{0}"):
        arguments = {key: odd if isinstance(value, str) else value for key, value in SAMPLES[name].good.items()}
        outcome = await house.call(name, arguments)
        text = outcome.text if isinstance(outcome, ToolOutcome) else outcome.message + outcome.advice + outcome.output
        text.encode()


async def test_a_cancelled_call_ends_soon(house: House, name: str) -> None:
    arguments = {"command": "setsid sleep 60 & sleep 60"} if name == "bash" else SAMPLES[name].good
    calling = asyncio.ensure_future(house.call(name, arguments))
    await asyncio.sleep(0.15 if name == "bash" else 0)
    calling.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait({calling})
    assert calling.cancelled() or name != "bash"
    assert house.jobs.running("t1") == []
    assert house.jobs.signs_of_life("t1") == {}


async def test_a_workspace_that_is_gone_is_a_failure(house: House, name: str) -> None:
    (house.folder / "ws").rename(house.folder / "elsewhere")
    outcome = await house.call(name, SAMPLES[name].good)
    if name in ("job_output", "job_stop", "task_list", "http_request"):
        assert isinstance(outcome, ToolOutcome)  # they need none
    else:
        assert isinstance(outcome, Failure)
        assert outcome.hint is ErrorClass.EXECUTION_FAILED
        assert str(house.folder) not in outcome.message + outcome.advice
