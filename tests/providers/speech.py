"""Scripted answers of all protocols, and a call through a real connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, ModelReply, ModelRequest, TextBlock, ToolSpec
from harnessd.domain.ports import CallClocks
from harnessd.net import Clients
from harnessd.providers import PROTOCOLS, Endpoint
from tests.loopback import Loopback, Script, loopback

KEY = "sk-canary-0123456789abcdef"
CLOCKS = CallClocks(connect_s=5, first_event_s=5, idle_s=5, call_s=10)
NOW = 1_796_000_000.0
TOOL = ToolSpec("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
HELLO = ModelRequest("primary", "Be brief.", (Message("user", (TextBlock("Hello."),)),), (TOOL,), 1000)


def said(failure: ModelReply | Failure) -> Failure:
    assert isinstance(failure, Failure), failure
    return failure


def replied(reply: ModelReply | Failure) -> ModelReply:
    assert isinstance(reply, ModelReply), reply
    return reply


def sse(*events: Any) -> bytes:
    """Events as bytes; an Anthropic event's name is its type."""
    lines: list[str] = []
    for event in events:
        if isinstance(event, str):
            lines.append(f"data: {event}\n\n")
        else:
            name = f"event: {event['type']}\n" if isinstance(event.get("type"), str) else ""
            lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


@dataclass
class Talk:
    """One provider against one loopback server."""

    protocol: str
    server: Loopback
    clients: Clients
    path: str = ""
    query: str = ""
    key: Callable[[], str | None] = lambda: KEY
    window: int = 200_000
    max_output: int = 8192
    model: str = "model-1"
    progress: list[str] = field(default_factory=list)

    def endpoint(self) -> Endpoint:
        return Endpoint(
            alias="primary",
            base_url=f"{self.server.url}{self.path}{self.query}",
            model=self.model,
            key=self.key,
            clients=self.clients,
            window=self.window,
            max_output=self.max_output,
            now=lambda: NOW,
        )

    async def call(self, request: ModelRequest = HELLO, clocks: CallClocks = CLOCKS) -> ModelReply | Failure:
        return await PROTOCOLS[self.protocol](self.endpoint()).call(request, clocks, self.progress.append)

    def sent(self, number: int = -1) -> dict[str, Any]:
        """The body of a request as it came."""
        body: dict[str, Any] = json.loads(self.server.visits[number].body)
        return body


@asynccontextmanager
async def talk(protocol: str, *scripts: Script, **facts: Any) -> AsyncIterator[Talk]:
    clients = Clients()
    async with loopback(*scripts) as server:
        try:
            yield Talk(protocol, server, clients, **facts)
        finally:
            await clients.aclose()


async def ask(protocol: str, script: Script, **facts: Any) -> ModelReply | Failure:
    """One call, one script."""
    async with talk(protocol, script, **facts) as conversation:
        return await conversation.call()


def streamed(*events: Any) -> Script:
    return lambda visit: visit.stream(sse(*events))


def streamed_raw(stream: bytes) -> Script:
    return lambda visit: visit.stream(stream)


def answered(status: int, body: str | dict[str, Any], *headers: str) -> Script:
    text = body if isinstance(body, str) else json.dumps(body)
    kind = (
        () if any(line.lower().startswith("content-type") for line in headers) else ("Content-Type: application/json",)
    )
    return lambda visit: visit.answer(status, text.encode(), *kind, *headers)


# --- Anthropic ------------------------------------------------------------------------------------


def a_start(**usage: int) -> dict[str, Any]:
    usage = usage or {"input_tokens": 10, "output_tokens": 1}
    message = {"id": "msg_1", "role": "assistant", "model": "served-1", "content": [], "usage": usage}
    return {"type": "message_start", "message": message}


def a_block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def a_text(index: int, *pieces: str) -> list[dict[str, Any]]:
    return a_block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def a_call(index: int, id_: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
    return a_block(index, block, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def a_end(stop: str | None = "end_turn", **usage: int | None) -> list[dict[str, Any]]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage or {"output_tokens": 15}},
        {"type": "message_stop"},
    ]


# --- Chat Completions -----------------------------------------------------------------------------


def o_chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "served-1", "choices": [choice], **extra}


def o_call(index: int | None, id_: str | None, name: str | None, arguments: Any = "") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    call = {"index": index, "id": id_, "type": "function", "function": function}
    return o_chunk({"tool_calls": [{key: value for key, value in call.items() if value is not None}]})


def o_usage(prompt: int, completion: int, **extra: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **extra}
    return {"id": "chatcmpl-1", "choices": [], "usage": usage}


def o_texts(texts: Sequence[str], finish: str | None = "stop") -> list[dict[str, Any] | str]:
    chunks: list[dict[str, Any] | str] = [o_chunk({"role": "assistant", "content": ""})]
    chunks += [o_chunk({"content": text}) for text in texts]
    return [*chunks, o_chunk(finish=finish), o_usage(20, 5), "[DONE]"]


# --- Responses ------------------------------------------------------------------------------------


def r_item(index: int, opening: dict[str, Any], *inner: dict[str, Any], **last: Any) -> list[dict[str, Any]]:
    """An output item: as it opens, the events between, as it ends."""
    place = {"output_index": index, "item_id": opening.get("id", "")}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": opening},
        *(event | place for event in inner),
        {"type": "response.output_item.done", "output_index": index, "item": opening | last},
    ]


def r_text(index: int, *pieces: str) -> list[dict[str, Any]]:
    opening = {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "in_progress", "content": []}
    deltas = [{"type": "response.output_text.delta", "content_index": 0, "delta": piece} for piece in pieces]
    content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
    return r_item(index, opening, *deltas, status="completed", content=content)


def r_call(index: int, id_: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    opening = {"type": "function_call", "id": f"fc_{index}", "call_id": id_, "name": name, "arguments": ""}
    deltas = [{"type": "response.function_call_arguments.delta", "delta": piece} for piece in pieces]
    return r_item(index, opening, *deltas, status="completed", arguments="".join(pieces))


def r_thought(index: int, text: str, sealed: str = "c2VhbGVk") -> list[dict[str, Any]]:
    opening = {"type": "reasoning", "id": f"rs_{index}", "summary": []}
    delta = {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": text}
    return r_item(index, opening, delta, summary=[{"type": "summary_text", "text": text}], encrypted_content=sealed)


def r_start() -> dict[str, Any]:
    return {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "model": "served-1"}}


def r_end(*items: list[dict[str, Any]], status: str = "completed", **facts: Any) -> dict[str, Any]:
    """The last event, with the items in their last form."""
    usage = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
    output = [events[-1]["item"] for events in items]
    response = {"id": "resp_1", "model": "served-1", "status": status, "output": output, "usage": usage} | facts
    return {"type": f"response.{status}", "response": response}


def r_answer(*items: list[dict[str, Any]], status: str = "completed", **facts: Any) -> list[dict[str, Any]]:
    return [r_start(), *(event for events in items for event in events), r_end(*items, status=status, **facts)]


# --- all ------------------------------------------------------------------------------------------

BEGUN = {
    "anthropic": sse(a_start(), *a_text(0, "The answer ", "begins")[:-1]),
    "openai-chat": sse(o_chunk({"role": "assistant", "content": ""}), o_chunk({"content": "The answer begins"})),
    "openai-responses": sse(r_start(), *r_text(0, "The answer ", "begins")[:-1]),
}
CALLING = {
    "anthropic": sse(a_start(), *a_call(0, "toolu_X", "f", '{"a": 1}')),
    "openai-chat": sse(o_call(0, "c1", "f", '{"a": 1}')),
    "openai-responses": sse(r_start(), *r_call(0, "c1", "f", '{"a": 1}')[:-1]),
}
WHOLE = {
    "anthropic": sse(a_start(), *a_text(0, "Hi."), *a_end()),
    "openai-chat": sse(*o_texts(["Hi."])),
    "openai-responses": sse(*r_answer(r_text(0, "Hi."))),
}
