"""Anthropic Messages, the request: the transcript behind its blocks, free of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.simulator.transcript import Call, Result, Segment, Shown, Transcript, digest_of, segment_of

Block = Mapping[str, Any]


def shown(body: Mapping[str, Any], messages: Sequence[tuple[str, list[Block]]], names: Mapping[str, str]) -> Transcript:
    """The transcript behind the blocks."""
    system = body.get("system") or ""
    system_text = system if isinstance(system, str) else "\n".join(block["text"] for block in system)
    tools = body.get("tools") or []
    choice = body.get("tool_choice") or {}
    offered = () if choice.get("type") == "none" else tuple(tool["name"] for tool in tools)
    return Transcript(
        protocol="anthropic",
        model=str(body["model"]),
        system=system_text,
        tools=offered,
        messages=merged([message_of(role, blocks, names) for role, blocks in messages]),
        max_tokens=body["max_tokens"],
        stream=bool(body.get("stream")),
        tools_digest=digest_of(tools),
        segments=segments_of(tools, system, body["messages"]),
    )


def segments_of(tools: Sequence[Any], system: Any, messages: Sequence[Any]) -> tuple[Segment, ...]:
    """Prompt order of this service: tools, system, messages."""
    found = [segment_of(tool) for tool in tools]
    found += [segment_of(block) for block in ([system] if isinstance(system, str) else system) if block]
    return (*found, *(segment_of(message, images=images_in(message)) for message in messages))


def images_in(message: Any) -> int:
    """Number of pictures and papers in a message."""
    content = message["content"]
    if isinstance(content, str):
        return 0
    inner = [b for block in content if isinstance(block.get("content"), list) for b in block["content"]]
    return sum(1 for block in [*content, *inner] if block.get("type") in ("image", "document"))


def message_of(role: str, blocks: Sequence[Block], names: Mapping[str, str]) -> Shown:
    """One message free of the protocol."""
    text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple(Call(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use")
    results = tuple(
        Result(b["tool_use_id"], names[b["tool_use_id"]], result_text(b.get("content", "")), bool(b.get("is_error")))
        for b in blocks
        if b["type"] == "tool_result"
    )
    return Shown("assistant" if role == "assistant" else "user", text, calls, results)


def result_text(content: Any) -> str:
    """The words of a tool result."""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content if block.get("type") == "text")


def merged(messages: Sequence[Shown]) -> tuple[Shown, ...]:
    """Neighbours of one role are one turn to this service."""
    out: list[Shown] = []
    for message in messages:
        if out and out[-1].role == message.role:
            last = out.pop()
            text = "\n".join(part for part in (last.text, message.text) if part)
            out.append(Shown(last.role, text, last.calls + message.calls, last.results + message.results))
        else:
            out.append(message)
    return tuple(out)
