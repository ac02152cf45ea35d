"""Transcripts for tests: scenes written once and spoken in all three protocols, and what the real services say of them.

The judge is the simulator's own rules, which share no code with the product.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harnessd.simulator.protocols import BY_PATH
from harnessd.simulator.protocols.wire import Limits, Refused

CASES = Path(__file__).resolve().parent / "cases" / "transcripts"
PATHS = {"anthropic": "/v1/messages", "openai-chat": "/v1/chat/completions", "openai-responses": "/v1/responses"}
PROTOCOLS = tuple(PATHS)


@dataclass(frozen=True, slots=True)
class Case:
    """One transcript with what its legal view must be like."""

    name: str
    protocol: str
    messages: list[Any]
    target: str = ""
    expect: Mapping[str, Any] = field(default_factory=dict)


def cases() -> list[Case]:
    """All cases of the folder: a `talk` in each protocol, `messages` in their own."""
    found: list[Case] = []
    for path in sorted(CASES.glob("*.yaml")):
        for row in yaml.safe_load(path.read_text(encoding="utf-8")):
            protocols = row.get("protocols", PROTOCOLS) if "talk" in row else (row["protocol"],)
            for protocol in protocols:
                messages = spoken(row["talk"], protocol) if "talk" in row else opened(row["messages"])
                name = f"{path.stem}/{row['name']}/{protocol}"
                found.append(Case(name, protocol, messages, row.get("target", ""), row.get("expect", {})))
    return found


# --- one scene in three protocols -------------------------------------------------------------------------------------


def spoken(talk: Sequence[Mapping[str, Any]], protocol: str) -> list[Any]:
    """A scene in a protocol's words.

    A turn is `user`, `system`, or `say` with `calls`; `results` are a list of [call, words], with `error` behind a
    failed one, and `then` what the user says in the same message. A call is its id, or {id, tool, arguments}.
    """
    speak = {"anthropic": _anthropic, "openai-chat": _chat, "openai-responses": _responses}[protocol]
    return [message for turn in talk for message in speak(turn)]


def _call(row: Any) -> tuple[str, str, Any]:
    if isinstance(row, str):
        return row, "shell", {"cmd": row}
    return row["id"], row.get("tool", "shell"), row.get("arguments", {"cmd": row["id"]})


def _anthropic(turn: Mapping[str, Any]) -> list[Any]:
    if "results" in turn:
        blocks: list[Any] = [
            {"type": "tool_result", "tool_use_id": row[0], "content": row[1]}
            | ({"is_error": True} if len(row) > 2 else {})
            for row in turn["results"]
        ]
        words = [{"type": "text", "text": turn["then"]}] if "then" in turn else []
        return [{"role": "user", "content": [*words, *blocks] if turn.get("words_first") else [*blocks, *words]}]
    if "say" in turn or "calls" in turn:
        said = [{"type": "text", "text": turn["say"]}] if turn.get("say") else []
        asked = [
            {"type": "tool_use", "id": id_, "name": tool, "input": arguments}
            for id_, tool, arguments in map(_call, turn.get("calls", ()))
        ]
        return [{"role": "assistant", "content": [*said, *asked]}]
    role = "system" if "system" in turn else "user"
    return [{"role": role, "content": turn[role]}]


def _chat(turn: Mapping[str, Any]) -> list[Any]:
    if "results" in turn:
        words = [{"role": "user", "content": turn["then"]}] if "then" in turn else []
        tools = [{"role": "tool", "tool_call_id": row[0], "content": row[1]} for row in turn["results"]]
        return [*words, *tools] if turn.get("words_first") else [*tools, *words]
    if "say" in turn or "calls" in turn:
        calls = [
            {"id": id_, "type": "function", "function": {"name": tool, "arguments": _json(arguments)}}
            for id_, tool, arguments in map(_call, turn.get("calls", ()))
        ]
        message = {"role": "assistant", "content": turn.get("say")}
        return [message | ({"tool_calls": calls} if calls else {})]
    role = "system" if "system" in turn else "user"
    return [{"role": role, "content": turn[role]}]


def _responses(turn: Mapping[str, Any]) -> list[Any]:
    if "results" in turn:
        words = [{"type": "message", "role": "user", "content": turn["then"]}] if "then" in turn else []
        outputs = [{"type": "function_call_output", "call_id": row[0], "output": row[1]} for row in turn["results"]]
        return [*words, *outputs] if turn.get("words_first") else [*outputs, *words]
    if "say" in turn or "calls" in turn:
        text = [{"type": "output_text", "text": turn["say"]}] if turn.get("say") else []
        said = [{"type": "message", "role": "assistant", "content": text}] if text or not turn.get("calls") else []
        calls = [
            {"type": "function_call", "call_id": id_, "name": tool, "arguments": _json(arguments)}
            for id_, tool, arguments in map(_call, turn.get("calls", ()))
        ]
        return [*said, *calls]
    role = "system" if "system" in turn else "user"
    return [{"type": "message", "role": role, "content": turn[role]}]


def _json(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


# --- stand-ins --------------------------------------------------------------------------------------------------------


def opened(value: Any) -> Any:
    """The messages with stand-ins as real bytes: `@png:WxH`, `@pdf:PAGES`, `@base64:SIZE`; `@times:N` repeats."""
    if isinstance(value, str):
        return _bytes(value)
    if isinstance(value, dict):
        return {name: opened(inner) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    out: list[Any] = []
    for inner in value:
        if isinstance(inner, dict) and "@times" in inner:
            out += [opened(copy.deepcopy(inner["of"])) for _ in range(inner["@times"])]
        else:
            out.append(opened(inner))
    return out


def _bytes(text: str) -> str:
    png, pdf, size = (re.fullmatch(p, text) for p in (r"@png:(\d+)x(\d+)", r"@pdf:(\d+)", r"@base64:(\d+)"))
    if png:
        head = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", int(png[1]), int(png[2])) + b"\x08\0\0\0\0"
        return base64.b64encode(head).decode()
    if pdf:
        return base64.b64encode(b"%PDF-1.7\n" + b"/Type /Page\n" * int(pdf[1])).decode()
    return "A" * int(size[1]) if size else text


# --- what the services say --------------------------------------------------------------------------------------------


def refusal(view: Sequence[Any], protocol: str, target: str = "", **body: Any) -> str:
    """The words with which the service refuses a transcript; empty where it takes it."""
    limits = Limits(window=10**9, max_output=1_000, dialect=target)
    request: dict[str, Any] = {"model": "m", **body}
    if protocol == "openai-responses":
        request |= {"input": list(view), "store": False}
    else:
        request |= {"messages": list(view), "max_tokens": 100}
    if protocol == "anthropic":
        request["tools"] = [{"name": "shell", "input_schema": {"type": "object"}}]
    try:
        BY_PATH[PATHS[protocol]].read(request, limits)
    except Refused as refused:
        return str(refused)
    return strict_words(view, protocol, target)


def strict_words(view: Sequence[Any], protocol: str, target: str) -> str:
    """Rules of stricter receivers that the simulator has for one protocol only."""
    if target != "strict-alternation" or protocol == "openai-chat":
        return ""
    said = [m["role"] for m in view if m.get("role") in ("user", "assistant")]
    if protocol == "anthropic" and any(one == other for one, other in itertools.pairwise(said)):
        return "roles must alternate"
    return ""


def results(view: Sequence[Any]) -> Iterator[tuple[str, str, bool]]:
    """(call, words, marked as an error) of each result."""
    for message in view:
        if message.get("role") == "tool":
            yield message["tool_call_id"], _words(message["content"]), False
        elif message.get("type") == "function_call_output":
            yield message["call_id"], _words(message["output"]), False
        else:
            for block in _blocks(message):
                if block.get("type") == "tool_result":
                    yield block["tool_use_id"], _words(block.get("content", "")), bool(block.get("is_error"))


def calls(view: Sequence[Any]) -> Iterator[tuple[str, str, Any]]:
    """(id, tool, arguments as a value) of each call."""
    for message in view:
        for call in message.get("tool_calls") or []:
            yield call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])
        if message.get("type") == "function_call":
            yield message["call_id"], message["name"], json.loads(message["arguments"])
        for block in _blocks(message):
            if block.get("type") == "tool_use":
                yield block["id"], block["name"], block["input"]


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", f"[{block['type']}]") for block in content)


FAILED = re.compile(r"error|unknown|not run|not started|interrupted", re.IGNORECASE)


def unmet(case: Case, view: Sequence[Any]) -> list[str]:
    """What of a case's expectations the view does not meet."""
    text = json.dumps(view, ensure_ascii=False)
    lost = [words for words in case.expect.get("kept", ()) if json.dumps(words)[1:-1] not in text and words not in text]
    bad = [f"text lost: {words}" for words in lost]
    bad += [f"still there: {words}" for words in case.expect.get("gone", ()) if words in text]
    roles = [message.get("role") for message in view]
    bad += [f"role {role} kept" for role in case.expect.get("no_roles", ()) if role in roles]
    if roles and roles[-1] != case.expect.get("last", roles[-1]):
        bad.append(f"the last role is {roles[-1]}")
    if case.expect.get("same") and list(view) != case.messages:
        bad.append("a valid transcript was changed")
    return bad + _unmet_results(case, view) + _unmet_calls(case, view)


def _unmet_results(case: Case, view: Sequence[Any]) -> list[str]:
    bad, found = [], list(results(view))
    for call, words in case.expect.get("results", {}).items():
        mine = [row for row in found if row[0] == call]
        if len(mine) != 1 or words not in mine[0][1]:
            bad.append(f"results of {call}: {mine}, wanted {words!r}")
    for call in case.expect.get("failed", ()):
        mine = [row for row in found if row[0] == call]
        if len(mine) != 1 or not FAILED.search(mine[0][1]) or (case.protocol == "anthropic" and not mine[0][2]):
            bad.append(f"{call} has no result that says it failed: {mine}")
    return bad


def _unmet_calls(case: Case, view: Sequence[Any]) -> list[str]:
    asked = list(calls(view))
    bad = [
        f"arguments of {call}: {asked}"
        for call, value in case.expect.get("arguments", {}).items()
        if [row[2] for row in asked if row[0] == call] != [value]
    ]
    if len(asked) != case.expect.get("calls", len(asked)):
        bad.append(f"{len(asked)} calls")
    if not all(re.fullmatch(case.expect.get("ids", ".*"), row[0], re.DOTALL) for row in asked):
        bad.append(f"ids {[row[0] for row in asked]}")
    if len({row[0] for row in asked}) != len(asked):
        bad.append("an id is used twice")
    return bad
