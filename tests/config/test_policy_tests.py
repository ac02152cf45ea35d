"""Test files of policies: all problems with their places, any bytes survived, every expectation able to fail (R7.3)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harnessd.config.files import Snapshot, SourceFile
from harnessd.config.policy_tests import FileReport, read_tests, read_tests_folder, run_tests
from tests.policy.written import policies

SET = policies(
    "kind: fallback\nchains: {model/primary: [model/second]}\n",
    "kind: retry\nname: strict\nmodel: {retries: 1}\n",
)


def ran(text: str | bytes) -> FileReport:
    data = text if isinstance(text, bytes) else text.encode()
    report = run_tests(SET, Snapshot((SourceFile("t.yaml", data),)), {})
    return report.files[0]


def problems(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [str(problem) for problem in read_tests(SourceFile("t.yaml", data), SET, {}).problems]


def one(given_: str, expect: str, more: str = "") -> str:
    return f"tests:\n  - name: it\n    given: [{given_}]\n    expect: [{expect}]\n{more}"


def differences(given_: str, expect: str, more: str = "") -> list[tuple[str, str, str]]:
    """Key, expected and got of everything that is not as expected."""
    report = ran(one(given_, expect, more))
    assert report.problems == ()
    return [(m.key, m.expected, m.got) for o in report.outcomes for step in o.unexpected for m in step.mismatches]


QUOTA = "{model: model/primary, status: 429, code: insufficient_quota}"


# --- what must come out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong", "got"),
    [
        ("class: quota_exhausted", "class: auth", ("class", "auth", "quota_exhausted")),
        ("class: quota*", "class: a*", ("class", "a*", "quota_exhausted")),
        ("do: fallback", "do: park", ("do", "park", "fallback")),
        ("to: model/second", "to: model/local", ("to", "model/local", "model/second")),
        ("rule: quota", "rule: key", ("rule", "key", "model.classes.quota_exhausted, quota, chains.model/primary")),
        ("waited: 0s", "waited: 1ms", ("waited", "1ms", "0s")),
        ('says: "model/second takes over*"', "says: nothing", ("says", "nothing", "model/second takes over from*")),
        ("policy: retry/default", "policy: retry/strict", ("policy", "retry/strict", "retry/default")),
        ("policy: default", "policy: strict", ("policy", "strict", "default")),
        ("policy: {retry: default}", "policy: {retry: strict}", ("policy", "retry/strict", "retry/default")),
    ],
)
def test_every_key_can_pass_and_fail(right: str, wrong: str, got: tuple[str, str, str]) -> None:
    assert differences(QUOTA, f"{{{right}}}") == []
    ((key, expected, found),) = differences(QUOTA, f"{{{wrong}}}")
    assert (key, expected) == got[:2]
    assert found.startswith(got[2].removesuffix("*"))


def test_a_stop_reason_can_pass_and_fail() -> None:
    assert differences("{class: internal_error}", "{reason: internal_error}") == []
    wrong = differences("{class: internal_error}", "{reason: refused}")
    assert wrong == [("reason", "refused", "internal_error")]
    assert differences(QUOTA, "{reason: refused}") == [("reason", "refused", "none")]


def test_channels_may_be_a_list() -> None:
    assert differences("{event: needs_human}", "{to: [log]}") == []
    assert differences("{event: needs_human}", "{to: [log, ops]}") == [("to", "log, ops", "log")]


def test_all_differences_of_all_steps_are_told() -> None:
    report = ran(
        "tests:\n  - name: it\n    given:\n      - {model: model/primary, status: 529}\n"
        "      - {model: model/primary, status: 529, times: 2}\n    expect: [{do: stop, waited: 9s}, {do: retry}]\n"
    )
    (outcome,) = report.outcomes
    assert [(step.number, step.place.line, len(step.mismatches)) for step in outcome.unexpected] == [
        (1, 4, 2),
        (2, 5, 1),
    ]
    assert outcome.test.place.line == 2


def test_one_expectation_is_for_the_last_step_and_an_empty_one_for_nothing() -> None:
    three = "{used: {tool_calls: 63}}, {used: {tool_calls: 81}}, {used: {tool_calls: 90}}"
    assert differences(three, "{do: stop}") == []
    assert differences(three, "{}, {says: '81*'}, {}") == []
    assert differences(three, "{}, {says: '82*'}, {}") == [
        ("says", "82*", "81 of 90 tool_calls used: plan the rest of the work within it.")
    ]


@pytest.mark.parametrize(
    "whose", ["    agent: builder\n    labels: {team: web}\n", "    policy: {agent: builder, labels: {team: web}}\n"]
)
def test_the_task_is_chosen_as_assign_would(whose: str) -> None:
    rules = "kind: assign\nrules: [{when: {agent: builder, label.team: web}, use: {retry: strict}}]\n"
    found = policies("kind: retry\nname: strict\nmodel: {retries: 1}\n", rules)
    text = one("{model: model/primary, status: 529}", "{policy: retry/strict}", whose)
    report = run_tests(found, Snapshot((SourceFile("t.yaml", text.encode()),)), {})
    assert report.passed
    other = run_tests(found, Snapshot((SourceFile("t.yaml", text.replace("web", "ops").encode()),)), {})
    assert not other.passed


def test_what_an_agent_names_in_harness_yaml_counts() -> None:
    text = one("{model: model/primary, status: 529}", "{policy: retry/strict}", "    agent: crawler\n")
    snapshot = Snapshot((SourceFile("t.yaml", text.encode()),))
    assert run_tests(SET, snapshot, {"crawler": {"retry": "strict"}}).passed
    assert not run_tests(SET, snapshot, {}).passed


# --- what is wrong with a test ----------------------------------------------------------------------------------------


PROBLEMS = [
    ("test: []\n", 't.yaml:1:1: unknown key "test": did you mean "tests"?'),
    ("tests: {}\n", "t.yaml:1:8: the key tests must be there and hold a list"),
    ("tests: []\n", "t.yaml:1:8: there is no test in the list"),
    ("tests: [x]\n", "t.yaml:1:9: x is not a test"),
    ("- 1\n", "t.yaml:1:1: a list stands where a map is wanted: write tests: [...]"),
    ("tests: [{given: [{context: 1%}], expect: [{do: none}]}]\n", 't.yaml:1:9: the key "name" is missing'),
    (one("{modle: model/primary}", "{do: none}"), 't.yaml:3:14: unknown key or fact "modle": did you mean "mod'),
    (one("{result.x: 1}", "{do: none}"), 't.yaml:3:14: unknown key or fact "result.x"'),
    (one("{label: x}", "{do: none}"), 't.yaml:3:14: unknown key or fact "label"'),
    (one("{model: primary}", "{do: none}"), "t.yaml:3:21: primary is not the full name of a model: write"),
    (one("{tool: mcp/pay}", "{do: none}"), "t.yaml:3:20: mcp/pay is not the full name of a tool"),
    (one("{tool: tool/*}", "{do: none}"), "t.yaml:3:20: tool/* is not the full name of a tool"),
    (one("{model: model/a, status: 5xx}", "{do: none}"), "t.yaml:3:38: 5xx is many values: write one, as 529"),
    (one("{model: model/a, status: [1]}", "{do: none}"), "t.yaml:3:38: a list stands where one value"),
    (one("{model: model/a, call_cut: yes}", "{do: none}"), "t.yaml:3:40: unknown word yes"),
    (one("{model: model/a, ended: cuts}", "{do: none}"), 't.yaml:3:37: unknown word cuts: did you mean "cut"?'),
    (one("{model: model/a, class: unknown_tool}", "{do: none}"), "t.yaml:3:37: unknown_tool is no class of a model"),
    (one("{status: 529}", "{do: none}"), "t.yaml:3:14: whose is status?"),
    (one("{used: {tool_call: 3}}", "{do: none}"), 't.yaml:3:21: unknown used "tool_call": did you mean "tool_calls"?'),
    (one("{used: {wall_time: 300}}", "{do: none}"), "t.yaml:3:32: 300 is not a duration: write 300s or 5m"),
    (one("{used: {}}", "{do: none}"), "t.yaml:3:20: a map stands where a map is wanted"),
    (one("{used: {turns: 1}, context: 3%}", "{do: none}"), "t.yaml:3:32: context and used in one step: write"),
    (one("{used: {turns: 1, concurrency: 3}}", "{do: none}"), "t.yaml:3:14: budgets of the task and limits of a name"),
    (one("{used: {turns: 1}, status: 429}", "{do: none}"), "t.yaml:3:32: status says nothing beside used"),
    (one("{event: drained, status: 429}", "{do: none}"), "t.yaml:3:30: status says nothing beside event"),
    (one("{context: 72}", "{do: none}"), "t.yaml:3:23: 72 is not a ratio: 72% or 0.72?"),
    (one("{context: 72%, times: 0}", "{do: none}"), "t.yaml:3:35: 0 is out of bounds"),
    (one("{context: 72%, after: 5}", "{do: none}"), "t.yaml:3:35: 5 is not a duration"),
    (one("{}", "{do: none}"), "t.yaml:3:13: a map is not a step"),
    (one("{model: model/a, body.a: 1, body.a.b: 2}", "{do: none}"), "t.yaml:3:41: body.a is a value, and body.a.b"),
    (one(QUOTA, "{dos: park}"), 't.yaml:4:15: unknown key "dos": did you mean "do"?'),
    (one(QUOTA, "{do: prak}"), 't.yaml:4:19: unknown word prak: did you mean "park"?'),
    (one(QUOTA, "{class: quota_exhaust}"), 't.yaml:4:22: unknown word quota_exhaust: did you mean "quota_exhausted"?'),
    (one(QUOTA, "{reason: broke}"), "t.yaml:4:23: unknown word broke"),
    (one(QUOTA, "{waited: 3}"), "t.yaml:4:23: 3 is not a duration: write 3s"),
    (one(QUOTA, "{policy: rtry/default}"), 't.yaml:4:23: no kind "rtry": did you mean "retry"?'),
    (one(QUOTA, "{policy: {rtry: x}}"), 't.yaml:4:24: no kind "rtry": did you mean "retry"?'),
    (one(QUOTA, "x"), "t.yaml:4:14: x is not an expectation"),
    (one(QUOTA, "{}"), "t.yaml:4:13: nothing is expected: this test cannot fail"),
    (one(f"{QUOTA}, {QUOTA}, {QUOTA}", "{}, {do: park}"), "t.yaml:4:13: 2 entries in expect for 3 steps in given"),
    (one(QUOTA, "{do: park}", "    policy: {retry: strct}\n"), 't.yaml:5:21: no retry policy "strct": did you mean "'),
    (one(QUOTA, "{do: park}", "    policy: {rtry: x}\n"), 't.yaml:5:14: no kind "rtry": did you mean "retry"?'),
    (one(QUOTA, "{do: park}", "    policy: strict\n"), "t.yaml:5:13: strict stands where a map is wanted"),
    (one(QUOTA, "{do: park}", "    labels: [a]\n"), "t.yaml:5:13: a list stands where a map is wanted"),
    (one(QUOTA, "{do: park}", "    agent: [a]\n"), "t.yaml:5:12: a list stands where a text is wanted"),
    (one(QUOTA, "{do: park}", "    agent: a\n    policy: {agent: b}\n"), "t.yaml:6:14: agent stands twice"),
    (one("{context: 1%, times: 1000}, {context: 1%}", "{do: none}"), "t.yaml:3:12: 1001 steps with all repeats"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), PROBLEMS)
def test_a_problem_has_its_place_and_a_remedy(text: str, problem: str) -> None:
    found = problems(text)
    assert len(found) == 1, found
    assert found[0].startswith(problem)


def test_all_problems_of_a_file_at_once_and_what_can_be_read_runs() -> None:
    text = (
        "tests:\n  - {name: a, given: [{modle: x, status: 4}], expect: [{dos: x, waited: 3}], extra: 1}\n"
        "  - {name: b, given: [{context: 72%}], expect: [{do: compact}]}\n"
    )
    report = ran(text)
    assert [str(p).split(":")[2] for p in report.problems] == ["24", "57", "73", "78"]
    assert [outcome.test.name for outcome in report.outcomes] == ["b"]
    assert not report.failed


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
@example(b"")
@example(b"\x00\xff")
@example(b"tests: " + b"[" * 5000)
@example(b"tests: &a [*a]")
@example(b"tests: [{name: a, name: b}]")
@example("tests: [{name: \u202e, given: [{model: model/\u0000}]}]".encode())
@example(b"tests: [{given: [[]], expect: [[]], name: {}, policy: [], agent: {}, labels: 1}]")
def test_any_bytes_are_survived(data: bytes) -> None:
    report = ran(data)
    assert report.problems or report.outcomes


KEYS = st.sampled_from(
    [
        "model",
        "tool",
        "class",
        "status",
        "used",
        "context",
        "event",
        "after",
        "times",
        "body.a",
        "label.x",
        "result",
        "x",
    ]
)
WORDS = st.sampled_from(
    [
        "model/primary",
        "tool/bash",
        "auth",
        "timeout",
        "hang",
        "529",
        "{turns: 3}",
        "72%",
        "drained",
        "1h",
        "[]",
        '""',
        "-1",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(KEYS, WORDS), min_size=1, max_size=4, unique_by=lambda pair: pair[0]))
def test_any_step_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    report = ran(one("{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}", '{do: "*"}'))
    assert report.problems or len(report.outcomes) == 1
    assert not report.failed


def test_a_thousand_repeats_take_no_time() -> None:
    began = time.process_time()
    step = "{tool: tool/bash, command: make, result: same, times: 999}"
    assert ran(one(step, '{do: "*"}')).problems == ()
    assert time.process_time() - began < 20


def test_the_folder_is_read_as_policies_are(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("a.yaml", "b.yaml~", ".c.yaml", "d.txt"):
        (tests / name).write_text(one("{context: 72%}", "{do: compact}"))
    (tests / "e.yml").write_text("")
    snapshot = read_tests_folder(tmp_path, "policies")
    assert [file.shown for file in snapshot.files] == ["policies/tests/a.yaml"]
    assert [str(problem) for problem in snapshot.problems] == [
        "policies/tests/e.yml:1:1: not read, and refused so that it is noticed: name it e.yaml"
    ]
    assert not run_tests(SET, snapshot, {}).passed
    assert not read_tests_folder(tmp_path / "none", "none").there
