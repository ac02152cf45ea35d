"""policy classify: what a recorded answer is, by which line; every bad file is told with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.policy.conftest import Ctl, Place

BUSY = """\
protocol: gemini
status: 429
headers: {retry-after: "Mon, 30 Nov 2026 12:00:30 GMT"}
body: '{"error": {"code": 429, "message": "Please wait.", "status": "RESOURCE_EXHAUSTED"}}'
now: 2026-11-30T12:00:00Z
"""


def written(folder: Path, text: str | bytes, name: str = "answer.yaml") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_the_class_the_wait_and_the_line_are_told(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # cli.md: works without a daemon, for any name of a protocol, with the shipped policies where there are no others
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    ran = ctl("classify", written(tmp_path, BUSY), "--json")
    assert ran.code == 0, ran
    found = json.loads(ran.out)
    rule = found.pop("rule")
    assert found == {
        "class": "rate_limited",
        "owner": "runtime",
        "retryable": True,
        "retry_after_s": 30.0,
        "message": "Please wait.",
    }
    assert (rule["kind"], rule["name"], rule["file"]) == ("retry", "default", "builtin retry.yaml")
    assert set(rule) == {"kind", "name", "rule", "file", "line", "revision"}
    assert rule["line"] > 1
    shown = ctl("classify", written(tmp_path, BUSY))
    assert "rate_limited" in shown.out
    assert "30s" in shown.out
    assert f"builtin retry.yaml:{rule['line']}" in shown.out


def test_a_complete_answer_has_the_class_ok(ctl: Ctl, tmp_path: Path) -> None:
    record = {"protocol": "bedrock", "status": 200, "body": {"stopReason": "end_turn", "output": {}}}
    ran = ctl("classify", written(tmp_path, json.dumps(record), "answer.json"), "--json")
    found = json.loads(ran.out)
    assert (found["class"], found["owner"], found["retryable"], found["retry_after_s"]) == ("ok", None, False, None)


def test_own_policies_decide_and_their_line_is_named(ctl: Ctl, place: Place, tmp_path: Path) -> None:
    # R1.3, A22
    rules = 'kind: retry\nrules:\n  - {name: patient, when: {status: 429, message: "*wait*"}, class: overloaded}\n'
    place.write("gateway.yaml", rules)
    file = written(tmp_path, BUSY)
    for words in ([], ["--policies", str(place.policies)]):
        found = json.loads(ctl("classify", file, "--json", *words).out)
        assert (found["class"], found["rule"]["rule"], found["rule"]["line"]) == ("overloaded", "patient", 3)
        assert found["rule"]["file"].endswith("gateway.yaml")
    place.write("gateway.yaml", "kind: retry\nrules: [{when: {status: 429}, class: overlooded}]\n")
    ran = ctl("classify", file)
    assert ran.code == 1
    assert "overlooded" in ran.out


def test_the_window_lets_numbers_speak(ctl: Ctl, tmp_path: Path) -> None:
    # R4.3 (d): the record may say what the answer does not
    record = {"protocol": "openai-chat", "status": 400, "body": {"error": {"message": "prompt is too long"}}}
    for window_used, error_class in ((0.1, "invalid_request"), (0.5, "context_overflow"), (None, "context_overflow")):
        file = written(tmp_path, json.dumps(record | {"window_used": window_used}))
        assert json.loads(ctl("classify", file, "--json").out)["class"] == error_class
    vague = {"protocol": "openai-chat", "status": 400, "body": "", "window_used": 0.9}
    found = json.loads(ctl("classify", written(tmp_path, json.dumps(vague)), "--json").out)
    assert found["class"] == "context_overflow"
    silent = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 210000}}
    cut = {"protocol": "openai-chat", "status": 200, "body": silent, "window": 200000}
    found = json.loads(ctl("classify", written(tmp_path, json.dumps(cut)), "--json").out)
    assert found["class"] == "context_overflow"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", ":1:1", "no map"),
        ("[1, 2]", ":1:1", "no map"),
        ("just words", ":1:1", "no map"),
        ("status: 429\n", ":1:1", "protocol"),
        ("protocol: 7\nstatus: 429\n", ":1:11", "protocol"),
        ("protocol: x\n", ":1:1", "status"),
        ("protocol: x\nstatus: many\n", ":2:9", "'many' is no HTTP status"),
        ("protocol: x\nstatus: 42\n", ":2:9", "42 is no HTTP status"),
        ("protocol: x\nstatus: true\n", ":2:9", "no HTTP status"),
        ("protocol: x\nstatus: 429\nheaders: [a]\n", ":3:10", "headers"),
        ("protocol: x\nstatus: 429\nheaders: {a: {b: c}}\n", ":3:10", "headers"),
        ("protocol: x\nstatus: 200\nsse: 5\n", ":3:6", "sse"),
        ("protocol: x\nstatus: 200\nsse: [a]\nbody: b\n", ":3:6", "either"),
        ("protocol: x\ntransport_error: [a]\n", ":2:18", "transport_error"),
        ("protocol: x\nstatus: 429\nnow: soon\n", ":3:6", "no time"),
        ("protocol: x\nstatus: 429\nwindow: big\n", ":3:9", "no size"),
        ("protocol: x\nstatus: 429\ndependency: tool/bash\n", ":3:13", "model/ALIAS"),
        ("protocol: [x\nstatus: 429\n", ":2:7", ""),
        ("protocol: x\n\tstatus: 429\n", ":2:1", ""),
        ("a: &a [x]\nb: *a\n", ":2:4", "aliases"),
        ("{" * 5000, "", ""),
        ("protocol: x\nstatus: 4\x00\n", "", ""),
        (b"protocol: \xff\xfe\n", "", "UTF-8"),
    ],
)
def test_a_bad_file_is_one_line_with_its_place(
    ctl: Ctl, tmp_path: Path, text: str | bytes, place: str, words: str
) -> None:
    file = written(tmp_path, text)
    ran = ctl("classify", file)
    assert ran.code == 2, ran
    assert ran.out == ""
    sentence, hint = ran.err.strip().splitlines()
    assert sentence.startswith(f"{file}{place}: " if place else file)
    assert words in sentence
    assert hint
    told = json.loads(ctl("classify", file, "--json").err)
    assert told["error"]["message"] == sentence


def test_a_file_that_is_not_there(ctl: Ctl, tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        ran = ctl("classify", str(path))
        assert ran.code == 2
        assert ran.err.startswith(f"{path} cannot be read")
