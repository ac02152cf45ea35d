"""OpenAI Chat Completions, the request: the transcript behind its messages, free of the protocol."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.simulator.protocols.wire import Limits
from harnessd.simulator.transcript import Call, Result, Segment, Shown, Transcript, digest_of, segment_of

# This protocol has no error flag on results; a client says it in words.
FAILED = re.compile(
    r"\A(?:[^\n]{0,300}? failed \(|\W?(?:tool )?(?:error|exception)\b)"
    r"|\A[^\n]*\boutcome (?:is )?unknown\b|^\[exit code [1-9]",
    re.IGNORECASE | re.MULTILINE,
)

Message = Mapping[str, Any]


def shown(body: Mapping[str, Any], messages: Sequence[Message], names: Mapping[str, str], limits: Limits) -> Transcript:
    """The transcript behind the messages."""
    tools = body.get("tools") or []
    offered = () if body.get("tool_choice") == "none" else tuple(tool["function"]["name"] for tool in tools)
    heads = [text_of(m["content"]) for m in messages if m["role"] in ("system", "developer")]
    return Transcript(
        protocol="openai-chat",
        model=str(body["model"]),
        system="\n".join(heads),
        tools=offered,
        messages=turns_of(messages, names),
        max_tokens=wanted_tokens(body) or limits.max_output,
        stream=bool(body.get("stream")),
        usage_in_stream=bool((body.get("stream_options") or {}).get("include_usage")),
        tools_digest=digest_of(tools),
        segments=segments_of(tools, messages),
    )


def segments_of(tools: Sequence[Any], messages: Sequence[Message]) -> tuple[Segment, ...]:
    """Prompt order of this service: tools, then messages as they come."""
    return (*(segment_of(tool) for tool in tools), *(segment_of(m, images=images_in(m)) for m in messages))


def images_in(message: Message) -> int:
    """Number of pictures in a message."""
    content = message.get("content")
    return sum(1 for part in content if part.get("type") == "image_url") if isinstance(content, list) else 0


def text_of(content: Any) -> str:
    """The words of a message's content."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return content or ""


def turns_of(messages: Sequence[Message], names: Mapping[str, str]) -> tuple[Shown, ...]:
    """Tool messages and user words between two assistant messages are one turn of the user's side."""
    out: list[Shown] = []
    for message in messages:
        role, text = message["role"], text_of(message.get("content"))
        if role in ("system", "developer"):
            continue
        if role == "assistant":
            calls = tuple(
                Call(c["id"], c["function"]["name"], arguments_of(c["function"]["arguments"]))
                for c in message.get("tool_calls") or []
            )
            out.append(Shown("assistant", text, calls))
            continue
        last = out.pop() if out and out[-1].role == "user" else Shown("user")
        if role == "tool":
            answered = message["tool_call_id"]
            result = Result(answered, names[answered], text, bool(FAILED.search(text)))
            out.append(Shown("user", last.text, (), (*last.results, result)))
        else:
            out.append(Shown("user", "\n".join(part for part in (last.text, text) if part), (), last.results))
    return tuple(out)


def arguments_of(text: Any) -> Any:
    """The value behind an argument string, or None."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def wanted_tokens(body: Mapping[str, Any]) -> int | None:
    """The client's limit on the output, under either name."""
    wanted = body.get("max_completion_tokens", body.get("max_tokens"))
    return wanted if isinstance(wanted, int) else None
