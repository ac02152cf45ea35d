"""policy test: one line a file, a readable difference for each failure, JSON and JUnit; no daemon, no environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.cli.policy.conftest import Ctl, Place
from tests.cli.test_render import HOSTILE, drives_a_terminal
from tests.policy.written import repository

GOOD = """\
tests:
  - name: a paid-out account is parked at once
    given: [{model: model/primary, status: 429, code: insufficient_quota}]
    expect: [{class: quota_exhausted, do: park}]
  - name: a payment needs a person, whoever the agent is
    given: [{tool: mcp/pay/charge}]
    expect: [{do: ask, rule: irreversible}]
"""
BAD = """\
tests:
  - name: an hour's Retry-After is slept
    given:
      - {model: model/primary, status: 429, header.retry-after: "3600"}
    expect: [{class: rate_limited, do: retry, waited: 30m}]
"""


@pytest.fixture
def tests(place: Place) -> Place:
    (place.policies / "tests").mkdir()
    place.write("good.yaml", GOOD, below="policies/tests")
    return place


def write(place: Place, name: str, text: str) -> None:
    place.write(name, text, below="policies/tests")


def test_all_passed(tests: Place, ctl: Ctl) -> None:
    # R7.3, A16
    done = ctl("test", "policies")
    assert (done.code, done.err) == (0, "")
    assert done.out == "policies/tests/good.yaml  2 passed\n2 tests in 1 file: all passed\n"
    assert ctl("test", "policies/tests").code == 0


def test_a_failure_is_shown_with_what_decided(tests: Place, ctl: Ctl) -> None:
    write(tests, "bad.yaml", BAD)
    done = ctl("test", "policies")
    assert done.code == 1
    assert done.out.splitlines() == [
        "policies/tests/bad.yaml   0 passed, 1 FAILED",
        "policies/tests/good.yaml  2 passed",
        "",
        "FAILED an hour's Retry-After is slept",
        "  policies/tests/bad.yaml:2",
        "  step 1 of 1, line 4",
        "    do      expected  retry  got  park",
        "    waited  expected  30m    got  1h",
        *done.out.splitlines()[8:10],
        "    passed over retry: the service asks for 3600 s, more than server_wait_max 600 s",
        *done.out.splitlines()[11:12],
        "3 tests in 2 files: 1 failed",
    ]
    assert done.out.splitlines()[8].startswith(
        "    decided by retry/default model.classes.rate_limited  builtin retry.yaml:"
    )
    assert done.out.splitlines()[9].startswith("    with retry/default throttled  builtin retry.yaml:")


def test_the_operators_line_is_named(tests: Place, ctl: Ctl) -> None:
    # A22: a wrong class is mended by a rule and a test with the same facts
    tests.write(
        "retry.yaml", "kind: retry\nrules: [{name: gw-busy, when: {body.error.reason: BUSY}, class: overloaded}]\n"
    )
    given = "{model: model/primary, status: 400, body.error.reason: BUSY}"
    write(
        tests, "gw.yaml", f"tests: [{{name: busy, given: [{given}], expect: [{{rule: gw-busy, class: overloaded}}]}}]\n"
    )
    assert ctl("test", "policies").code == 0
    write(tests, "gw.yaml", f"tests: [{{name: busy, given: [{given}], expect: [{{class: auth}}]}}]\n")
    done = ctl("test", "policies")
    assert done.code == 1
    assert "with retry/default gw-busy  policies/retry.yaml:2" in done.out


def test_what_cannot_be_read_is_a_problem_with_a_place(tests: Place, ctl: Ctl) -> None:
    write(tests, "typo.yaml", "tests: [{name: a, given: [{modle: x}], expect: [{do: prak}]}]\n")
    done = ctl("test", "policies")
    assert done.code == 1
    assert 'policies/tests/typo.yaml:1:28: unknown key or fact "modle": did you mean "model"?' in done.out
    assert 'policies/tests/typo.yaml:1:54: unknown word prak: did you mean "park"?' in done.out
    assert done.out.endswith("2 tests in 2 files: 2 problems\n")


def test_broken_policies_are_no_ground_for_tests(tests: Place, ctl: Ctl) -> None:
    tests.write("retry.yaml", "kind: retry\nmodle: {}\n")
    done = ctl("test", "policies", "--junit", "out.xml")
    assert done.code == 1
    assert done.out.startswith('policies/retry.yaml:2:1: unknown key "modle": did you mean "model"?\n')
    assert done.out.endswith("1 problem in 1 file; no test was run.\n")
    assert ET.parse("out.xml").getroot().get("errors") == "1"
    assert json.loads(ctl("test", "policies", "--json").out)["ok"] is False


def test_names_are_not_looked_up(tests: Place, ctl: Ctl) -> None:
    (tests.folder / "harness.yaml").unlink()
    tests.write("fallback.yaml", "kind: fallback\nchains: {model/primary: [model/elsewhere]}\n")
    write(tests, "good.yaml", GOOD.replace("do: park", "do: fallback, to: model/elsewhere, waited: 0s"))
    assert ctl("test", "policies").code == 0


def test_without_a_folder_harness_yaml_names_it(tests: Place, ctl: Ctl) -> None:
    done = ctl("test")
    assert (done.code, done.out.splitlines()[0]) == (0, "policies/tests/good.yaml  2 passed")
    (tests.folder / "harness.yaml").unlink()
    assert ctl("test").out == done.out


def test_without_any_folder_the_built_in_policies_are_tested(place: Place, ctl: Ctl, tmp_path: Path) -> None:
    (place.policies / "long.yaml").unlink()
    place.policies.rmdir()
    done = ctl("test")
    assert done.code == 0
    assert "builtin tests/budget.yaml" in done.out


def test_the_agents_own_policies_count_where_harness_yaml_is_known(tests: Place, ctl: Ctl) -> None:
    step = "given: [{used: {tool_calls: 90}}], expect: [{do: none, policy: budget/long}]"
    write(tests, "good.yaml", f"tests: [{{name: a, agent: crawler, {step}}}]\n")
    assert ctl("test", "policies").code == 0
    assert ctl("test", "policies", "--config", "harness.yaml").code == 0
    (tests.folder / "harness.yaml").rename(tests.folder / "other.yaml")
    assert ctl("test", "policies").code == 1


def test_usage(place: Place, ctl: Ctl) -> None:
    for words, message in (
        (("nowhere",), "There is no folder nowhere."),
        (("policies",), "There are no tests in policies/tests."),
        (("policies", "--config", "none.yaml"), "There is no none.yaml (--config)."),
        (("policies", "--junits", "x"), "No such option"),
    ):
        done = ctl("test", *words)
        assert (done.code, done.out) == (2, ""), words
        assert done.err.startswith(message)
    (place.policies / "tests").mkdir()
    write(place, "good.yaml", GOOD)
    done = ctl("test", "policies", "--junit", "no/such/folder.xml")
    assert (done.code, done.out) == (2, "")
    assert "cannot be written" in done.err


def test_json(tests: Place, ctl: Ctl) -> None:
    write(tests, "bad.yaml", BAD)
    done = ctl("test", "policies", "--json")
    assert done.code == 1
    told = json.loads(done.out)
    assert (told["ok"], told["tests"], told["failed"], told["problems"]) == (False, 3, 1, [])
    assert [file["file"] for file in told["files"]] == ["policies/tests/bad.yaml", "policies/tests/good.yaml"]
    (failed,) = told["files"][0]["tests"]
    (step,) = failed["unexpected"]
    assert (failed["ok"], failed["line"], step["step"], step["line"]) == (False, 2, 1, 4)
    assert step["differences"][0] == {"key": "do", "expected": "retry", "got": "park"}
    assert (step["got"]["class"], step["got"]["waited_s"]) == ("rate_limited", 3600.0)
    assert step["rules"][1]["rule"] == "throttled"
    assert step["passed_over"][0] == "retry: the service asks for 3600 s, more than server_wait_max 600 s"


def test_junit(tests: Place, ctl: Ctl) -> None:
    write(tests, "bad.yaml", BAD)
    write(tests, "typo.yaml", "tests: 3\n")
    done = ctl("test", "policies", "--junit", "policy.xml")
    assert done.code == 1
    root = ET.parse("policy.xml").getroot()
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("errors")) == ("testsuites", "4", "1", "1")
    suites = {suite.get("name"): suite for suite in root}
    (case,) = suites["policies/tests/bad.yaml"]
    assert (case.get("name"), case.get("line")) == ("an hour's Retry-After is slept", "2")
    (failure,) = case
    assert failure.get("message") == "step 1: do: expected retry, got park"
    assert "waited  expected  30m    got  1h" in (failure.text or "")
    assert [list(case) for case in suites["policies/tests/good.yaml"]] == [[], []]
    (error,) = suites["policies/tests/typo.yaml"][0]
    assert (error.tag, error.get("type")) == ("error", "problem")


def test_hostile_words_neither_drive_a_terminal_nor_break_the_xml(tests: Place, ctl: Ctl) -> None:
    name = json.dumps(f"]]>&<x> {HOSTILE}").replace("\\u", "").replace("\\x", "")
    write(tests, "good.yaml", f"tests: [{{name: {name}, given: [{{context: 72%}}], expect: [{{says: {name}}}]}}]\n")
    (tests.policies / "tests" / os.fsdecode(b"\xff<&\x1b[2J.yaml")).write_text(BAD)
    done = ctl("test", "policies", "--junit", "policy.xml")
    assert done.code == 1
    assert not any(drives_a_terminal(letter) for letter in done.out if letter != "\n")
    ET.parse("policy.xml")


def test_the_environment_says_nothing(tests: Place, tmp_path: Path) -> None:
    # A16: no daemon, no keys, no network; what the environment says of a configuration is not asked.
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(repository()),
        "HARNESSD_CONFIG": "/nowhere/harness.yaml",
        "HARNESSD_POLICIES__DIR": "/nowhere",
        "HARNESSD_SOCKET": "/nowhere/socket",
    }
    command = [sys.executable, "-m", "harnessd.cli", "policy", "test"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("2 tests in 1 file: all passed\n")
