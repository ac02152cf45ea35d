"""policy show and diff without a daemon: where each value comes from, and what would change."""

from __future__ import annotations

import json

from tests.cli.policy.conftest import Ctl, Place

SHOWN = """kind: tools
note: nightly builds
rules: [{for: tool/bash, timeout: {life: 5h}, silence: 45m}]
permissions:
  - {name: pushes, for: tool/bash, when: {command: "git push*"}, do: ask, note: INC-298}
  - {name: crawler-no-shell, for: tool/bash, when: {agent: crawler}, do: deny, say: No shell.}
"""


def cells(out: str) -> dict[str, list[str]]:
    """Key -> the other cells of its row."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
    return {row[0]: row[1:] for row in rows if row}


def test_each_value_names_its_line_and_the_default_beside_it(place: Place, ctl: Ctl) -> None:
    # C15, R1.3
    place.write("tools.yaml", SHOWN)
    here = ("--config", "harness.yaml")
    done = ctl("show", "--effective", "tools", "--for", "agent/crawler", "--name", "tool/bash", *here)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].startswith("tools/default, for tool/bash, agent crawler")
    rows = cells(done.out)
    assert rows["effect"][:2] == ["reversible", "builtin tools.yaml:16"]
    assert rows["effect"][2].startswith("rule bash; outward (by command): irreversible")
    assert rows["timeout.after"][:3] == ["2m", "builtin tools.yaml:25", "rule all"]
    assert rows["timeout.life"] == ["5h", "policies/tools.yaml:3", "rules[0]", 'note "nightly builds"', "builtin 2h"]
    assert rows["silence"][-1] == "builtin 10m"
    assert rows["permission"] == ["DENY", "policies/tools.yaml:6", "rule crawler-no-shell", 'note "nightly builds"']
    done = ctl("show", "tools", "--for", "agent/builder", "--name", "tool/bash", *here)
    allowed = [line.split()[:2] for line in done.out.splitlines() if line.startswith("permission")]
    assert allowed == [["permission", "ask"], ["permission", "allow"]]
    assert 'rule pushes (by command)   note "INC-298"' in done.out


def test_settings_by_name_of_daemon_kinds(place: Place, ctl: Ctl) -> None:
    place.write("limits.yaml", "kind: limits\nrules: [{for: model/primary, concurrency: 3, timeout: {call: 30m}}]\n")
    rows = cells(ctl("show", "limits", "--name", "model/primary", "--config", "harness.yaml").out)
    assert rows["concurrency"] == ["3", "policies/limits.yaml:2", "rules[0]", "builtin 8"]
    assert rows["timeout.idle"][:2] == ["55s", rows["timeout.idle"][1]]
    rows = cells(ctl("show", "breaker", "--name", "model/second", "--config", "harness.yaml").out)
    assert rows["open"][0] == "60s"
    rows = cells(ctl("show", "breaker", "--name", "tool/bash", "--config", "harness.yaml").out)
    assert rows["open"][0] == "300s"


def test_without_effective_only_what_the_files_say(place: Place, ctl: Ctl) -> None:
    place.write("budget.yaml", "kind: budget\nlimits: {tool_calls: 80}\n")
    done = ctl("show", "budget/default", "--files", "policies")
    assert cells(done.out)["limits.tool_calls"] == ["80", "policies/budget.yaml:2", "builtin 90"]
    assert "wall_time" not in done.out
    assert "wall_time" in ctl("show", "budget/default", "--effective", "--files", "policies").out
    done = ctl("show", "loop", "--files", "policies")
    assert "nothing but what is inherited" in done.out


def test_for_an_agent_the_policies_it_gets(place: Place, ctl: Ctl) -> None:
    # policies.md, "Who gets which policy"
    place.write("canary.yaml", "kind: retry\nname: strict\nmodel: {retries: 4}\n---\nkind: assign\nrules:\n"
                "  - {name: canary, when: {share: 10%}, use: {retry: strict}}\n")  # fmt: skip
    done = ctl("show", "budget", "--for", "agent/crawler", "--config", "harness.yaml")
    assert "budget/long, agent crawler" in done.out
    assert cells(done.out)["limits.tool_calls"][0] == "150"
    assert "retry/strict by assign rule canary (when {share: 10%})" in done.err
    found = json.loads(ctl("show", "retry", "--for", "agent/crawler", "--config", "harness.yaml", "--json").out)
    assert [one["name"] for one in found["policies"]] == ["default"]
    assert found["may_also_get"]


def test_the_overview_names_every_policy(place: Place, ctl: Ctl) -> None:
    place.write("budget.yaml", "kind: budget\nnote: INC-311\nlimits: {tool_calls: 80}\n")
    done = ctl("show", "--files", "policies")
    assert done.out.startswith("policies, valid, hash ")
    assert cells(done.out)["budget/default"] == ["1", "policies/budget.yaml", '"INC-311"']
    found = json.loads(ctl("show", "--files", "policies", "--json").out)
    assert found["hash"] == json.loads(ctl("check", "--json").out)["hash"]


def test_what_is_not_there(place: Place, ctl: Ctl) -> None:
    del place
    here = ("--config", "harness.yaml")
    for code, words in (
        (3, ("show",)),
        (2, ("show", "bugdet", *here)),
        (4, ("show", "budget/lnog", *here)),
        (4, ("show", "budget", "--for", "agent/craler", *here)),
        (3, ("show", "budget", "--for", "8k3v", *here)),
        (2, ("show", "budget", "--name", "tool/bash", *here)),
        (2, ("show", "--files", "nowhere")),
        (3, ("diff",)),
        (3, ("diff", "r4", "policies")),
        (2, ("diff", "nowhere", "policies")),
        (2, ("diff", "a", "b", "c")),
        (3, ("history",)),
        (3, ("revert", "r4")),
        (3, ("reload",)),
    ):
        done = ctl(*words)
        assert (done.code, done.out) == (code, ""), (words, done)
        assert len(done.err.splitlines()) == 2, done.err
    assert "did you mean" in ctl("show", "budget/lnog", *here).err.lower()


def folders(place: Place) -> None:
    """C7: two folders of a pull request."""
    place.write("web.yaml", "kind: tools\nname: web\nask: {after: 1h}\n", "base")
    place.write("canary.yaml", "kind: retry\nname: strict\nmodel: {retries: 4}\n---\nkind: assign\nrules:\n"
                "  - {name: canary, when: {share: 10%}, use: {retry: strict}}\n", "base")  # fmt: skip
    place.write("web.yaml", "kind: tools\nname: web\nask: {after: 1h}\n", "new")
    place.write("canary.yaml", "kind: retry\nname: strict\nmodel: {retries: 4}\n---\nkind: assign\nrules:\n"
                "  - {name: canary, when: {share: 50%}, use: {retry: strict}}\n", "new")  # fmt: skip
    place.write("budget.yaml", "kind: budget\nnote: INC-311\nlimits: {tool_calls: 9, cost_usd: 20.00}\n", "new")
    place.write("tools.yaml", "kind: tools\npermissions:\n"
                "  - {name: crawler-no-shell, for: tool/bash, when: {agent: crawler}, do: deny}\n", "new")  # fmt: skip


def test_a_difference_of_folders(place: Place, ctl: Ctl) -> None:
    # C7, A16: no daemon, no keys, no network
    folders(place)
    done = ctl("diff", "base", "new")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "base, valid   ->   new, valid"
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[2:]]
    assert rows == [
        ["assign/default", "rule canary when.share", "10% -> 50%", "new/canary.yaml:7"],
        ["budget/default", "limits.tool_calls", "90 -> 9", "new/budget.yaml:3", "was builtin", 'note "INC-311"'],
        ["limits.cost_usd", "5.00 -> 20.00", "new/budget.yaml:3", "was builtin", 'note "INC-311"'],
        [
            "tools/default",
            "+ permission crawler-no-shell",
            "for: tool/bash, when: {agent: crawler}, do: deny",
            "new/tools.yaml:3",
            "(inherited too by tools/web)",
        ],
    ]
    back = ctl("diff", "new", "base").out
    assert "- permission crawler-no-shell" in back
    assert "20.00 -> 5.00" in back


def test_a_difference_as_json(place: Place, ctl: Ctl) -> None:
    folders(place)
    found = json.loads(ctl("diff", "base", "new", "--json").out)
    assert found["running"] is None
    assert found["from"]["hash"] != found["to"]["hash"]
    change = next(one for one in found["changes"] if one["path"] == "limits.tool_calls")
    assert {
        "before": "90",
        "after": "9",
        "file": "new/budget.yaml",
        "line": 3,
        "was_builtin": True,
    }.items() <= change.items()


def test_policies_that_come_and_go(place: Place, ctl: Ctl) -> None:
    place.write("a.yaml", "kind: loop\nname: calm\nrepeat_call: 5\n", "base")
    place.write("a.yaml", "kind: loop\nname: wild\nrepeat_call: 9\n", "new")
    out = ctl("diff", "base", "new").out
    assert "+ policy" in out
    assert "3 -> 9" in out
    assert "- policy" in out
    assert "loop/calm" in out
    assert "No value differs." in ctl("diff", "base", "base").out


def test_rules_in_another_order_are_a_change(place: Place, ctl: Ctl) -> None:
    one = "  - {name: one, when: {status: 418}, class: refused}\n"
    two = "  - {name: two, when: {status: [418, 420]}, class: overloaded}\n"
    place.write("retry.yaml", f"kind: retry\nrules:\n{one}{two}", "base")
    place.write("retry.yaml", f"kind: retry\nrules:\n{two}{one}", "new")
    assert "order of rules  one, two -> two, one  new/retry.yaml:3  (inherited too by retry/interactive)" in (
        " ".join(ctl("diff", "base", "new").out.split("\n"))
    )
    changes = json.loads(ctl("diff", "base", "new", "--json").out)["changes"]
    assert next((one["path"], one["before"], one["after"]) for one in changes) == ("rules", "one, two", "two, one")


def test_a_side_with_problems_is_not_compared(place: Place, ctl: Ctl) -> None:
    place.write("a.yaml", "kind: loop\nrepeat_cal: 5\n", "base")
    done = ctl("diff", "base", "policies")
    assert (done.code, done.out) == (1, 'base/a.yaml:2:1: unknown key "repeat_cal": did you mean "repeat_call"?\n')
    assert json.loads(ctl("diff", "base", "policies", "--json").out)["problems"]
