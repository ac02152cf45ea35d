"""Documents: a file as the transcript in it: an array of messages, a request body, or lines of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.cli.session import agents
from harnessd.cli.session.remarks import NotATranscript, Remark

# Where a request or an export keeps its messages, in the order they are looked for.
_LISTS = ("messages", "input", "history", "conversation", "items", "transcript")
_OPEN_LIST = re.compile(r'"(?:messages|input|history|conversation|items|transcript)"\s*:\s*\[')
_DEEPEST_SHOWN = 120


@dataclass(slots=True)
class Document:
    """A transcript as it lies in a file.

    Attributes:
        messages: as they came.
        body: the request around them; None: there was none. `key` is where they stand in it.
        shape: in words: what the file is.
        protocol: what the file itself says it is; empty: nothing.
        problems: what of the file could not be used. remarks: what was understood, and is no fault.
        lines: for lines of JSON: in which line (from 1) each message stands.
    """

    messages: list[Any]
    body: dict[str, Any] | None = None
    key: str = ""
    shape: str = "an array of messages"
    protocol: str = ""
    problems: list[Remark] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def read(data: bytes) -> Document:
    """The transcript in a file's bytes. Raises NotATranscript with a sentence where there is none."""
    text, damaged = _text(data)
    if not text.strip(" \t\r\n\x00"):
        raise NotATranscript("the file is empty")
    document = _whole(text) or _torn(text) or _lines(text)
    if damaged:
        document.problems.insert(0, Remark("bad_characters", 0, "bytes that are no UTF-8 were replaced"))
    return document


def _loaded(text: str) -> Any:
    """JSON as agents write it; a NaN, which no service takes, is nothing."""
    return json.loads(text, parse_constant=_no_number)


def _no_number(_: str) -> None:
    return None


def _text(data: bytes) -> tuple[str, bool]:
    for mark, coding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(mark):
            return data.decode(coding, "replace"), False
    try:
        return data.decode("utf-8-sig"), False
    except UnicodeDecodeError:
        return data.decode("utf-8-sig", "replace"), True


def _whole(text: str) -> Document | None:
    """The file is one JSON document."""
    try:
        value = _loaded(text.strip(" \t\r\n\x00"))
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list):
        return _array(value)
    if not isinstance(value, dict):
        raise NotATranscript(f"the file holds a JSON {type(value).__name__}, which is no transcript")
    found = agents.export(value)
    if found is not None:
        return _of_records(found)
    for key in _LISTS:
        if isinstance(value.get(key), list):
            return Document(value[key], value, key, "a request body")
        if key == "input" and isinstance(value.get(key), str):
            return Document([{"role": "user", "content": value[key]}], value, key, "a request body")
    if agents.is_record(value):
        return _of_records(agents.session([(1, value)]))
    shown = ", ".join(sorted(map(str, value))[:8])
    raise NotATranscript(f"the JSON object has no messages and no input; its keys: {shown[:_DEEPEST_SHOWN] or 'none'}")


def _array(value: list[Any]) -> Document:
    """Messages, or the lines of a session file that somebody put into one array."""
    rows = [(number, row) for number, row in enumerate(value, start=1) if isinstance(row, dict)]
    if rows and not any("role" in row for _, row in rows) and agents.is_session([row for _, row in rows]):
        return _of_records(agents.session(rows))
    return Document(value)


def _torn(text: str) -> Document | None:
    """One JSON document that was cut off: all messages that stand whole before the cut."""
    stripped = text.lstrip(" \t\r\n\x00")
    start = 1 if stripped.startswith("[") else None
    if stripped.startswith("{"):
        first = stripped.splitlines()[0]
        opened = _OPEN_LIST.search(stripped)
        start = opened.end() if opened is not None and not _is_json(first) else None
    if start is None:
        return None
    found, rest = _elements(stripped, start)
    if not found:
        return None
    document = _array(found)
    said = f"the file breaks off after {len(found)} whole messages: {len(rest)} characters behind them are left out"
    document.problems.insert(0, Remark("torn_record", len(found), said))
    document.shape += " that was cut off"
    return document


def _elements(text: str, at: int) -> tuple[list[Any], str]:
    decoder = json.JSONDecoder(parse_constant=_no_number)
    found: list[Any] = []
    while True:
        at = _skip(text, at)
        if at >= len(text):
            return found, ""
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return found, text[at:]
        if _skip(text, end) >= len(text) and not isinstance(value, (dict, list)):
            return found, text[at:]
        found.append(value)
        at = end


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,\x00":
        at += 1
    return at


def _is_json(line: str) -> bool:
    try:
        _loaded(line.strip("\x00 \t\r"))
    except (ValueError, RecursionError):
        return False
    return True


def _lines(text: str) -> Document:
    """One JSON value a line; what is torn is told and left out."""
    rows: list[tuple[int, Any]] = []
    torn: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        bare = line.strip("\x00 \t\r")
        if not bare:
            if "\x00" in line:
                torn.append((number, ""))
            continue
        try:
            rows.append((number, _loaded(bare)))
        except (ValueError, RecursionError):
            torn.append((number, bare))
    if not rows:
        found = agents.markdown(text)
        if found is not None:
            return _of_records(found)
        raise NotATranscript("the file is neither JSON nor lines of JSON")
    maps = [(number, row) for number, row in rows if isinstance(row, Mapping)]
    document = _of_records(agents.session(maps, torn)) if maps else Document([row for _, row in rows])
    for number, bare in torn:
        what = "holds only NUL bytes" if not bare else "is torn or no JSON"
        document.problems.append(Remark("torn_record", _index(document, number), f"line {number} {what}: left out"))
    for number, row in rows:
        if not isinstance(row, Mapping):
            said = f"line {number} is a JSON {type(row).__name__} and no record: left out"
            document.problems.append(Remark("not_a_message", _index(document, number), said))
    return document


def _index(document: Document, line: int) -> int:
    """How many messages stand before a line."""
    return sum(1 for place in document.lines if place < line)


def _of_records(found: agents.Session) -> Document:
    return Document(
        found.messages,
        shape=found.shape,
        protocol=found.protocol,
        problems=found.problems,
        remarks=found.remarks,
        lines=found.lines,
    )


def detect(document: Document) -> str:
    """The protocol of a transcript: what its file says, else whose words it uses; a plain talk is anybody's."""
    if document.protocol:
        return document.protocol
    if document.key == "input":
        return "openai-responses"
    votes = {"openai-responses": 0, "openai-chat": 0, "anthropic": 0}
    for message in document.messages:
        if isinstance(message, Mapping):
            for protocol in _votes(message):
                votes[protocol] += 1
    best = max(votes, key=lambda name: votes[name])
    if votes[best]:
        return best
    body = document.body or {}
    if "system" in body or "anthropic_version" in body or "stop_sequences" in body:
        return "anthropic"
    spoken = [message for message in document.messages if isinstance(message, Mapping)]
    if any(message.get("role") == "assistant" and isinstance(message.get("content"), list) for message in spoken):
        return "anthropic"  # a chat's assistant speaks in a bare text
    roles = {message.get("role") for message in spoken}
    return "openai-chat" if roles & {"system", "developer", "tool", "function"} else "anthropic"


_TYPES = {
    **dict.fromkeys(("function_call", "function_call_output", "input_text", "output_text"), "openai-responses"),
    **dict.fromkeys(("input_image", "reasoning", "custom_tool_call", "message"), "openai-responses"),
    **dict.fromkeys(("tool_use", "tool_result", "thinking", "redacted_thinking", "image"), "anthropic"),
    **dict.fromkeys(("document", "server_tool_use"), "anthropic"),
    **dict.fromkeys(("image_url", "input_audio", "refusal"), "openai-chat"),
}


def _votes(message: Mapping[str, Any]) -> list[str]:
    kinds = [message.get("type")] if "usage" not in message else []
    content = message.get("content")
    if isinstance(content, list):
        kinds += [block.get("type") for block in content if isinstance(block, Mapping)]
    votes = [_TYPES[kind] for kind in kinds if isinstance(kind, str) and kind in _TYPES]
    if "tool_calls" in message or "tool_call_id" in message or message.get("role") in ("tool", "function"):
        votes.append("openai-chat")
    return votes
