"""session lint and session repair: forms of the file, of the answer, exit statuses; never a traceback (cli.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.session.conftest import Ctl, Written, as_bytes, codes
from tests.transcripts import cases, refusal, unmet

BROKEN = [
    {"role": "user", "content": "Count the files."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "shell", "input": {"cmd": "ls"}}]},
    {"role": "user", "content": "Are you still there?"},
]
VALID = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye."},
]


def test_lint_names_each_violation_with_its_position(ctl: Ctl, written: Written) -> None:
    # cli.md: {"ok": bool, "problems": [{"code", "index", "message"}]}
    ran = ctl("lint", written(BROKEN), "--json")
    assert ran.code == 1
    document = json.loads(ran.out)
    assert set(document) == {"ok", "problems"}
    assert document["ok"] is False
    (problem,) = document["problems"]
    assert set(problem) == {"code", "index", "message"}
    assert (problem["code"], problem["index"]) == ("unanswered_call", 1)
    shown = ctl("lint", written(BROKEN))
    assert shown.code == 1
    assert "message 1  unanswered_call" in shown.out
    assert "1 problem" in shown.err


def test_a_legal_transcript_has_no_problem(ctl: Ctl, written: Written) -> None:
    ran = ctl("lint", written(VALID), "--json")
    assert (ran.code, json.loads(ran.out)) == (0, {"ok": True, "problems": []})
    assert ctl("lint", written(VALID)).code == 0


def test_repair_prints_the_messages_alone_and_the_report_beside(ctl: Ctl, written: Written) -> None:
    path = written(BROKEN)
    before = Path(path).read_bytes()
    ran = ctl("repair", path)
    assert ran.code == 0
    view = json.loads(ran.out)
    assert refusal(view, "anthropic") == ""
    assert "unanswered_call" in ran.err
    assert Path(path).read_bytes() == before
    as_json = ctl("repair", path, "--json")
    assert json.loads(as_json.out) == view
    report = json.loads(as_json.err)
    assert [row["code"] for row in report["repairs"]] == ["unanswered_call"]
    assert report["protocol"] == "anthropic"


def test_repair_writes_a_file(ctl: Ctl, written: Written, tmp_path: Path) -> None:
    out = tmp_path / "view.json"
    ran = ctl("repair", written(BROKEN), "-o", str(out))
    assert (ran.code, ran.out) == (0, "")
    assert refusal(json.loads(out.read_text()), "anthropic") == ""
    assert ctl("lint", str(out)).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"transcript.json", "view.json"}


def test_a_request_body_stays_one(ctl: Ctl, written: Written) -> None:
    body = {"model": "m", "max_tokens": 100, "system": "Be brief.", "messages": BROKEN, "metadata": {"user_id": "x"}}
    view = json.loads(ctl("repair", written(body)).out)
    assert {name: value for name, value in view.items() if name != "messages"} == {
        name: value for name, value in body.items() if name != "messages"
    }
    assert refusal(view["messages"], "anthropic") == ""


def test_rules_at_the_start_of_a_request_go_where_they_belong(ctl: Ctl, written: Written) -> None:
    messages = [{"role": "system", "content": "Be kind."}, *VALID]
    for system, whole in (("Be brief.", "Be brief.\n\nBe kind."), (None, "Be kind.")):
        body = {"model": "m", "max_tokens": 9, "messages": messages} | ({"system": system} if system else {})
        view = json.loads(ctl("repair", written(body), "--protocol", "anthropic").out)
        assert view["system"] == whole
        assert view["messages"] == VALID


def test_items_of_a_request(ctl: Ctl, written: Written) -> None:
    items = [
        {"type": "message", "role": "user", "content": "Hi."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello."}]},
    ]
    kept = json.loads(ctl("repair", written({"model": "m", "input": items})).out)
    assert kept["input"] == items, "the service keeps its thoughts itself"
    bare = json.loads(ctl("repair", written({"model": "m", "store": False, "input": items})).out)
    assert [item["type"] for item in bare["input"]] == ["message", "message"]
    text = {"model": "m", "input": "Hi."}
    assert json.loads(ctl("repair", written(text)).out) == text


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_case_through_the_command(case: Any, ctl: Ctl, written: Written) -> None:
    # R4.7
    target = ("--target", case.target) if case.target else ()
    path = written(json.dumps(case.messages).encode())
    ran = ctl("repair", path, "--protocol", case.protocol, *target)
    assert ran.code == 0, ran
    view = json.loads(ran.out)
    assert refusal(view, case.protocol, case.target) == ""
    assert unmet(case, view) == []
    linted = ctl("lint", path, "--protocol", case.protocol, *target, "--json")
    assert json.loads(linted.out)["ok"] == (view == json.loads(Path(path).read_text()))


@pytest.mark.parametrize("case", [case for case in cases() if case.name.startswith("controls")], ids=lambda c: c.name)
def test_auto_knows_the_protocol(case: Any, ctl: Ctl, written: Written) -> None:
    ran = ctl("lint", written(case.messages), "--json")
    assert ran.code == 0, ran.out


@pytest.mark.parametrize(
    ("signature", "kept"),
    [
        ("EqoBCkYIBBgCKkC6hP0p", True),  # the service's own, cut short by whoever made the transcript public
        ("sig-1", True),
        ("sig_abc", True),
        ("<signature>", True),
        ("RXFvQ" * 20, True),
        ("opaque-from-other-provider", False),
        ("7f0c2b1e-5a43-4c1b-9d1e-2f3a4b5c6d7e", False),
        ("not a signature", False),
        ("{}", False),
        ("-" * 80, False),
        ("RXFvQ" * 20 + "A", False),  # torn
    ],
)
def test_a_thought_stays_while_it_could_be_the_services_own(
    ctl: Ctl, written: Written, signature: str, kept: bool
) -> None:
    # R4.7
    thought = {"type": "thinking", "thinking": "Hm.", "signature": signature}
    talk = [VALID[0], {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello."}]}, VALID[2]]
    assert codes(ctl("lint", written(talk), "--json")) == ([] if kept else ["thinking_dropped"])


def test_a_call_of_words_is_answered_as_one(ctl: Ctl, written: Written) -> None:
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}
    items = [{"type": "message", "role": "user", "content": "Go."}, call]
    ran = ctl("repair", written(items), "--protocol", "openai-responses")
    assert json.loads(ran.out)[2]["type"] == "custom_tool_call_output"
    assert "unanswered_call" in ran.err


def test_a_number_that_is_none_is_nothing(ctl: Ctl, written: Written) -> None:
    body = '{"temperature": NaN, "messages": [{"role": "user", "content": "Hi."}]}'
    assert "NaN" not in ctl("repair", written(body)).out


def test_blocks_of_text_are_no_chat(ctl: Ctl, written: Written) -> None:
    talk = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}]
    talk += [{"role": "system", "content": "Now in French."}, {"role": "user", "content": "Bye."}]
    assert codes(ctl("lint", written(talk), "--json")) == ["system_in_the_middle"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"\x00\x00\x00", "the file is empty"),
        (b"7", "which is no transcript"),
        (b'"words"', "which is no transcript"),
        (b"{}", "no messages and no input"),
        (b'{"model": "m"}', "its keys: model"),
        (b"no json at all", "neither JSON nor lines of JSON"),
        (b"\xff\xd8\xff\xe0 a picture", "neither JSON nor lines of JSON"),
        (b"[" * 100_000, "neither JSON nor lines of JSON"),
    ],
)
def test_what_is_no_transcript_is_said_in_two_lines(ctl: Ctl, written: Written, content: bytes, words: str) -> None:
    for command in ("lint", "repair"):
        ran = ctl(command, written(content))
        assert ran.code == 2
        assert words in ran.err
        assert len(ran.err.strip().splitlines()) == 2
    ran = ctl("lint", written(content), "--json")
    assert set(json.loads(ran.err)["error"]) == {"code", "message", "hint"}


def test_usage_errors(ctl: Ctl, written: Written, tmp_path: Path) -> None:
    path = written(VALID)
    assert ctl("lint").code == 2
    assert ctl("lint", str(tmp_path / "none.json")).code == 2
    assert ctl("lint", str(tmp_path)).code == 2
    assert ctl("lint", path, "--protocol", "gemini").code == 2
    assert ctl("lint", path, "--target", "lenient").code == 2
    assert ctl("repair", path, "-o", path).code == 2
    assert ctl("repair", path, "-o", str(tmp_path / "no" / "folder.json")).code == 1
    assert ctl("mend", path).code == 2


def test_forms_of_text(ctl: Ctl, written: Written) -> None:
    text = json.dumps(VALID)
    assert ctl("lint", written(b"\xef\xbb\xbf" + text.encode())).code == 0
    assert ctl("lint", written(text.encode("utf-16"))).code == 0
    assert ctl("lint", written(text.encode() + b"\x00" * 4096)).code == 0
    latin = json.dumps([{"role": "user", "content": "caf\xe9"}], ensure_ascii=False).encode("latin-1")
    ran = ctl("lint", written(latin), "--json")
    assert codes(ran) == ["bad_characters"]


def test_a_file_that_was_cut_off(ctl: Ctl, written: Written) -> None:
    text = json.dumps(BROKEN)
    for cut in range(len(text) - 1, 60, -7):
        ran = ctl("repair", written(text[:cut]))
        assert ran.code == 0, ran
        assert refusal(json.loads(ran.out), "anthropic") == ""
        assert "torn_record" in ran.err
    body = json.dumps({"model": "m", "messages": BROKEN})
    assert json.loads(ctl("repair", written(body[:-5])).out)[0] == BROKEN[0]


def test_nothing_from_a_file_drives_the_terminal(ctl: Ctl, written: Written) -> None:
    odd = [{"role": "evil\x1b]0;title\x07", "content": "x"}, {"role": "user", "content": "\x1b[2J\x9b31m"}]
    for command in ("lint", "repair"):
        ran = ctl(command, written(odd))
        assert "\x1b" not in ran.out + ran.err
        assert "\x9b" not in ran.out + ran.err
    assert json.loads(ctl("repair", written(odd)).out)[0]["content"] == "\x1b[2J\x9b31m"


def test_standard_input(ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(as_bytes(BROKEN))
    with path.open() as opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert ctl("lint", "-", "--json").code == 1


def test_a_large_file(ctl: Ctl, written: Written, tmp_path: Path) -> None:
    turns = [
        row
        for n in range(2_000)
        for row in (
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{n}", "name": "shell", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "x" * 3_000}]},
        )
    ]
    path = written([{"role": "user", "content": "Go."}, *turns])
    assert Path(path).stat().st_size > 5_000_000
    assert ctl("lint", path).code == 0
    out = tmp_path / "out.json"
    assert ctl("repair", path, "-o", str(out)).code == 0
    assert len(json.loads(out.read_text())) == 4_001
