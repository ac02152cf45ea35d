"""Agents: the session files and exports of known agents as messages, by their public shapes.

Claude Code: lines with uuid and parentUuid, one block of an answer a line. Codex: rollouts with payloads. Pi and
OpenClaw: lines with id and parentId. OpenCode: an export with parts. Aider: a chat history in Markdown. Any other file
of one message a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessd.cli.session import codex, tree
from harnessd.cli.session.blocks import aside, message_in, opencode_messages, pi_message
from harnessd.cli.session.remarks import Remark

Row = Mapping[str, Any]


@dataclass(slots=True)
class Session:
    """The messages of a file; `lines` says in which line each stands."""

    messages: list[Any]
    lines: list[int] = field(default_factory=list)
    shape: str = "lines of messages"
    protocol: str = ""
    problems: list[Remark] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)  # whose blocks a message holds: they are written line by line


def is_record(row: Row) -> bool:
    """One line of a session file, or one message."""
    return message_in(row) is not None or codex.is_line(row) or ("type" in row and ("uuid" in row or "id" in row))


def is_session(rows: Sequence[Row]) -> bool:
    """These are lines of a session file and not messages of a protocol."""
    return any(codex.is_line(row) or isinstance(row.get("message"), Mapping) for row in rows)


def session(rows: Sequence[tuple[int, Row]], torn: Sequence[tuple[int, str]] = ()) -> Session:
    """The talk in the lines of a file."""
    if any(codex.is_line(row) for _, row in rows):
        messages, lines = codex.items(rows)
        return Session(messages, lines, "a Codex rollout", "openai-responses")
    bare = [row for _, row in rows]
    names = tree.names_in(bare)
    if names is None:
        found = [(number, message) for number, row in rows if (message := message_in(row)) is not None]
        return Session([message for _, message in found], [number for number, _ in found])
    return _branching(rows, torn, names)


def _branching(rows: Sequence[tuple[int, Row]], torn: Sequence[tuple[int, str]], names: tuple[str, str]) -> Session:
    out = Session([], shape="a Claude Code session" if names[0] == "uuid" else "a session with parents")
    records = [
        tree.Record(number, str(row[names[0]]), _parent(row, names[1]), row, _speaks(row))
        for number, row in rows
        if isinstance(row.get(names[0]), (str, int)) and row.get("type") != "session"
    ]
    holes = [hole for number, text in torn if (hole := tree.torn_record(number, text, names)) is not None]
    records = sorted([*records, *holes], key=lambda record: record.line)
    way, off = tree.path(records, tree.pointer_in([row for _, row in rows]), out.problems, out.remarks)
    way = _with_lost_halves(way, off)
    _tell_branches(way, off, out)
    way = _from_summary(way)
    if any("api" in record.row.get("message", {}) for record in way if isinstance(record.row.get("message"), Mapping)):
        out.shape, out.protocol = "a Pi session", "anthropic"
    if names[0] == "uuid":
        out.protocol = "anthropic"
    for record in way:
        _append(record, out)
    return out


def _parent(row: Row, name: str) -> str | None:
    value = row.get(name)
    return str(value) if isinstance(value, (str, int)) and value != "" else None


def _speaks(row: Row) -> bool:
    return not row.get("isSidechain") and row.get("kind") != "progress" and message_in(row) is not None


def _append(record: tree.Record, out: Session) -> None:
    if record.row.get("isSidechain"):
        return
    message = message_in(record.row)
    if message is None:
        return
    message = pi_message(message)
    answer = _answer_id(record)
    if answer and out.answers and out.answers[-1] == answer:
        out.messages[-1]["content"] = [*aside(out.messages[-1]["content"]), *aside(message.get("content"))]
        return
    out.messages.append(dict(message))
    out.lines.append(record.line)
    out.answers.append(answer)


def _answer_id(record: tree.Record) -> str:
    message = record.row.get("message")
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return ""
    return str(message.get("id") or "")


def _with_lost_halves(way: list[tree.Record], off: list[tree.Record]) -> list[tree.Record]:
    """Blocks of one answer, and results of its calls, that hang beside the path: calls made together branch there."""
    answers = {answer for record in way if (answer := _answer_id(record))}
    calls = {call for record in way for call in _ids(record, "tool_use", "id")}
    answered = {call for record in way for call in _ids(record, "tool_result", "tool_use_id")}
    on_way = {record.id for record in way}
    more: dict[str, list[tree.Record]] = {}
    for record in off:
        mine = _answer_id(record) in answers if _answer_id(record) else False
        result = {call for call in _ids(record, "tool_result", "tool_use_id") if call in calls - answered}
        if record.parent in on_way and (mine or result):
            more.setdefault(record.parent or "", []).append(record)
            on_way.add(record.id)
    if not more:
        return way
    found: list[tree.Record] = []
    for record in way:
        found.append(record)
        found.extend(more.get(record.id, ()))
    return found


def _ids(record: tree.Record, kind: str, name: str) -> list[str]:
    message = record.row.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    blocks = content if isinstance(content, list) else []
    return [str(b.get(name)) for b in blocks if isinstance(b, Mapping) and b.get("type") == kind]


def _tell_branches(way: list[tree.Record], off: list[tree.Record], out: Session) -> None:
    on_way = {record.id for record in way}
    left = [record for record in off if record.id not in on_way and message_in(record.row) is not None]
    if left:
        what = "a message" if len(left) == 1 else f"{len(left)} messages"
        said = f"not on the way to the head, and left out: {what} of other branches or sub-tasks"
        out.remarks.append(Remark("branch_left", 0, said))


def _from_summary(way: list[tree.Record]) -> list[tree.Record]:
    """Pi: after a compaction the talk is its summary, what it kept, and what came since."""
    place = next((n for n in range(len(way) - 1, -1, -1) if way[n].row.get("type") == "compaction"), None)
    if place is None:
        return way
    first = way[place].row.get("firstKeptEntryId")
    kept = next((n for n in range(place) if way[n].id == first), place)
    return [way[place], *way[kept:place], *way[place + 1 :]]


def export(value: Row) -> Session | None:
    """A whole document of a known agent; None: it is none."""
    rows = value.get("messages")
    if isinstance(rows, list) and any(isinstance(row, Mapping) and isinstance(row.get("parts"), list) for row in rows):
        return Session(opencode_messages(rows), shape="an OpenCode export", protocol="anthropic")
    return None


def markdown(text: str) -> Session | None:
    """Aider's chat history: `####` before each line of the user's, `>` before what the tool says itself."""
    if "\n#### " not in f"\n{text}":
        return None
    messages: list[dict[str, str]] = []
    for line in text.replace("\x00", "").splitlines():
        if line.startswith(("# aider chat", "> ")) or line == ">":
            continue
        role, words = ("user", line[5:]) if line.startswith("#### ") else ("assistant", line)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{words}"
        elif words.strip():
            messages.append({"role": role, "content": words})
    for message in messages:
        message["content"] = message["content"].strip()
    return Session(messages, shape="an Aider chat history", protocol="openai-chat")
