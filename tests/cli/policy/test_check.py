"""policy check: all problems of all files at once, with place and remedy; works with no daemon, key or network."""

from __future__ import annotations

import json
import os

import pytest

from tests.cli.policy.conftest import Ctl, Place
from tests.cli.test_render import HOSTILE, drives_a_terminal

# cli-samples C8: what stands in the files, and where each problem is.
BROKEN = {
    "fallback.yaml": "kind: fallback\nchains: {model/primary: [model/secnd]}\non: {refused: [model/second]}\n",
    "limits.yaml": 'kind: limits\nrules:\n  - {for: "*", concurrency: 4}\n',
    "notes.yml": "kind: budget\n",
    "retry.yaml": "kind: retry\nmodel:\n  base: 1s\n  retrys: 3\n  deadline: 300\n",
    "team-web.yaml": "kind: budget\nname: web\nlimits: {tool_calls: 090, cost_usd: $20, wall_time: 1:30}\n"
    "warn_at: [90%, 70%]\n---\nkind: tools\nname: web\npermissions:\n"
    "  - {for: tool/bash, when: {comand: rm}, do: ask}\n",
}
PLACES = (
    "policies/fallback.yaml:2:26: ",
    "policies/fallback.yaml:3:1: ",
    "policies/limits.yaml:3:11: ",
    "policies/notes.yml:1:1: ",
    "policies/retry.yaml:4:3: ",
    "policies/retry.yaml:5:13: ",
    "policies/team-web.yaml:3:22: ",
    "policies/team-web.yaml:3:37: ",
    "policies/team-web.yaml:3:53: ",
    "policies/team-web.yaml:4:16: ",
    "policies/team-web.yaml:9:29: ",
)


def test_all_problems_of_all_files_at_once(place: Place, ctl: Ctl) -> None:
    # R7.2, C8, h08
    for name, text in BROKEN.items():
        place.write(name, text)
    done = ctl("check", "policies")
    assert done.code == 1
    lines = done.out.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, PLACES, strict=False)] == list(PLACES), done.out
    assert "did you mean model/second?" in lines[0]
    assert 'did you mean "retries"?' in done.out
    assert 'did you mean "command"?' in done.out
    assert "name it notes.yaml" in done.out
    assert lines[-1] == "11 problems in 5 files; nothing was changed."
    # where to read on
    assert done.err.startswith("harnessctl policy explain ")
    assert "fallback.chains" in done.err


def test_a_valid_folder_has_a_hash(place: Place, ctl: Ctl) -> None:
    del place
    done = ctl("check")
    assert (done.code, done.err) == (0, "")
    found = json.loads(ctl("check", "--json").out)
    assert done.out == f"No problems in 1 file of policies; nothing was changed. Hash {found['hash']}\n"
    assert (found["ok"], found["problems"], found["files"]) == (True, [], ["policies/long.yaml"])


def test_json_names_the_same(place: Place, ctl: Ctl) -> None:
    place.write("retry.yaml", BROKEN["retry.yaml"])
    done = ctl("check", "--json")
    assert done.code == 1
    first = json.loads(done.out)["problems"][0]
    assert (first["file"], first["line"], first["column"]) == ("policies/retry.yaml", 4, 3)
    assert first["text"] == ctl("check").out.splitlines()[0]
    assert json.loads(done.out)["hash"] is None


def test_warnings_count_only_when_strict(place: Place, ctl: Ctl) -> None:
    # policies.md 3.5
    place.write("more.yaml", "kind: budget\nname: nobody\nlimits: {tool_calls: 3}\n")
    done = ctl("check")
    assert done.code == 0
    assert "(warning)" in done.out
    assert ctl("check", "--strict").code == 1


def test_without_harness_yaml_each_reference_is_a_problem_that_says_so(place: Place, ctl: Ctl) -> None:
    (place.folder / "harness.yaml").unlink()
    place.write("fallback.yaml", "kind: fallback\nchains: {model/primary: [model/second]}\n")
    for words in (("check", "policies"), ("check",)):
        done = ctl(*words)
        assert done.code == 1
        assert "model/second cannot be looked up without a harness.yaml: name it: --config FILE" in done.out
        assert done.out.splitlines()[-1].startswith("2 problems in 1 file")


def test_nothing_to_check_is_said(place: Place, ctl: Ctl) -> None:
    (place.folder / "harness.yaml").unlink()
    place.policies.rename(place.folder / "elsewhere")
    for words in (("check",), ("check", "no-such"), ("check", "elsewhere", "--config", "no-such.yaml")):
        done = ctl(*words)
        assert (done.code, done.out) == (2, "")
        assert len(done.err.splitlines()) == 2
    assert ctl("check", "elsewhere").code == 0


def test_harness_yaml_is_checked_with_the_folder(place: Place, ctl: Ctl) -> None:
    config = place.folder / "other.yaml"
    config.write_text((place.folder / "harness.yaml").read_text().replace("default_agent: builder", "defalt_agent: x"))
    done = ctl("check", "policies", "--config", "other.yaml")
    assert done.code == 1
    assert done.out.startswith("other.yaml:")
    assert 'did you mean "default_agent"?' in done.out


def test_an_empty_file_says_empty(place: Place, ctl: Ctl) -> None:
    # h19
    place.write("nothing.yaml", "# nothing here\n")
    done = ctl("check")
    assert done.code == 1
    assert "policies/nothing.yaml:1:1: empty" in done.out


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("budgets:\n  tool_cals: 90\n", "budget", '2:3: unknown key "tool_cals": did you mean "tool_calls"?'),
        ("limits: {tool_cals: 90}\n", "limits", ""),
        ("warn_at: [50%]\n", "budget", ""),
        ("tiers: {compat: 80%}\n", "compaction", '1:9: unknown key "compat": did you mean "compact"?'),
    ],
)
def test_a_document_without_its_kind(place: Place, ctl: Ctl, text: str, kind: str, problem: str) -> None:
    # h08
    place.write("x.yaml", text)
    done = ctl("check")
    assert done.code == 1
    assert f'policies/x.yaml:1:1: the key "kind" is missing: write kind: {kind}\n' in done.out
    assert problem in done.out


def test_secrets_are_looked_for_only_when_asked(place: Place, ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    # A14, h16
    place.write("notify.yaml", "kind: notify\nchannels: {ops: {webhook: {url: {credential: ops_url}}}}\n")
    assert ctl("check", "--strict").code == 0
    done = ctl("check", "--env")
    assert done.code == 0
    assert "PRIMARY_KEY is not set" in done.out
    assert "there is no credential ops_url" in done.out
    assert ctl("check", "--env", "--strict").code == 1
    folder = place.folder / "etc" / "harnessd" / "credentials"
    folder.mkdir(parents=True)
    (folder / "ops_url").write_text("https://hooks.example/sk-test-0000\n")
    monkeypatch.setenv("PRIMARY_KEY", "sk-test-0000")
    done = ctl("check", "--env", "--strict")
    assert (done.code, "sk-test" in done.out + done.err) == (0, False)


def test_a_literal_secret_is_refused_and_never_repeated(place: Place, ctl: Ctl) -> None:
    # h17
    place.write("notify.yaml", 'kind: notify\nchannels: {ops: {webhook: {url: "https://h.example/sk-test-0000"}}}\n')
    for words in ("check",), ("check", "--json"), ("show", "--config", "harness.yaml"), ("diff", "policies", "files"):
        done = ctl(*words)
        assert done.code == 1
        assert "sk-test" not in done.out + done.err


def test_nothing_in_a_file_drives_the_terminal(place: Place, ctl: Ctl) -> None:
    place.write("bad.yaml", f"kind: budget\nlimits: {{tool_calls: '{HOSTILE}'}}\n")
    place.write("worse.yaml", f"kind: budget\nname: x\n{HOSTILE}: 1\n")
    place.write("\x1b[2Jname.yaml", "kind: budgt\n")
    for words in ("check",), ("check", "--json"), ("diff", "policies", "files"):
        done = ctl(*words)
        assert done.code == 1
        assert not [letter for letter in done.out + done.err if letter != "\n" and drives_a_terminal(letter)]


def test_what_cannot_be_read_is_a_problem(place: Place, ctl: Ctl) -> None:
    os.mkfifo(place.policies / "pipe.yaml")
    (place.policies / "gone.yaml").symlink_to("nowhere")
    (place.policies / "folder").mkdir()
    (place.policies / "large.yaml").write_bytes(b"#" * (1 << 21))
    (place.policies / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    done = ctl("check")
    assert done.code == 1
    for name in ("pipe.yaml", "gone.yaml", "folder", "large.yaml", "binary.yaml"):
        assert f"policies/{name}" in done.out, done.out
    assert ctl("check", "harness.yaml").code == 1  # a file where a folder is wanted


def test_a_folder_that_is_not_there_means_the_defaults(place: Place, ctl: Ctl) -> None:
    (place.folder / "harness.yaml").write_text(
        (place.folder / "harness.yaml").read_text().replace(", policies: {budget: long}", "")
    )
    (place.policies / "long.yaml").unlink()
    place.policies.rmdir()
    done = ctl("check")
    assert done.code == 0
    assert done.out == "There is no folder policies: the built-in defaults hold.\n"


def test_running_needs_the_daemon(place: Place, ctl: Ctl) -> None:
    del place
    assert ctl("check", "--running").code == 3
