"""Changes between two sets."""

from __future__ import annotations

from harnessd.policy.assembly.changes import differences
from tests.policy.written import policies


def test_every_effective_value_that_differs_is_told_with_its_line() -> None:
    # C7
    old = policies("kind: assign\nrules: [{name: canary, when: {share: 10%}, use: {retry: interactive}}]\n")
    new = policies(
        "kind: assign\nrules:\n- {name: canary, when: {share: 50%}, use: {retry: interactive}}\n",
        "kind: budget\nnote: INC-311\nlimits: {tool_calls: 9, cost_usd: 20.00}\n",
        "kind: tools\npermissions: [{name: no-shell, for: tool/bash, do: deny}]\n",
    )
    found = {(change.kind, change.path): change for change in differences(old, new)}
    calls = found["budget", "limits.tool_calls"]
    assert (calls.before, calls.after, str(calls.place), calls.was_builtin, calls.note) == (
        "90",
        "9",
        "b.yaml:3",
        True,
        "INC-311",
    )
    assert (found["assign", "rules.canary.when.share"].before, found["assign", "rules.canary.when.share"].after) == (
        "10%",
        "50%",
    )
    assert found["tools", "permissions.no-shell.do"].before is None
    assert {kind for kind, _ in found} == {"assign", "budget", "tools"}
    gone = differences(new, old)
    assert any(change.path == "permissions.no-shell.do" and change.after is None for change in gone)


def test_equal_sets_do_not_differ() -> None:
    assert differences(policies(), policies("# nothing new\nkind: budget\nlimits: {turns: 120}\n")) == ()
