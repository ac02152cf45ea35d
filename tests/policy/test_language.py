"""The language: values, merge, `extends`, messages with place and remedy."""

from __future__ import annotations

import pytest

from tests.policy.written import policies, policy, problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: budget\nlimits: {tool_calls: 200k}", 200_000),
        ("kind: budget\nlimits: {tool_calls: 1M}", 1_000_000),
        ("kind: budget\nlimits: {tool_calls: 0}", 0),
        ("kind: budget\nlimits: {tool_calls: none}", None),
    ],
)
def test_counts_are_read(text: str, expected: int | None) -> None:
    # R7.1
    assert policy("budget", text).shape.limits.tool_calls == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("32s", 32), ("10m", 600), ("2h", 7200), ("7d", 604_800), ("1h30m", 5400), ("1m0s", 60)],
)
def test_durations_are_read_as_seconds(text: str, seconds: float) -> None:
    assert policy("retry", f"kind: retry\npark: {{max: {max(60, 1)}s}}\ntool: {{deadline: 1h}}").shape.park.max == 60
    if seconds >= 60:
        assert policy("budget", f"kind: budget\nlimits: {{age: {text}}}").shape.limits.age == seconds
    else:
        assert policy("retry", f"kind: retry\nmodel: {{base: {text}}}").shape.model.base == seconds


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # the values of policies.md section 1, each with what to write instead
        ("limits: {tool_calls: 090}", "a.yaml:2:22: 090 is not a count: write 90 (YAML 1.1 would have read text)"),
        ("limits: {tool_calls: 010}", "a.yaml:2:22: 010 is not a count: write 10 (YAML 1.1 would have read"),
        ("limits: {tool_calls: 9e1}", "a.yaml:2:22: 9e1 is not a count: write 90"),
        ("limits: {tool_calls: 1_000}", "a.yaml:2:22: 1_000 is not a count: write 1000"),
        ("limits: {tool_calls: -1}", "a.yaml:2:22: -1 is not a count: write a whole number"),
        ("limits: {tool_calls: .nan}", "a.yaml:2:22: .nan is not a count"),
        ('limits: {tool_calls: "90"}', 'a.yaml:2:22: "90" is a text, not a count: write 90 without quotes'),
        ("limits: {tool_calls: 2M}", "a.yaml:2:22: 2M is out of bounds: write 0..1M"),
        ("limits: {tool_calls: }", "a.yaml:2:22: an empty value is not a count: write the value, or remove the key"),
        ("limits: {tool_calls: null}", "a.yaml:2:22: null is not a count: write none, or remove the key"),
        ("limits: {age: ~}", "a.yaml:2:15: ~ is not a duration: write none, or remove the key"),
        ("limits: {tool_calls: 99999999999999999999}", "a.yaml:2:22: 99999999999999999999 is not a count: write 0..1M"),
        ("limits: {wall_time: 300}", "a.yaml:2:21: 300 is not a duration: write 300s or 5m"),
        ("limits: {wall_time: 1:30}", "a.yaml:2:21: 1:30 is not a duration: write 1h30m or 1m30s"),
        ("limits: {wall_time: 30m1h}", "a.yaml:2:21: 30m1h is not a duration: write each unit once"),
        ('limits: {cost_usd: "$20"}', 'a.yaml:2:20: "$20" is not an amount in USD: write 20'),
        ("limits: {cost_usd: 5 USD}", "a.yaml:2:20: 5 USD is not an amount in USD: write 5"),
        ("last_turn: yes", "a.yaml:2:12: yes is not true or false: write true"),
        ("last_turn: off", "a.yaml:2:12: off is not true or false: write false"),
        ('last_turn: "true"', 'a.yaml:2:12: "true" is not true or false: write true without quotes'),
        ("warn_at: [25]", "a.yaml:2:11: 25 is not a ratio: 25% or 0.25?"),
        ("warn_at: [90%, 70%]", "a.yaml:2:16: the values must rise: 70% stands after 90%: write [70%, 90%]"),
        ("warn_at: [100%]", "a.yaml:2:11: 100% is out of bounds"),
        ("warning: no", 'a.yaml:2:10: no is a truth value to other YAML readers: write "no" in quotes'),
        ('warning: "{usd} used"', "a.yaml:2:10: unknown placeholder {usd}: write one of {used}, {limit}"),
        ('warning: "{ used"', "a.yaml:2:10: a brace stands alone: write {{ or }} for a brace"),
        ("unknown_price: free", "a.yaml:2:16: unknown word free: "),
        ("budgets: {}", 'a.yaml:2:1: unknown key "budgets"'),
        ("limits: {tool_cals: 90}", 'a.yaml:2:10: unknown key "tool_cals": did you mean "tool_calls"?'),
        ("limits: 90", "a.yaml:2:9: 90 stands where a map is wanted"),
        ("limits: {on: 5}", 'a.yaml:2:10: unknown key "on"'),
    ],
)
def test_what_is_refused_says_where_and_what_to_write(line: str, message: str) -> None:
    # R7.2, h08, h09, h11
    found = problems(f"kind: budget\n{line}\n")
    assert len(found) == 1
    assert found[0].startswith(message)


def test_all_problems_of_all_files_are_told_at_once() -> None:
    # R7.2
    found = problems(
        "kind: retry\nmodel: {retrys: 3, base: 300}\n---\nkind: nonsense\n",
        "kind: budget\nlimits: {tool_calls: 090, turns: -1}\n",
        "name: [x]\n",
    )
    assert [line.split(": ")[0] for line in found] == [
        "a.yaml:2:9",
        "a.yaml:2:26",
        "a.yaml:4:7",
        "b.yaml:2:22",
        "b.yaml:2:34",
        "c.yaml:1:1",
    ]


def test_own_values_lie_over_the_shipped_ones_and_know_their_line() -> None:
    limits = policy("budget", "kind: budget\nlimits:\n  tool_calls: 150\n")
    assert (limits.shape.limits.tool_calls, limits.shape.limits.turns) == (150, 120)
    # R1.3
    own, shipped = limits.ref("limits", "tool_calls"), limits.ref("limits", "turns")
    assert (own.file, own.line, own.revision) == ("a.yaml", 3, 7)
    assert shipped.file == "builtin budget.yaml"
    assert shipped.line > 1


def test_a_named_policy_lies_over_default_and_default_over_the_shipped_one() -> None:
    made = policies(
        "kind: budget\nname: long\nlimits: {tool_calls: 300}\n---\nkind: budget\nlimits: {turns: 200}\n"
        "---\nkind: budget\nname: fresh\nextends: builtin\nlimits: {age: 1d}\n"
        "---\nkind: budget\nname: longest\nextends: long\nlimits: {tokens: 3M}\n"
    )
    shapes = {name: policy.shape.limits for (kind, name), policy in made.policies.items() if kind == "budget"}
    assert (shapes["long"].tool_calls, shapes["long"].turns) == (300, 200)
    assert (shapes["fresh"].turns, shapes["fresh"].age) == (120, 86_400)
    assert (shapes["longest"].tool_calls, shapes["longest"].turns, shapes["longest"].tokens) == (300, 200, 3_000_000)


def test_extends_may_not_run_in_a_circle_or_lead_nowhere() -> None:
    found = problems(
        "kind: budget\nname: a\nextends: b\n---\nkind: budget\nname: b\nextends: a\n"
        "---\nkind: budget\nname: c\nextends: d\n"
    )
    assert any("extends runs in a circle: a -> b -> a: extend builtin" in line for line in found)
    assert any('extends "d" leads nowhere: write one of builtin, default' in line for line in found)
    assert not [line for line in found if "is missing" in line]


def test_what_is_wrong_in_a_parent_is_told_of_the_parent_alone() -> None:
    found = problems("kind: budget\nlimits:\n---\nkind: budget\nname: long\nlimits: {tool_calls: 150}\n")
    assert found == ["a.yaml:2:8: nothing stands where a map is wanted: write limits: {...}"]


def test_an_entry_that_switches_off_nothing() -> None:
    found = problems("kind: retry\nrules: [{name: quotaa, enabled: false}]\n")
    assert found == ['a.yaml:2:16: no entry named quotaa is inherited: did you mean "quota"?']


def test_own_entries_stand_first_and_a_named_one_changes_in_its_place() -> None:
    made = policy(
        "retry",
        "kind: retry\nrules:\n"
        "  - {name: teapot, when: {status: 418}, class: refused}\n"
        "  - {name: server, class: overloaded}\n"
        "  - {name: unreachable, enabled: false}\n",
    )
    names = [rule.name for rule in made.shape.rules]
    shipped = [rule.name for rule in policy("retry").shape.rules]
    assert names == ["teapot", *shipped]
    server = next(rule for rule in made.shape.rules if rule.name == "server")
    assert server.class_ == "overloaded"
    assert server.when.clauses  # kept from the shipped entry
    assert not next(rule for rule in made.shape.rules if rule.name == "unreachable").enabled


def test_two_documents_or_entries_of_one_name_are_refused() -> None:
    found = problems("kind: budget\n", "kind: budget\n---\nkind: tools\nrules: [{name: x}, {name: x}]\n")
    assert found[0].startswith("b.yaml:1:1: budget/default stands twice, first at a.yaml:1")
    assert 'two entries are named "x"' in found[1]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("kind: budgt", 'unknown kind "budgt": did you mean "budget"?'),
        ("kind: budget\nversion: 2", "version 2 needs a newer harnessd"),
        ("kind: budget\nname: Long", "Long is not a name of a policy"),
        ("kind: limits\nname: web", "limits is for the whole daemon: it has no names"),
        ("limits: {}", 'the key "kind" is missing'),
        ("- a", "a list is no policy"),
    ],
)
def test_the_head_of_a_document_is_checked(head: str, message: str) -> None:
    assert any(message in line for line in problems(head + "\n"))


def test_a_deny_that_is_inherited_cannot_be_changed() -> None:
    # R7.1
    found = problems(
        "kind: tools\npermissions: [{name: no-deploy, for: tool/bash, when: {command: 'deploy*'}, do: deny}]\n",
        "kind: tools\nname: web\npermissions:\n  - {name: no-deploy, enabled: false}\n",
    )
    assert found == [
        (
            "b.yaml:4:12: tools/default denies by rule no-deploy (a.yaml:2): a deny that is inherited cannot be "
            "changed: choose another name, or change it there"
        )
    ]


def test_the_content_hash_follows_values_and_their_lines() -> None:
    first = policies("kind: budget\nlimits: {turns: 5}\n").hash
    assert first == policies("kind: budget # why\nlimits:  { turns: 5 }\n").hash
    assert first != policies("kind: budget\nlimits: {turns: 6}\n").hash
    assert first != policies("# decisions would name the wrong line\nkind: budget\nlimits: {turns: 5}\n").hash


def test_what_is_wrong_elsewhere_is_told_in_the_same_look() -> None:
    """A shape with a problem is still looked through for names, relations and other lists."""
    assert problems(
        "kind: fallback\nchains: {model/primary: [model/secnd]}\non: {refused: [model/second]}\n",
        "kind: retry\nmodel: {retrys: 1, base: 1m}\nrules: [{for: model/primry, class: auth}, {class: overloded}]\n",
        "kind: retry\nname: heir\n",
    ) == [
        'a.yaml:2:26: no model "secnd" in harness.yaml: did you mean model/second?',
        'a.yaml:3:1: unknown key "on": write one of by_class, chains, return_after, say',
        'b.yaml:2:9: unknown key "retrys": did you mean "retries"?',
        "b.yaml:2:26: model.base 1m is above cap 32s: write a base of at most the cap",
        'b.yaml:3:15: no model "primry" in harness.yaml: did you mean model/primary?',
        'b.yaml:3:51: unknown word overloded: did you mean "overloaded"?',
    ]
