"""`export` and `import` as a person calls them: files, pages to read, transcripts of other agents."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessd.cli.client import Problem
from harnessd.cli.render import visible
from harnessd.cli.transfer.foreign import lines_of
from harnessd.cli.transfer.page import page
from harnessd.defence.line3_repair.transcript import receiver
from harnessd.defence.line3_repair.view import view_of
from harnessd.domain.messages import Message, TextBlock, ToolUseBlock
from harnessd.domain.session import Node, NodeKind, assistant_payload, result_payload, user_payload
from harnessd.runtime.control.transfer.reading import Reader
from tests.cli.conftest import Ctl
from tests.cli.situations import two_lines, with_branches
from tests.cli.test_render import HOSTILE
from tests.control_server import ControlServer
from tests.session_files import decision, effect, node, sealed
from tests.transcripts import PROTOCOLS, cases

TAGS = frozenset(
    "html head meta title style body h1 h2 table tr th td pre section div details summary b".split()  # noqa: SIM905 - read as a line
)


# --- files ------------------------------------------------------------------------------------------------------------


def test_export_writes_the_whole_file_or_none(server: ControlServer, ctl: Ctl, tmp_path: Path) -> None:
    task = with_branches(server)
    out = tmp_path / "session.jsonl"
    done = ctl("export", task, "-o", str(out))
    assert (done.code, done.out) == (0, "")
    assert out.stat().st_mode & 0o777 == 0o600
    assert json.loads(out.read_bytes().splitlines()[-1])["type"] == "end"
    assert [path.name for path in tmp_path.iterdir()] == ["session.jsonl"]
    lost = ctl("export", task, "-o", str(tmp_path / "no" / "session.jsonl"))
    assert lost.code == 1
    two_lines(lost.err)
    nobody = ctl("export", "zzzzzz", "-o", str(tmp_path / "other"))
    assert nobody.code == 4
    assert not (tmp_path / "other").exists()


def test_through_a_pipe_and_back(server: ControlServer) -> None:
    task = with_branches(server)
    exported = server.cli("export", task)
    assert exported.code == 0
    back = server.cli("import", "-", "--workspace", str(server.workspace), "--json", stdin=exported.out)
    assert back.code == 0, back.err
    row = json.loads(back.out)
    assert (row["state"], row["imported"], row["workspace"]) == ("paused", task, str(server.workspace))
    assert HOSTILE not in server.cli("tree", row["task"]).out


def test_what_an_import_says(server: ControlServer, ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    acts = [effect(1), effect(2, state="unknown", result=None)]
    reply = Message("assistant", (ToolUseBlock("c1", "bash", {"command": "make"}),))
    nodes = [node(1, "user", user_payload("Pay")), node(2, "assistant", assistant_payload(reply))]
    file.write_bytes(sealed(str(server.workspace), [*nodes, *acts]))
    tried = ctl("import", str(file), "--dry-run")
    assert (tried.code, "Would import 2 nodes, 2 effects" in tried.out, "e2" in tried.err) == (0, True, True)
    done = ctl("import", str(file))
    task = done.out.split()[0]
    assert f"harnessctl resume {task}" in done.err
    assert "imported=abc123" in ctl("status", task).out
    assert ctl("effects", task).code == ctl("why", task).code == ctl("tree", task).code == 0
    assert "unknown" in ctl("effects", task).out


def test_a_file_that_is_none_is_told_in_two_lines(server: ControlServer, ctl: Ctl, tmp_path: Path) -> None:
    whole = sealed(str(server.workspace))
    for name, data in {
        "empty": b"",
        "blank": b" \n\n",
        "text": b"Dear diary",
        "binary": bytes(range(256)),
        "torn": whole[:-30],
        "changed": whole.replace(b"I look.", b"I hack."),
        "number": b"17",
        "no messages": b'{"model": "m"}',
        "no words": b"[]",
        "newer": whole.replace(b'"version":1', b'"version":9'),
    }.items():
        file = tmp_path / name
        file.write_bytes(data)
        done = ctl("import", str(file))
        assert done.code in (2, 5), (name, done)
        assert "Traceback" not in done.err
        two_lines(done.err)
    assert ctl("import", str(tmp_path / "not there")).code == 2
    assert ctl("import", str(tmp_path)).code == 2
    assert json.loads(ctl("list", "--json").out)["tasks"] == []


# --- transcripts of others --------------------------------------------------------------------------------------------

CLAUDE = "\n".join(
    json.dumps(row)
    for row in (
        {"uuid": "a", "parentUuid": None, "type": "user", "message": {"role": "user", "content": "Fix it"}},
        {
            "uuid": "b",
            "parentUuid": "a",
            "type": "assistant",
            "message": {
                "role": "assistant",
                "id": "m1",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
                ],
            },
        },
        {
            "uuid": "c",
            "parentUuid": "b",
            "type": "user",
            "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}]},
        },
    )
)
CHAT = json.dumps(
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Fix it"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "a.py"},
        ],
    }
)
CODEX = "\n".join(
    json.dumps({"type": "response_item", "payload": payload})
    for payload in (
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "t1", "name": "bash", "arguments": '{"command":"ls"}'},
        {"type": "function_call_output", "call_id": "t1", "output": "a.py"},
    )
)


@pytest.mark.parametrize("text", [CLAUDE, CHAT, CODEX], ids=["claude", "chat", "codex"])
def test_a_transcript_of_another_agent_becomes_a_session(
    text: str, server: ControlServer, ctl: Ctl, tmp_path: Path
) -> None:
    # R4.7
    file = tmp_path / "talk.jsonl"
    file.write_text(text)
    done = ctl("import", str(file), "--workspace", str(server.workspace))
    assert done.code == 0, done.err
    task = done.out.split()[0]
    nodes = json.loads(ctl("tree", task, "--json").out)["nodes"]
    assert [one["kind"] for one in nodes] == ["user", "assistant", "tool_result"]
    assert [one["text"] for one in nodes] == ["Fix it", "I look.", "a.py"]
    assert (nodes[1]["calls"][0]["tool"], nodes[2]["tool"]) == ("bash", "bash")
    assert ("system prompt is left out" in done.err) is (text is CHAT)


# Who speaks first and last, and how long a name may be, is another thing in each protocol.
EDGES = {"starts_with_assistant", "ends_with_assistant", "bad_tool_name"}


def test_every_broken_transcript_comes_in_whole() -> None:
    # R4.7: whatever was wrong is repaired on its way in; what is stored needs no repair in any protocol.
    known = [case for case in cases() if case.messages]
    assert len(known) > 50
    for case in known:
        data, _ = lines_of(json.dumps(case.messages).encode(), case.name, "/work")
        reader = Reader()
        reader.feed(data)
        session = reader.end()
        assert session.task["pointer"] == session.nodes[-1].id
        nodes = [Node(one.id, one.parent, NodeKind(one.kind), json.loads(one.payload), one.at) for one in session.nodes]
        for protocol in PROTOCOLS:
            found = view_of(nodes, receiver(protocol)).findings
            assert {one.code for one in found} <= EDGES, (case.name, found)


# --- pages ------------------------------------------------------------------------------------------------------------


class Seen(HTMLParser):
    """What a browser makes of a page: its elements, attributes and words."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def shown(rows: list[dict[str, Any]], **fields: Any) -> str:
    row = {"state": "stopped", "reason": "error", "class": "auth", "sentence": "x", "submitted_at": 1.0, **fields}
    counters = {"turns": 1, "tool_calls": 1, "tokens": 5, "cost_usd": 0.5}
    data = sealed("/work", rows, counters=counters, **row)
    return "".join(page(data[at : at + 7] for at in range(0, len(data), 7)))


ATTACKS = (
    "<script>alert(1)</script>",
    "</pre></details></section><img src=x onerror=alert(1)>",
    "\"' onmouseover='x' \" <svg/onload=x>",
    "</style><script>x</script>",
    "<!-- ]]> <![CDATA[",
    "&lt;script&gt; &#60;b&#62; &amp;",
    "\x1b[31m\x00\x07 \u202e evil \u2066 \u2028 \x85",
    "javascript:alert(1) https://evil.example/x.png",
    "{{7*7}} ${7*7} <%= 7*7 %>",
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.sampled_from(ATTACKS), st.text(st.characters(exclude_categories=["Cs"]), max_size=60)))
def test_whatever_is_said_a_page_shows_it_and_does_nothing(words: str) -> None:
    # Security: a session holds what models, tools and web pages said
    reply = Message("assistant", (TextBlock(words), ToolUseBlock("c1", words, {words: words})))
    rows: list[dict[str, Any]] = [
        node(1, "user", user_payload(words)),
        node(2, "assistant", assistant_payload(reply, served_by=words)),
        node(3, "tool_result", result_payload("c1", words, is_error=True, tool=words)),
        effect(1, name=words, arguments={words: words}, result={"text": words}),
        decision(error_class=words, evidence={words: words}),
        {"type": "question", "id": words, "node": words, "sentence": words, "choice": words, "say": words},
        {"type": "checkpoint", "ref": words, "node": words, "why": words, "changed": 1},
    ]
    draft = {"prompt": words, "agent": words, "workspace": words, "labels": {words: words}}
    text = shown(rows, draft=draft, sentence=words)
    seen = Seen()
    seen.feed(text)
    seen.close()
    assert seen.tags <= TAGS, seen.tags - TAGS
    attributes = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "open"}
    assert seen.attributes <= attributes, seen.attributes - attributes
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", text)
    assert f"\n{visible(words)}\n" in f"\n{chr(10).join(seen.words)}\n"


def test_a_page_says_what_a_reader_wants() -> None:
    reply = Message("assistant", (TextBlock("I look."), ToolUseBlock("c1", "bash", {"command": "make"})))
    rows = [
        node(1, "user", user_payload("Port it")),
        node(2, "assistant", assistant_payload(reply, served_by="m-1")),
        node(3, "tool_result", result_payload("c1", "boom", is_error=True, tool="bash")),
        effect(1),
        decision(),
    ]
    text = shown(rows)
    for wanted in ("Port the importer", "0.50 USD", "Calls <b>bash</b>", "Result of bash", "failed", "stopped error"):
        assert wanted in text, wanted
    assert "retry/default overloaded" in text
    assert "irreversible" in text
    assert "Content-Security-Policy" in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert not re.search(r"(?:src|href|url)\s*[=(]", text)


def test_a_session_that_breaks_off_is_no_page(tmp_path: Path) -> None:
    data = sealed("/work", [node(1, "user", user_payload("x"))])
    with pytest.raises(Problem):
        list(page([b"".join(data.splitlines(keepends=True)[:1])]))
    del tmp_path


def test_the_page_of_a_real_task(server: ControlServer, ctl: Ctl, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert ctl("export", with_branches(server), "--html", "-o", str(out)).code == 0
    seen = Seen()
    seen.feed(out.read_text())
    assert seen.tags <= TAGS
    assert "Merge the price tables" in "".join(seen.words)
