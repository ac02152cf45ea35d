"""Reading: any protocol's blocks and messages as parts, also where they stand in a transcript of another one.

Transcripts are mixed in practice: a session that changed its provider, an export of an agent with words of its own.
Whatever can be told without guessing is read; the writer of the protocol gives it the right form again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harnessd.defence.line3_repair.transcript.turns import Kind, Media, Part, mended

_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "plain_text"})
_CALLS = frozenset({"tool_use", "toolCall", "tool-call", "tool_call", "function_call", "function", "custom_tool_call"})
_RESULTS = frozenset(
    {"tool_result", "toolResult", "tool-result", "function_call_output", "custom_tool_call_output", "function_response"}
)
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning", "thought"})
_MEDIA = frozenset({"image", "image_url", "input_image", "document", "file", "input_file"})
_IDS = ("tool_use_id", "tool_call_id", "toolCallId", "call_id", "callId", "id")
_NAMES = ("name", "toolName", "tool_name")
_ARGUMENTS = ("input", "arguments", "args")
_OUTPUTS = ("content", "output", "result")


def parts_of(content: Any) -> tuple[Part, ...]:
    """The parts of a message's content, whatever it is."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (Part(Kind.TEXT, text=content, wire=content),)
    if isinstance(content, list):
        return tuple(part_of(block) for block in content)
    return (mended(part_of(content)),)


def part_of(block: Any) -> Part:
    """One block. A bare text among blocks is written as one."""
    if isinstance(block, str):
        return Part(Kind.TEXT, text=block, touched=True)
    if not isinstance(block, Mapping):
        return Part(Kind.OTHER, text="" if block is None else compact(block), wire=block)
    kind = str(block.get("type") or "")
    for kinds, read in _READERS:
        if kind in kinds:
            return read(block)
    if kind in ("server_tool_use", "mcp_tool_use"):
        return Part(Kind.SERVER_CALL, id=words(block.get("id")), name=words(block.get("name")), wire=block)
    if kind.endswith("_tool_result"):
        return Part(Kind.SERVER_RESULT, id=words(block.get("tool_use_id")), wire=block)
    return Part(Kind.OTHER, text=_loose_text(block), name=kind, wire=block)


def _text(block: Mapping[str, Any]) -> Part:
    text = block.get("text")
    if isinstance(text, str):
        return Part(Kind.TEXT, text=text, wire=block)
    return Part(Kind.TEXT, text=_loose_text(block), wire=block, touched=True)


def _refusal(block: Mapping[str, Any]) -> Part:
    return Part(Kind.TEXT, text=words(block.get("refusal")), wire=block)


def _call(block: Mapping[str, Any]) -> Part:
    function = block.get("function")
    source = function if isinstance(function, Mapping) else block
    id_ = _first(block, ("call_id", "callId", "toolCallId", "tool_call_id", "id"))
    given = [source[name] for name in _ARGUMENTS if name in source]
    arguments, raw = arguments_of(given[0] if given else None)
    if block.get("type") == "custom_tool_call":  # its input is words, not JSON
        arguments, raw = {}, words(block.get("input"))
    return Part(
        Kind.CALL,
        text=raw,
        id=words(id_),
        name=words(_first(source, _NAMES)),
        arguments=arguments,
        missing=not given,
        invalid=arguments is None,
        wire=block,
        touched=not isinstance(id_, str) or not isinstance(_first(source, _NAMES), str),
    )


def _result(block: Mapping[str, Any]) -> Part:
    id_ = _first(block, _IDS)
    found = result_of(words(id_), _first(block, _OUTPUTS), block)
    return found if isinstance(id_, str) else mended(found)


def result_of(id_: str, content: Any, wire: Mapping[str, Any]) -> Part:
    """A result from whatever stands where its content should be."""
    failed = wire.get("is_error", wire.get("isError"))
    odd_flag = not isinstance(failed, bool) and ("is_error" in wire or failed is not None)
    name = words(_first(wire, ("name", "toolName")))
    is_error = bool(failed) if not isinstance(failed, str) else failed.lower() == "true"
    if isinstance(content, str):
        return Part(Kind.RESULT, text=content, id=id_, name=name, is_error=is_error, wire=wire, touched=odd_flag)
    if isinstance(content, list) and all(isinstance(one, Mapping) and "type" in one for one in content):
        inner = parts_of(content)
        text = "\n".join(part.text for part in inner if part.kind is Kind.TEXT)
        return Part(Kind.RESULT, text, id_, name, is_error=is_error, inner=inner, wire=wire, touched=odd_flag)
    text = "" if content is None else compact(content)
    return Part(Kind.RESULT, text=text, id=id_, name=name, is_error=is_error, wire=wire, touched=content is not None)


def _thought(block: Mapping[str, Any]) -> Part:
    return Part(Kind.THOUGHT, text=words(block.get("thinking") or block.get("text")), wire=block)


def _media(block: Mapping[str, Any]) -> Part:
    sort = "image" if "image" in str(block.get("type")) else "document"
    return Part(Kind.MEDIA, media=_media_facts(sort, block), wire=block)


def _media_facts(sort: Any, block: Mapping[str, Any]) -> Media:
    source = block.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "url":
            return Media(sort, url=words(source.get("url")))
        return Media(sort, words(source.get("media_type")), words(source.get("data")))
    link = block.get("image_url", block.get("file_url"))
    inside = block.get("file")
    if isinstance(link, Mapping):
        link = link.get("url")
    elif isinstance(inside, Mapping):
        link = inside.get("file_data")
    link = words(link or block.get("file_data"))
    if link.startswith("data:"):
        head, _, data = link[5:].partition(",")
        return Media(sort, head.split(";")[0], data)
    if link:
        return Media(sort, url=link)
    return Media(sort, words(block.get("mimeType") or block.get("media_type")), words(block.get("data")))


_READERS: Sequence[tuple[frozenset[str], Callable[[Mapping[str, Any]], Part]]] = (
    (_TEXTS, _text),
    (_CALLS, _call),
    (_RESULTS, _result),
    (_THOUGHTS, _thought),
    (_MEDIA, _media),
    (frozenset({"refusal"}), _refusal),
)


def arguments_of(raw: Any) -> tuple[Mapping[str, Any] | None, str]:
    """A call's arguments, and the words they came in. None where they are no JSON object; no words are no arguments."""
    if isinstance(raw, Mapping):
        return raw, ""
    if raw is None:
        return {}, ""
    if not isinstance(raw, str):
        return None, compact(raw)
    if not raw.strip():
        return {}, raw
    value: Any = raw
    for _ in range(2):  # some agents encode them twice
        value = _loaded(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return value, raw
    return ({} if value is None and raw.strip() == "null" else None), raw


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def is_object(text: Any) -> bool:
    """Whether a text is one JSON object."""
    return isinstance(text, str) and isinstance(_loaded(text), Mapping)


def compact(value: Any) -> str:
    """A JSON value in the fewest letters, in the order it came."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (ValueError, RecursionError):
        return "(not readable)"


def words(value: Any) -> str:
    """The value if it is text; a number as text; else nothing."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _first(block: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((block[name] for name in names if name in block), None)


def _loose_text(block: Mapping[str, Any]) -> str:
    for name in ("text", "content", "message"):
        if isinstance(block.get(name), str):
            return str(block[name])
    return ""
