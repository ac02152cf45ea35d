"""Anthropic's Messages API: requests with cache breakpoints, answers streamed; one attempt a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import (
    Block,
    Message,
    ModelReply,
    ModelRequest,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from harnessd.domain.ports import CallClocks, Progress
from harnessd.providers.anthropic_stream import PROTOCOL, AnthropicReader
from harnessd.providers.credential import attempt
from harnessd.providers.endpoint import Endpoint
from harnessd.providers.wire import dump, fitting_id, sendable, whole_text

_VERSION = "2023-06-01"
_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_THINKING = frozenset({"thinking", "redacted_thinking"})
_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}


class Anthropic:
    """A `ModelProvider` for the Messages API and what speaks like it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # Written with or without the version, as services and their gateways print it.
        path = endpoint.path.removesuffix("/messages").removesuffix("/v1")
        self._url = endpoint.address(f"{path}/v1/messages")

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        body = dump(encode(request, self._endpoint))
        reader = AnthropicReader(self._endpoint.model)
        return await attempt(self._endpoint, PROTOCOL, self._url, _headers, (body, reader, clocks, progress))

    async def aclose(self) -> None:
        await self._endpoint.clients.release(self._endpoint.base_url)


def _headers(key: str) -> dict[str, str]:
    return {"anthropic-version": _VERSION} | ({"x-api-key": key} if key else {})


def encode(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """The request's body.

    Breakpoints for the prompt cache stand at what never changes (tools, system prompt) and at the two newest user
    messages: the service looks back a limited number of blocks from a breakpoint, so the last but one finds what the
    previous call stored. A breakpoint is no part of what is compared; the messages themselves stay as they were.
    """
    body: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": endpoint.output_limit(request.max_tokens),
        "stream": True,
        "messages": _marked([wire for message in request.messages if (wire := _message(message, endpoint.model))]),
    }
    if request.system.strip():
        body["system"] = [{"type": "text", "text": request.system, **_BREAKPOINT}]
    if request.tools:
        tools = [{"name": tool.name, "description": tool.about, "input_schema": tool.schema} for tool in request.tools]
        body["tools"] = [*tools[:-1], tools[-1] | _BREAKPOINT]
        if request.tool_choice == "none":
            # The definitions stay: without them the whole prompt cache is lost with the prefix it stands on.
            body["tool_choice"] = {"type": "none"}
    elif names := _called(body["messages"]):
        # A last turn without tools: the service refuses a history of calls without definitions of what was called.
        body["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        body["tool_choice"] = {"type": "none"}
    return body


def _called(messages: list[dict[str, Any]]) -> list[str]:
    """Names of the tools that a history calls."""
    blocks = (block for message in messages for block in message["content"])
    return sorted({block["name"] for block in blocks if block.get("type") == "tool_use"})


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = [index for index, message in enumerate(messages) if message["role"] == "user"][-2:]
    for index in newest:
        content = messages[index]["content"]
        messages[index] = {"role": "user", "content": [*content[:-1], content[-1] | _BREAKPOINT]}
    return messages


def _message(message: Message, model: str) -> dict[str, Any] | None:
    """One message, or None when nothing is left that the service takes."""
    wire = message.wire
    if wire is not None and wire.get("protocol") == PROTOCOL:
        content = wire["content"]
        if wire.get("model") != model:
            # The signature under a thought is the signing service's own; another refuses it, and the history with it.
            content = [block for block in content if block.get("type") not in _THINKING]
    else:
        content = [encoded for block in _results_first(message.blocks) if (encoded := _block(block))]
    return {"role": message.role, "content": content} if content else None


def _results_first(blocks: tuple[Block, ...]) -> list[Block]:
    """The service wants the results of calls before anything else that a user message says."""
    return sorted(blocks, key=lambda block: not isinstance(block, ToolResultBlock))


def _block(block: Block) -> Mapping[str, Any] | None:
    match block:
        case TextBlock(text):
            return {"type": "text", "text": whole_text(text)} if text.strip() else None
        case ToolUseBlock(id_, name, arguments, raw):
            return {"type": "tool_use", "id": _id(id_), "name": name, "input": sendable(arguments, raw)}
        case ToolResultBlock(tool_use_id, text, is_error):
            result = {"type": "tool_result", "tool_use_id": _id(tool_use_id), "content": whole_text(text)}
            return result | ({"is_error": True} if is_error else {})
        case OpaqueBlock(protocol, wire):
            return wire if protocol == PROTOCOL else None


def _id(id_: str) -> str:
    return fitting_id(id_, _ID, 32)
