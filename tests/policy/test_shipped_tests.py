"""The shipped policies pass their own tests, and a change of what matters makes them fail (R7.3)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harnessd.cli import client_table, run
from harnessd.config.files import Snapshot, SourceFile
from harnessd.config.load import builtin_policies
from harnessd.config.policy_tests import builtin_tests, run_tests
from harnessd.policy import PolicySet
from tests.policy.written import policies, repository

SHIPPED = repository() / "policies"


def test_they_pass_through_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SHIPPED, tmp_path / "policies")
    status = run(client_table(), ["policy", "test", str(tmp_path / "policies")])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "all passed" in shown


def test_they_pass_as_built_in() -> None:
    report = run_tests(builtin_policies(), builtin_tests(), {})
    assert report.passed, [str(o.test.place) for file in report.files for o in file.failed]
    assert report.tests >= 40
    assert all(file.outcomes for file in report.files)


def failing(found: PolicySet, file: str) -> list[str]:
    """The names of the tests of one shipped file that fail under other policies."""
    snapshot = builtin_tests()
    source: SourceFile = next(source for source in snapshot.files if source.shown.endswith(f"tests/{file}.yaml"))
    (report,) = run_tests(found, Snapshot((source,)), {}).files
    assert report.problems == ()
    return [outcome.test.name for outcome in report.failed]


# What an operator might change by mistake, and the file whose tests must notice.
CHANGES = [
    ("retry_models", "kind: retry\nmodel: {retries: 9}\n"),
    ("retry_models", "kind: retry\nmodel: {retries: 11}\n"),
    ("retry_models", "kind: retry\nmodel: {base: 1s}\n"),
    ("retry_models", "kind: retry\nmodel: {factor: 3}\n"),
    ("retry_models", "kind: retry\nmodel: {cap: 30s}\n"),
    ("retry_models", "kind: retry\nmodel: {server_wait_max: 11m}\n"),
    ("retry_models", "kind: retry\nmodel: {server_wait_max: 9m}\n"),
    ("retry_models", "kind: retry\nmodel: {deadline: 28m}\n"),
    ("retry_models", "kind: retry\nmodel: {deadline: 32m}\n"),
    ("retry_models", "kind: retry\npark: {max: 11h}\n"),
    ("retry_models", "kind: retry\npark: {max: 13h}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {overloaded: {do: [fallback, park]}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {timeout: {do: [retry, fallback, stop]}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {network: {do: [retry, stop]}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {stream_interrupted: {do: [retry, stop]}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {quota_exhausted: {do: [retry, park]}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {auth: {do: stop}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {refused: {do: [retry, stop]}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {malformed_output: {retries: 3}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {malformed_output: {base: 1s}}}\n"),
    ("retry_models", "kind: retry\nmodel: {classes: {invalid_request: {do: stop}}}\n"),
    ("retry_models", "kind: retry\nrules: [{name: cut-answer, enabled: false}]\n"),
    ("retry_models", "kind: retry\nrules: [{name: all-busy, when: {status: 4xx}, class: overloaded}]\n"),
    ("retry_models", "kind: compaction\nemergency_tries: 2\n"),
    ("interactive", "kind: retry\nname: interactive\nmodel: {retries: 4}\n"),
    ("interactive", "kind: retry\nname: interactive\nmodel: {classes: {network: {do: [retry, park]}}}\n"),
    ("interactive", "kind: retry\nname: interactive\nmodel: {classes: {quota_exhausted: {do: [park]}}}\n"),
    ("retry_tools", "kind: retry\ntool: {retries: 3}\n"),
    ("retry_tools", "kind: retry\ntool: {deadline: 9m}\n"),
    ("retry_tools", "kind: retry\ntool: {server_wait_max: 9m}\n"),
    ("retry_tools", "kind: retry\ntool: {classes: {execution_failed: {do: stop}}}\n"),
    ("retry_tools", "kind: tools\nrules: [{name: outward, effect: idempotent}]\n"),
    ("budget", "kind: budget\nwarn_at: [60%, 90%]\n"),
    ("budget", "kind: budget\nwarn_at: [70%]\n"),
    ("budget", "kind: budget\nlimits: {tool_calls: 91}\n"),
    ("budget", "kind: budget\nlimits: {turns: 121}\n"),
    ("budget", "kind: budget\nlimits: {cost_usd: 6}\n"),
    ("budget", "kind: budget\nlimits: {wall_time: 1h59m}\n"),
    ("budget", "kind: budget\nlimits: {age: 6d}\n"),
    ("budget", "kind: budget\nlimits: {silence: 11m}\n"),
    ("budget", "kind: budget\nlast_turn: false\n"),
    ("budget", 'kind: budget\nwarning: "STOP: {used} of {limit} {budget} used!"\n'),
    ("tools", "kind: tools\npermissions: [{name: irreversible, do: allow}]\n"),
    ("tools", "kind: tools\npermissions: [{name: bash, do: ask}]\n"),
    ("tools", "kind: tools\nrules: [{name: outward, enabled: false}]\n"),
    ("tools", "kind: tools\nrules: [{name: reads, effect: reversible}]\n"),
    ("tools", "kind: tools\nrules: [{name: http-reads, when: {}}]\n"),
    ("tools", "kind: tools\nrules: [{name: mcp, timeout: {after: 90s}}]\n"),
    ("tools", "kind: tools\nrules: [{name: all, timeout: {do: kill}}]\n"),
    ("tools", "kind: tools\nrules: [{name: all, timeout: {life: 1h}}]\n"),
    ("tools", "kind: tools\nask: {after: 48h}\n"),
    ("tools", "kind: tools\nask: {do: stop}\n"),
    ("loop", "kind: loop\nrepeat_call: 4\n"),
    ("loop", "kind: loop\nalternate: 4\n"),
    ("loop", "kind: loop\nsame_error: 4\n"),
    ("loop", "kind: loop\nno_progress: 9\n"),
    ("loop", "kind: loop\ndo: [nudge, needs_human]\n"),
    ("breaker", "kind: breaker\nrules: [{consecutive: 11}]\n"),
    ("breaker", "kind: breaker\nrules: [{consecutive: 9}]\n"),
    ("breaker", "kind: breaker\nrules: [{failure_rate: 60%}]\n"),
    ("breaker", "kind: breaker\nrules: [{minimum_calls: 21}]\n"),
    ("breaker", "kind: breaker\nrules: [{for: 'model/*', open: 30s}]\n"),
    ("breaker", "kind: breaker\nrules: [{for: 'mcp/*', open: 30s}]\n"),
    ("limits", "kind: limits\nrules: [{name: agents, cost_usd_per_day: 60}]\n"),
    ("limits", "kind: limits\nrules: [{name: agents, do: stop}]\n"),
    ("limits", "kind: limits\nrules: [{name: models, concurrency: 9}]\n"),
    ("limits", "kind: limits\nrules: [{name: models, retry_share: 60%}]\n"),
    (
        "escalation",
        "kind: escalation\nrules: [{name: three-strikes, when: {class: invalid_arguments, consecutive: 4}}]\n",
    ),
    ("escalation", "kind: escalation\nrules: [{name: unknown-outcome, do: stop}]\n"),
    ("escalation", "kind: escalation\nrules: [{name: poisoned-path, do: [rollback, needs_human]}]\n"),
    ("escalation", "kind: escalation\nrules: [{name: poisoned-path, to: start}]\n"),
    ("escalation", "kind: escalation\nask: {after: 8d}\n"),
    ("escalation", "kind: escalation\nask: {do: park}\n"),
    ("escalation", "kind: escalation\nrecoveries: 4\n"),
    ("compaction", "kind: compaction\ntiers: {compact: 71%}\n"),
    ("compaction", "kind: compaction\ntiers: {warn: 88%}\n"),
    ("compaction", "kind: compaction\ntiers: {block: 97%}\n"),
    ("compaction", "kind: compaction\nfailures: 2\n"),
    ("compaction", "kind: compaction\ngain_at_least: 9%\n"),
    ("compaction", "kind: compaction\ndo: stop\n"),
    ("fallback", 'kind: fallback\nsay: "Down."\n'),
    ("fallback", "kind: fallback\nchains: {model/primary: [model/second]}\n"),
    ("notify", "kind: notify\nrules: [{when: {event: needs_human}, to: []}]\n"),
    ("notify", "kind: notify\nrules: [{again_after: 2h}]\n"),
    ("retention", "kind: retention\ndisk_free: {warn: 12%}\n"),
    ("retention", "kind: retention\ndisk_free: {stop: 1%}\n"),
    ("retention", "kind: retention\nsessions: 31d\n"),
    ("retention", "kind: retention\nidempotency: 25h\n"),
    ("assign", "kind: assign\nrules: [{when: {share: 10%}, use: {retry: interactive}}]\n"),
]


@pytest.mark.parametrize(("file", "change"), CHANGES)
def test_a_change_of_what_matters_is_noticed(file: str, change: str) -> None:
    assert failing(policies(change), file)


def test_an_equal_value_is_not() -> None:
    assert failing(policies("kind: retry\nmodel: {retries: 10}\n"), "retry_models") == []


def test_every_kind_that_can_be_tested_is() -> None:
    covered = {file for file, _ in CHANGES} | {"retry"}
    kinds = {path.stem for path in SHIPPED.glob("*.yaml")} - {"chaos"}
    assert kinds <= covered
