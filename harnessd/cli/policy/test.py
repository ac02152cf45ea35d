"""Test: the unit tests of policies, on virtual time; without daemon, network, keys or environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Problem
from harnessd.cli.options import connection, json_option
from harnessd.cli.policy.sources import config_option, counted, plain, problems_in, tell_problems
from harnessd.config.files import Snapshot
from harnessd.config.load import ReadSettings, builtin_policies, read_policies, read_settings, shown_folder
from harnessd.config.policy_tests import (
    AgentPolicies,
    FileReport,
    Outcome,
    Report,
    Unexpected,
    builtin_tests,
    read_tests_folder,
    run_tests,
)
from harnessd.defence.trial.step import Answer
from harnessd.policy import PolicySet
from harnessd.policy import Problem as Fault
from harnessd.policy.language.source import Place

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@click.command()
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@config_option
@click.option("--junit", metavar="FILE", type=click.Path(path_type=Path), help="Also write the outcome as JUnit XML.")
@json_option
@connection
def test(folder: Path | None, config: Path | None, junit: Path | None, as_json: bool) -> int:
    """Run the unit tests of policies.

    DIR is the policy folder, whose tests stand in DIR/tests; else the folder that ./harness.yaml names, else
    ./policies, else the built-in policies with their own tests. Time is virtual. Exit status 1 where a test fails or
    something cannot be read.
    """
    bench = _bench(folder, config)
    if bench.problems or bench.policies is None:
        if as_json:
            render.out_json(_json(Report((), bench.problems), bench.shown))
        else:
            tell_problems(bench.problems)
            render.out(f"{problems_in(bench.problems)}; no test was run.")
        _write_junit(junit, Report((), bench.problems))
        return FAILED
    report = run_tests(bench.policies, bench.tests, bench.agents)
    if not report.there or not (report.files or report.problems):
        message = f"There are no tests in {render.one_line(bench.shown)}/tests."
        raise Problem(USAGE, message, "Write one there: tests: [{name: ..., given: [...], expect: [...]}].")
    _write_junit(junit, report)
    if as_json:
        render.out_json(_json(report, bench.shown))
    else:
        render.out_lines(_lines(report))
    return 0 if report.passed else FAILED


# --- what is tested ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """A policy set, its tests, and what agents ask for."""

    shown: str
    policies: PolicySet | None
    tests: Snapshot
    agents: AgentPolicies
    problems: tuple[Fault, ...] = ()


def _bench(folder: Path | None, config: Path | None) -> Bench:
    """The policies and tests that are meant. Raises Problem where a named folder or file is missing."""
    settings = _settings(folder, config)
    if folder is None:
        folder, shown = _folder_of(settings)
        if folder is None:
            return Bench("the built-in policies", builtin_policies(), builtin_tests(), {})
    else:
        if not folder.is_dir():
            message = f"There is no folder {render.one_line(folder)}."
            raise Problem(USAGE, message, "Name the folder that holds policies.")
        folder = folder.parent if folder.name == "tests" and not (folder / "tests").is_dir() else folder
        shown = str(folder)
    # Names are not looked up here: that is `policy check`, which needs harness.yaml.
    read = read_policies(folder, shown, None)
    problems = tuple(sorted({*read.problems, *(settings.problems if settings is not None else ())}))
    agents: Mapping[str, Mapping[str, str]] = {}
    if settings is not None and settings.settings is not None:
        agents = {name: dict(agent.policies) for name, agent in settings.settings.agents.items()}
    return Bench(shown, read.policies, read_tests_folder(folder, shown), agents, problems)


def _settings(folder: Path | None, config: Path | None) -> ReadSettings | None:
    """The harness.yaml that was named, else the one that names this folder; its environment is not looked at."""
    if config is not None:
        path = config / "harness.yaml" if config.is_dir() else config
        if not path.is_file():
            message = f"There is no {render.one_line(path)} (--config)."
            raise Problem(USAGE, message, "Write it, or name another file.")
        return read_settings(path, {})
    if folder is None:
        here = Path("harness.yaml")
        return read_settings(here, {}) if here.is_file() else None
    place = Path(os.path.normpath(folder.absolute()))
    beside = place.parent / "harness.yaml"
    read = read_settings(beside, {}) if beside.is_file() else None
    if read is None or read.settings is None:
        return None
    return read if Path(read.settings.policies.dir) == place else None


def _folder_of(settings: ReadSettings | None) -> tuple[Path | None, str]:
    if settings is not None and settings.settings is not None:
        folder = Path(settings.settings.policies.dir)
        return (folder, shown_folder(folder, settings.path, None)) if folder.is_dir() else (None, "")
    folder = Path("policies")
    return (folder, "policies") if folder.is_dir() else (None, "")


# --- for people -------------------------------------------------------------------------------------------------------


def _lines(report: Report) -> Iterator[str]:
    yield from (render.one_line(problem) for problem in report.problems)
    if report.files:
        yield from render.table([(file.shown, _counts(file)) for file in report.files])
    for file in report.files:
        yield from (render.one_line(problem) for problem in file.problems)
    for file in report.files:
        for outcome in file.failed:
            yield from _failure(outcome)
    failed = sum(len(file.failed) for file in report.files)
    problems = len(report.problems) + sum(len(file.problems) for file in report.files)
    bad = [f"{failed} failed"] * bool(failed) + [counted(problems, "problem")] * bool(problems)
    how = ", ".join(bad) if bad else "all passed"
    yield f"{counted(report.tests, 'test')} in {counted(len(report.files), 'file')}: {how}"


def _counts(file: FileReport) -> str:
    failed = len(file.failed)
    parts = [f"{len(file.outcomes) - failed} passed"]
    parts += [f"{failed} FAILED"] * bool(failed)
    return ", ".join([*parts, *[counted(len(file.problems), "problem")] * bool(file.problems)])


def _failure(outcome: Outcome) -> Iterator[str]:
    test = outcome.test
    yield ""
    yield f"FAILED {render.one_line(test.name)}"
    yield f"  {render.one_line(test.place)}"
    for step in outcome.unexpected:
        yield f"  step {step.number} of {len(test.given)}, line {step.place.line}"
        rows = [(f"    {m.key}", "expected", m.expected, "got", m.got) for m in step.mismatches]
        yield from render.table(rows)
        yield from (f"    {line}" for line in _decided(step.answer))


def _decided(answer: Answer) -> Iterator[str]:
    """Which lines decided, and what could not act."""
    for number, ref in enumerate(answer.rules):
        about = "decided by" if number == 0 else "with"
        where = f"{ref.file}:{ref.line}" if ref.line else ref.file
        yield render.one_line(f"{about} {ref.kind}/{ref.name} {ref.rule}  {where}")
    yield from (render.one_line(f"passed over {why}") for why in answer.passed)


# --- for programs -----------------------------------------------------------------------------------------------------


def _json(report: Report, shown: str) -> dict[str, Any]:
    problems = [*report.problems, *(problem for file in report.files for problem in file.problems)]
    return {
        "ok": report.passed,
        "folder": shown,
        "tests": report.tests,
        "failed": sum(len(file.failed) for file in report.files),
        "problems": [_problem(problem) for problem in problems],
        "files": [
            {"file": file.shown, "tests": [_test(outcome) for outcome in file.outcomes]} for file in report.files
        ],
    }


def _problem(fault: Fault) -> dict[str, Any]:
    place = plain(Place(fault.file, fault.line, fault.column))
    return place | {"message": fault.message, "remedy": fault.remedy, "text": str(fault)}


def _test(outcome: Outcome) -> dict[str, Any]:
    test = outcome.test
    steps = [_step(step) for step in outcome.unexpected]
    return {"name": test.name, "line": test.place.line, "ok": not steps, "unexpected": steps}


def _step(step: Unexpected) -> dict[str, Any]:
    answer = step.answer
    return {
        "step": step.number,
        "line": step.place.line,
        "differences": [{"key": m.key, "expected": m.expected, "got": m.got} for m in step.mismatches],
        "got": {
            "class": answer.error_class,
            "do": answer.do,
            "to": answer.to,
            "waited_s": answer.waited_s,
            "says": answer.says,
            "reason": answer.reason,
            "policies": dict(answer.policies),
        },
        "rules": [
            {"kind": ref.kind, "name": ref.name, "rule": ref.rule, "file": ref.file, "line": ref.line}
            for ref in answer.rules
        ],
        "passed_over": list(answer.passed),
    }


# --- JUnit XML --------------------------------------------------------------------------------------------------------


def _write_junit(path: Path | None, report: Report) -> None:
    """Raises Problem where the file cannot be written."""
    if path is None:
        return
    try:
        path.write_bytes(junit_xml(report))
    except OSError as error:
        message = f"{render.one_line(path)} cannot be written: {error.strerror or error}."
        raise Problem(USAGE, message, "Name a file in a folder that is there: --junit FILE.") from None


def junit_xml(report: Report) -> bytes:
    """The report as JUnit XML: a suite a file; what cannot be read is an error. Times are virtual, hence 0."""
    root = ET.Element("testsuites", name="policies")
    suites = [_suite(file.shown, file.outcomes, file.problems) for file in report.files]
    if report.problems:
        suites.append(_suite("policies", (), report.problems))
    root.extend(suites)
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("time", "0")
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(shown: str, outcomes: tuple[Outcome, ...], problems: tuple[Fault, ...]) -> ET.Element:
    failed = sum(bool(outcome.unexpected) for outcome in outcomes)
    suite = ET.Element("testsuite", name=_xml(shown), tests=str(len(outcomes) + len(problems)))
    suite.attrib |= {"failures": str(failed), "errors": str(len(problems)), "skipped": "0", "time": "0"}
    for outcome in outcomes:
        case = _case(suite, shown, outcome.test.name, outcome.test.place)
        if outcome.unexpected:
            text = "\n".join(_failure(outcome)).strip()
            first = outcome.unexpected[0]
            wrong = first.mismatches[0]
            message = f"step {first.number}: {wrong.key}: expected {wrong.expected}, got {wrong.got}"
            failure = ET.SubElement(case, "failure", message=_xml(message), type="expectation")
            failure.text = _xml(text)
    for problem in problems:
        place = Place(problem.file, problem.line, problem.column)
        case = _case(suite, shown, f"{place}: {problem.message}", place)
        error = ET.SubElement(case, "error", message=_xml(problem.message), type="problem")
        error.text = _xml(str(problem))
    return suite


def _case(suite: ET.Element, shown: str, name: str, place: Place) -> ET.Element:
    case = ET.SubElement(suite, "testcase", classname=_xml(shown), name=_xml(name), time="0")
    case.attrib |= {"file": _xml(place.file), "line": str(place.line)}
    return case


def _xml(text: str) -> str:
    """The text without the characters that XML 1.0 cannot hold."""
    return _NO_XML.sub("\ufffd", text)
