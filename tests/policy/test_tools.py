"""Tools: effect, clocks, permissions; each leaf with its line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harnessd.domain.effect import EffectClass
from harnessd.policy.language.shape import Policy
from harnessd.policy.tools import CallFacts, permission, settings
from tests.policy.written import policy, problems

SHIPPED: Policy[Any] = policy("tools")


def bash(line: str, **facts: Any) -> CallFacts:
    return CallFacts("tool/bash", {"command": line}, agent="builder", **facts)


@pytest.mark.parametrize(
    ("facts", "effect"),
    [
        # R3.13: the shipped classes
        (bash("make test"), "reversible"),
        (bash("git push origin main"), "irreversible"),
        (bash("cd x && FOO=1 git push"), "irreversible"),
        (bash("ls; curl http://x"), "irreversible"),
        (bash("echo 'unfinished"), "irreversible"),  # cannot be taken apart
        (bash("xargs curl < urls"), "irreversible"),
        (bash("cat urls | xargs -n1 curl"), "irreversible"),
        (bash("npm --registry https://r publish"), "irreversible"),
        (bash("docker --context prod push x"), "irreversible"),
        (bash("kubectl -n web apply -f x"), "irreversible"),
        (bash("gh -R a/b pr merge 3"), "irreversible"),
        (bash("git $verb"), "irreversible"),
        (bash("cur? http://x"), "irreversible"),
        (bash('git -C "$dir" status && git log $x'), "reversible"),
        (bash("git commit -m 'push it' && git log --grep push"), "reversible"),
        (bash("echo curl x"), "reversible"),
        (bash("ls *.py | xargs wc -l"), "reversible"),
        (CallFacts("tool/read_file", {"path": "x"}), "read_only"),
        (CallFacts("tool/write_file", {"path": "x"}), "reversible"),
        (CallFacts("tool/task_list", {}), "idempotent"),
        (CallFacts("tool/http_request", {"method": "GET"}), "read_only"),
        (CallFacts("tool/http_request", {"method": "POST"}), "irreversible"),
        (CallFacts("tool/http_request", {}), "irreversible"),
        (CallFacts("tool/web_search", {}, declared=EffectClass.READ_ONLY), "irreversible"),  # policy decides
        (CallFacts("mcp/github/get_issue", {}), "irreversible"),
    ],
)
def test_effects(facts: CallFacts, effect: str) -> None:
    assert settings(SHIPPED, facts).effect == effect


def test_a_weaker_effect_needs_every_command_a_stricter_one_any() -> None:
    own = policy(
        "tools",
        "kind: tools\nrules:\n"
        '  - {name: looks, for: tool/bash, when: {command: ["git status*", ls]}, effect: read_only}\n'
        "  - {name: deploys, for: tool/bash, when: {command: deploy*}, effect: irreversible}\n",
    )
    assert settings(own, bash("ls && git status -s")).effect is EffectClass.READ_ONLY
    assert settings(own, bash("ls && make")).effect is EffectClass.REVERSIBLE
    assert settings(own, bash("ls && ./deploy now")).effect is EffectClass.IRREVERSIBLE
    # a program of the same name elsewhere is not the one that was meant to be harmless
    assert settings(own, bash("/tmp/git status")).effect is EffectClass.REVERSIBLE


def test_each_leaf_comes_from_the_first_entry_that_states_it() -> None:
    # A5, R1.3
    own = policy(
        "tools",
        "kind: tools\nrules:\n  - {for: tool/bash, timeout: {life: 5h}, silence: 45m}\n"
        "  - {name: quick, for: 'tool/*', timeout: {after: 30s, do: kill, life: none}, max_calls: 20}\n",
    )
    found = settings(own, bash("make"))
    assert (found.life_s, found.silence_s, found.timeout_s, found.on_timeout) == (18_000, 2700, 30, "kill")
    assert (found.timeout_max_s, found.max_calls, found.output_max, found.polling) == (600, 20, 65_536, False)
    lines = {leaf: (ref.file, ref.line) for leaf, ref in found.refs.items()}
    assert lines["timeout.life"] == ("a.yaml", 3)
    assert lines["timeout.after"] == ("a.yaml", 4)
    assert lines["output_max"][0] == "builtin tools.yaml"
    assert found.refs["timeout.after"].rule == "quick"
    assert found.refs["effect"].rule == "bash"
    other = settings(own, CallFacts("tool/read_file", {}))
    assert other.life_s is None  # `none` is stated, and stronger than what is shipped


def test_mcp_tools_are_killed_after_a_minute() -> None:
    found = settings(SHIPPED, CallFacts("mcp/ci/status", {}))
    assert (found.timeout_s, found.on_timeout) == (60, "kill")


def test_conditions_see_the_task_and_the_arguments() -> None:
    own = policy(
        "tools",
        "kind: tools\nrules:\n"
        "  - {when: {agent: builder, label.team: web, priority: {above: 5}}, silence: 1m}\n"
        "  - {when: {path: 'docs/*', arg.lines.from: 3, model: model/primary}, output_max: 1KiB}\n",
    )
    facts = CallFacts(
        "tool/read_file",
        {"path": "x", "lines": {"from": 3}},
        agent="builder",
        labels={"team": "web"},
        priority=6,
        model="model/primary",
        path="docs/a.md",
    )
    assert (settings(own, facts).silence_s, settings(own, facts).output_max) == (60, 1024)
    assert settings(own, replace(facts, priority=5)).silence_s == 600
    assert settings(own, replace(facts, path="src/a.py")).output_max == 65_536


# --- permissions ------------------------------------------------------------------------------------------------------


def test_the_shipped_permissions() -> None:
    assert permission(SHIPPED, bash("git push")).do == "allow"  # the shell is allowed as a whole
    assert permission(SHIPPED, CallFacts("tool/http_request", {"method": "POST"})).do == "ask"
    assert permission(SHIPPED, CallFacts("tool/http_request", {"method": "GET"})).do == "allow"
    assert permission(SHIPPED, CallFacts("mcp/pay/charge", {})).rule.rule == "irreversible"
    assert permission(SHIPPED, CallFacts("tool/read_file", {})).rule.rule == "nothing fits"


def test_a_line_that_cannot_be_taken_apart_is_asked_about() -> None:
    found = permission(SHIPPED, bash("$X push"))
    assert (found.do, found.rule.rule) == ("ask", "a line that cannot be taken apart is asked about")


def test_no_shell_for_one_agent() -> None:
    # A6
    own = policy(
        "tools",
        "kind: tools\npermissions: [{name: crawler-no-shell, for: tool/bash, when: {agent: crawler}, do: deny, "
        'say: "{tool} is off by {rule}."}]\n',
    )
    assert permission(own, bash("ls")).do == "allow"
    denied = permission(own, replace(bash("ls"), agent="crawler"))
    assert (denied.do, denied.say) == ("deny", "tool/bash is off by crawler-no-shell.")
    assert permission(own, replace(bash("'"), agent="crawler")).do == "deny"


def test_a_deny_wins_wherever_it_stands_in_the_chain() -> None:
    # A12: the site's denies stand in tools/default and cannot be weakened
    files = (
        "kind: tools\npermissions: [{name: no-push, for: tool/bash, when: {command: 'git push*'}, do: deny}]\n",
        "kind: tools\nname: web\npermissions: [{for: tool/bash, do: allow}]\n",
    )
    web = policy("tools", *files, name="web")
    denied = permission(web, bash("make && git push"))
    assert (denied.do, denied.say) == ("deny", "Not allowed here.")
    assert (denied.rule.rule, denied.rule.file, denied.rule.line) == ("no-push", "a.yaml", 2)
    assert permission(web, bash("make")).do == "allow"


def test_ask_fits_if_one_command_fits_allow_only_if_all_do() -> None:
    own = policy(
        "tools",
        "kind: tools\npermissions:\n"
        "  - {name: looks, for: tool/bash, when: {command: ['ls*', 'git status*']}, do: allow}\n"
        "  - {name: rest, for: tool/bash, do: ask}\n",
    )
    assert permission(own, bash("ls -l; git status")).rule.rule == "looks"
    assert permission(own, bash("ls -l; rm x")).rule.rule == "rest"
    assert permission(own, bash("ls $(rm x)")).rule.rule == "rest"
    assert permission(own, bash("PATH=/evil ls")).rule.rule == "rest"


def test_permissions_see_the_effect() -> None:
    own = policy("tools", "kind: tools\npermissions: [{when: {effect: [reversible, irreversible]}, do: ask}]\n")
    assert permission(own, CallFacts("tool/write_file", {})).do == "ask"
    assert permission(own, CallFacts("tool/read_file", {})).do == "allow"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{timeout: {after: 10m, max: 5m}}]", "timeout.after 10m is above max 5m: write after <= max <= life"),
        ("rules: [{timeout: {max: 2h, life: 1h}}]", "timeout.max 2h is above life 1h"),
        ("rules: [{for: model/primary}]", "model has no meaning here"),
        ("rules: [{for: tool/web_serch}]", 'no tool "web_serch" in harness.yaml: did you mean tool/web_search?'),
        ("rules: [{effect: harmless}]", "unknown word harmless"),
        ("rules: [{when: {effect: read_only}}]", 'unknown fact "effect"'),
        ("rules: [{output_max: 64KB}]", "64KB is not a size: write 64KiB"),
        ("rules: [{output_max: 65536}]", "65536 is not a size: write 65536B or 65536KiB"),
        ("rules: [{key_life: 1h}]", "1h is out of bounds: write 24h..365d"),
        ("rules: [{sandbox: strict}]", '"sandbox" is not yet possible: remove the key'),
        ("permissions: [{do: forbid}]", "unknown word forbid"),
        ("permissions: [{for: tool/bash}]", 'the key "do" is missing'),
        ("permissions: [{do: deny, say: '{reason}'}]", "unknown placeholder {reason}"),
        ("ask: {after: 1s}", "1s is out of bounds: write 1m..90d"),
        ("shims: [{json_string_to: [number]}]", "unknown word number: write one of array, object"),
        ("rules: [{probe: {tool: tool/bash, done: {result.x: 1}}}]", 'the key "not_done" is missing'),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    assert any(message in line for line in problems(f"kind: tools\n{text}\n")), problems(f"kind: tools\n{text}\n")


def test_probe_undo_and_shims_are_carried() -> None:
    own = policy(
        "tools",
        "kind: tools\nrules:\n"
        "  - for: tool/web_search\n"
        '    probe: {tool: tool/local_kb, arguments: {key: "{key}", n: 3}, done: {result.s: paid}, '
        "not_done: {result.n: 0}}\n"
        "    undo: {tool: tool/local_kb, arguments: {number: '{result.number}'}}\n"
        "shims: [{for: model/local, unnest: {tool/edit_file: [options]}}]\n",
    )
    found = settings(own, CallFacts("tool/web_search", {}))
    assert found.probe is not None
    assert found.probe.arguments == {"key": "{key}", "n": 3}
    assert found.probe.done.holds({"result.s": "paid"}.get)
    assert found.undo is not None
    assert found.undo.tool.text == "tool/local_kb"
    assert own.shape.shims[0].unnest == {"tool/edit_file": ("options",)}
