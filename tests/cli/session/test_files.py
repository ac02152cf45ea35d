"""Session files of known agents: which messages are the talk, whatever is torn, branched or repeated (R4.7)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from harnessd.cli.session import document as documents
from harnessd.cli.session.remarks import NotATranscript
from tests.cli.session.conftest import Ctl, Written, as_bytes, codes
from tests.transcripts import refusal, results


def claude(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    answer = {"id": more.pop("answer")} if "answer" in more else {}
    message = {"role": role, "content": content, **answer}
    if role == "assistant":
        message |= {"model": "m", "stop_reason": None, "usage": {"input_tokens": 1}}
    line = {"type": role, "uuid": uuid, "parentUuid": parent, "timestamp": "2026-11-30T12:00:00Z", "sessionId": "s"}
    return line | {"message": message} | more


def use(id_: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": "Bash", "input": {"command": id_}}


def outcome(id_: str) -> list[Any]:
    return [{"type": "tool_result", "tool_use_id": id_, "content": f"real {id_}"}]


def text(words: str) -> list[Any]:
    return [{"type": "text", "text": words}]


TALK = (
    {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
    claude("u1", None, "user", "Do it."),
    claude("a1", "u1", "assistant", text("I will."), answer="msg_1"),
    claude("a2", "a1", "assistant", [use("c1")], answer="msg_1"),
    claude("r1", "a2", "user", outcome("c1")),
    claude("a3", "r1", "assistant", text("Done."), answer="msg_2"),
    claude("u2", "a3", "user", "Thanks."),
)


def words_of(view: list[Any]) -> str:
    return json.dumps(view)


def test_a_claude_code_session(ctl: Ctl, written: Written) -> None:
    ran = ctl("lint", written(TALK, "s.jsonl"), "--json")
    assert ran.code == 0, ran.out
    view = json.loads(ctl("repair", written(TALK, "s.jsonl")).out)
    assert [message["role"] for message in view] == ["user", "assistant", "user", "assistant", "user"]
    assert [block["type"] for block in view[1]["content"]] == ["text", "tool_use"], "an answer is written line by line"
    assert refusal(view, "anthropic") == ""


def test_a_torn_last_line(ctl: Ctl, written: Written) -> None:
    torn = (*TALK, json.dumps(claude("a4", "u2", "assistant", text("half")))[:-20])
    ran = ctl("lint", written(torn, "s.jsonl"), "--json")
    assert (ran.code, codes(ran)) == (1, ["torn_record"])
    assert "line 8" in json.loads(ran.out)["problems"][0]["message"]
    view = json.loads(ctl("repair", written(torn, "s.jsonl")).out)
    assert view[-1]["content"] == "Thanks."


def test_a_torn_line_in_the_middle_whose_parents_can_be_read(ctl: Ctl, written: Written) -> None:
    line = json.dumps({"uuid": "a3", "parentUuid": "r1", "type": "assistant", "message": {"content": "lost"}})
    torn = (*TALK[:5], line[:-9], TALK[6])
    view = json.loads(ctl("repair", written(torn, "s.jsonl")).out)
    assert "Do it." in words_of(view)
    assert "Thanks." in words_of(view)
    assert refusal(view, "anthropic") == ""


def test_no_bridge_is_guessed(ctl: Ctl, written: Written) -> None:
    # P24: where the parent is gone, what was before is left out, and that is said
    torn = (*TALK[:5], '{"type": "assist', TALK[6])
    ran = ctl("repair", written(torn, "s.jsonl"))
    assert [message["content"] for message in json.loads(ran.out)] == ["Thanks."]
    assert "missing_parent" in ran.err
    assert "torn_record" in ran.err


def test_zeroed_blocks(ctl: Ctl, written: Written) -> None:
    data = as_bytes(TALK) + b"\x00" * 4096
    ran = ctl("lint", written(data, "s.jsonl"), "--json")
    assert codes(ran) == ["torn_record"]
    assert "NUL" in ran.out
    middle = as_bytes(TALK[:6]) + b"\x00" * 512 + b"\n" + as_bytes(TALK[6:])
    assert refusal(json.loads(ctl("repair", written(middle, "s.jsonl")).out), "anthropic") == ""


def test_the_newest_time_stamp_is_not_the_head(ctl: Ctl, written: Written) -> None:
    late = claude("x1", "a1", "assistant", text("a sub-task wrote last"), isSidechain=True)
    late["timestamp"] = "2027-01-01T00:00:00Z"
    progress = {"type": "progress", "uuid": "p1", "parentUuid": "a1", "timestamp": "2028-01-01T00:00:00Z"}
    view = json.loads(ctl("repair", written((*TALK, late, progress), "s.jsonl")).out)
    assert "sub-task" not in words_of(view)
    assert view[-1]["content"] == "Thanks."


def test_branches_that_were_left(ctl: Ctl, written: Written) -> None:
    # P23: the view is built from the head's own path
    other = claude("b1", "r1", "assistant", text("Another way."))
    mixed = (*TALK[:5], other, claude("b2", "b1", "user", "No."), *TALK[5:])
    ran = ctl("repair", written(mixed, "s.jsonl"))
    assert "Another way." not in ran.out
    assert "other branches" in ran.err
    assert ctl("lint", written(mixed, "s.jsonl")).code == 0


def test_calls_made_together_branch_and_keep_their_results(ctl: Ctl, written: Written) -> None:
    lines = (
        claude("u1", None, "user", "Two things."),
        claude("a1", "u1", "assistant", [use("c1")], answer="msg_1"),
        claude("a2", "a1", "assistant", [use("c2")], answer="msg_1"),
        claude("r1", "a1", "user", outcome("c1")),
        claude("r2", "a2", "user", outcome("c2")),
        claude("a3", "r2", "assistant", text("Both."), answer="msg_2"),
    )
    view = json.loads(ctl("repair", written(lines, "s.jsonl")).out)
    assert {call: words for call, words, _ in results(view)} == {"c1": "real c1", "c2": "real c2"}
    assert refusal(view, "anthropic") == ""


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((claude("u1", "u1", "user", "Me."), claude("u2", None, "user", "You.")), "self_reference"),
        ((claude("u1", "u2", "user", "Me."), claude("u2", "u1", "user", "You.")), "parent_cycle"),
        ((claude("u1", "gone", "user", "Me."),), "missing_parent"),
    ],
)
def test_parents_that_lead_nowhere(ctl: Ctl, written: Written, lines: Any, code: str) -> None:
    # P24
    ran = ctl("lint", written(lines, "s.jsonl"), "--json")
    assert code in codes(ran)
    assert refusal(json.loads(ctl("repair", written(lines, "s.jsonl")).out), "anthropic") == ""


def test_a_stored_pointer_is_the_head(ctl: Ctl, written: Written) -> None:
    lines = (
        {"type": "meta", "pointer": "n2"},
        {"id": "n1", "parent": None, "role": "user", "content": "Go."},
        {"id": "n2", "parent": "n1", "role": "assistant", "content": "Fine."},
        {"id": "n3", "parent": "n2", "role": "user", "content": "Left."},
    )
    view = json.loads(ctl("repair", written(lines, "s.jsonl"), "--protocol", "openai-chat").out)
    assert [message["content"] for message in view] == ["Go.", "Fine.", "Continue."]
    assert "id" not in view[0]


def test_an_api_error_is_no_answer(ctl: Ctl, written: Written) -> None:
    failed = claude("e1", "u2", "assistant", text("API Error: 529"), isApiErrorMessage=True)
    view = json.loads(ctl("repair", written((*TALK, failed), "s.jsonl")).out)
    assert "API Error" not in words_of(view)


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-11-30T12:00:00Z", "type": kind, "payload": payload}


def message(role: str, words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return codex("response_item", type="message", role=role, content=[{"type": kind, "text": words}])


ROLLOUT = (
    codex("session_meta", id="s", cwd="/w"),
    message("user", "Go."),
    codex("turn_context", model="m"),
    codex("event_msg", type="user_message", message="Go."),
    codex("response_item", type="function_call", call_id="c1", name="shell", arguments="{}"),
    codex("response_item", type="function_call_output", call_id="c1", output="real c1"),
    message("assistant", "Done."),
)


def test_a_codex_rollout(ctl: Ctl, written: Written) -> None:
    ran = ctl("repair", written(ROLLOUT, "rollout.jsonl"))
    view = json.loads(ran.out)
    assert [item["type"] for item in view] == ["message", "function_call", "function_call_output", "message"]
    assert "Nothing to repair" in ran.err
    assert "Codex rollout" in ran.err


def test_a_codex_rollout_that_broke_off(ctl: Ctl, written: Written) -> None:
    ran = ctl("lint", written((*ROLLOUT[:5], json.dumps(ROLLOUT[5])[:-9]), "rollout.jsonl"), "--json")
    assert codes(ran) == ["torn_record", "unanswered_call"]


def test_a_codex_compaction_and_a_turn_that_was_taken_back(ctl: Ctl, written: Written) -> None:
    lines = (
        *ROLLOUT,
        codex("compacted", message="What was done."),
        message("user", "More."),
        message("assistant", "No."),
        codex("event_msg", type="thread_rolled_back", num_turns=1),
        message("user", "Other."),
    )
    view = json.loads(ctl("repair", written(lines, "rollout.jsonl")).out)
    assert [item["content"][0]["text"] for item in view] == ["What was done.", "Other."]


PI = (
    {"type": "session", "version": 3, "id": "s", "cwd": "/w"},
    {"type": "message", "id": "1", "parentId": None, "message": {"role": "user", "content": "Go.", "timestamp": 1}},
    {
        "type": "message",
        "id": "2",
        "parentId": "1",
        "message": {
            "role": "assistant",
            "api": "anthropic-messages",
            "model": "m",
            "stopReason": "toolUse",
            "content": [
                {"type": "text", "text": "I will."},
                {"type": "toolCall", "id": "c1", "name": "ls", "arguments": {}},
            ],
        },
    },
    {
        "type": "message",
        "id": "3",
        "parentId": "2",
        "message": {
            "role": "toolResult",
            "toolCallId": "c1",
            "toolName": "ls",
            "content": text("real c1"),
            "isError": False,
        },
    },
    {"type": "message", "id": "4", "parentId": "3", "message": {"role": "user", "content": text("Next.")}},
)


def test_a_pi_session(ctl: Ctl, written: Written) -> None:
    ran = ctl("repair", written(PI, "pi.jsonl"))
    view = json.loads(ran.out)
    assert "Nothing to repair" in ran.err
    assert {call: words for call, words, _ in results(view)} == {"c1": "real c1"}
    assert refusal(view, "anthropic") == ""


def test_a_pi_session_after_a_compaction(ctl: Ctl, written: Written) -> None:
    lines = (
        *PI,
        {"type": "compaction", "id": "5", "parentId": "4", "summary": "It was listed.", "firstKeptEntryId": "4"},
        {"type": "message", "id": "6", "parentId": "5", "message": {"role": "user", "content": "And now?"}},
    )
    view = json.loads(ctl("repair", written(lines, "pi.jsonl")).out)
    assert "It was listed." in view[0]["content"]
    assert "real c1" not in words_of(view)
    assert view[-1]["content"] == "And now?"


def test_an_aborted_pi_answer_is_no_part_of_the_view(ctl: Ctl, written: Written) -> None:
    said = {"role": "assistant", "stopReason": "aborted", "content": text("half an ans"), "api": "anthropic-messages"}
    lines = (*PI, {"type": "message", "id": "5", "parentId": "4", "message": said})
    assert "half an ans" not in ctl("repair", written(lines, "pi.jsonl")).out


def test_an_opencode_export(ctl: Ctl, written: Written) -> None:
    tool = {
        "type": "tool",
        "callID": "c1",
        "tool": "ls",
        "state": {"status": "completed", "input": {}, "output": "real"},
    }
    cut = {"type": "tool", "callID": "c2", "tool": "ls", "state": {"status": "running", "input": {}}}
    export = {
        "info": {"id": "ses_1"},
        "messages": [
            {"info": {"role": "user"}, "parts": text("Go.")},
            {"info": {"role": "assistant"}, "parts": [{"type": "step-start"}, *text("I will."), tool, cut]},
        ],
    }
    view = json.loads(ctl("repair", written(export)).out)
    found = {call: words for call, words, _ in results(view)}
    assert found["c1"] == "real"
    assert "unknown" in found["c2"]
    assert refusal(view, "anthropic") == ""


def test_an_aider_history(ctl: Ctl, written: Written) -> None:
    history = "\n# aider chat started at 2026-11-30 12:00:00\n\n> Aider v1\n\n#### Add a test.\n\nHere it is.\n"
    history += "\n#### Thanks.\n"
    view = json.loads(ctl("repair", written(history, "history.md")).out)
    assert [(m["role"], m["content"]) for m in view] == [
        ("user", "Add a test."),
        ("assistant", "Here it is."),
        ("user", "Thanks."),
    ]


def test_lines_of_plain_messages(ctl: Ctl, written: Written) -> None:
    lines = (
        {"role": "user", "content": "Go.", "timestamp": 1},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
        },
        7,
        {"role": "tool", "tool_call_id": "c1", "content": "real c1"},
    )
    ran = ctl("lint", written(lines, "chat.jsonl"), "--json")
    assert codes(ran) == ["not_a_message"]
    view = json.loads(ctl("repair", written(lines, "chat.jsonl")).out)
    assert refusal(view, "openai-chat") == ""


def test_any_bytes_give_a_transcript_or_a_sentence() -> None:
    data = as_bytes(TALK)
    for start in range(0, len(data), 97):
        for broken in (data[start:], data[:start], data[:start] + b"\x00\xff" + data[start + 40 :]):
            with contextlib.suppress(NotATranscript):
                assert documents.detect(documents.read(broken)) == "anthropic"
