"""OpenAI's Responses API and what speaks like it: input items, thoughts carried back sealed, nothing stored there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import (
    Message,
    ModelReply,
    ModelRequest,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from harnessd.domain.ports import CallClocks, Progress
from harnessd.providers.credential import attempt
from harnessd.providers.endpoint import Endpoint
from harnessd.providers.openai_responses_stream import PROTOCOL, OpenAIResponsesReader
from harnessd.providers.wire import dump, fitting_id, sendable, whole_text

_ID = re.compile(r".{1,64}", re.DOTALL)
_LEAST_OUTPUT = 16  # tokens; the service refuses less
# Models that think nothing refuse the wish for sealed thoughts; every other server ignores what it does not know.
_THOUGHTLESS = re.compile(r"(?:chatgpt|gpt-[34])", re.IGNORECASE)

Item = Mapping[str, Any]


class OpenAIResponses:
    """A `ModelProvider` for the Responses API."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # A bare host gets the version that all have; any other path is taken as it is written.
        path = endpoint.path.removesuffix("/responses") or "/v1"
        self._url = endpoint.address(f"{path}/responses")

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        body = dump(encode(request, self._endpoint))
        reader = OpenAIResponsesReader(self._endpoint.model)
        headers = self._endpoint.bearer
        return await attempt(self._endpoint, PROTOCOL, self._url, headers, (body, reader, clocks, progress))

    async def aclose(self) -> None:
        await self._endpoint.clients.release(self._endpoint.base_url)


def encode(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """The request's body. The history is ours and travels whole, so the service is asked to store nothing."""
    body: dict[str, Any] = {
        "model": endpoint.model,
        "input": [item for message in request.messages for item in _items(message, endpoint.model)],
        "max_output_tokens": max(_LEAST_OUTPUT, endpoint.output_limit(request.max_tokens)),
        "store": False,
        "stream": True,
    }
    if not _THOUGHTLESS.match(endpoint.model):
        body["include"] = ["reasoning.encrypted_content"]
    if request.system.strip():
        body["instructions"] = request.system
    if request.tools:
        # Without the word the service makes a schema strict, which most schemas are not fit for.
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.about,
                "parameters": tool.schema,
                "strict": False,
            }
            for tool in request.tools
        ]
        if request.tool_choice == "none":  # the definitions stay, so that the prefix cache holds
            body["tool_choice"] = "none"
    return body


def _items(message: Message, model: str) -> list[Item]:
    """One of ours is several of theirs. Results stand before words: some servers want them right behind their calls."""
    if message.role == "assistant":
        wire = message.wire
        if wire is None or wire.get("protocol") != PROTOCOL:
            return _encoded(message)
        return _carried(wire["content"], own=wire.get("model") == model)
    results: list[Item] = [
        {"type": "function_call_output", "call_id": _id(block.tool_use_id), "output": whole_text(block.text)}
        for block in message.blocks
        if isinstance(block, ToolResultBlock)
    ]
    said = whole_text(message.text)
    return [*results, *([_said("user", "input_text", said)] if said.strip() else [])]


def _carried(content: list[dict[str, Any]], *, own: bool) -> list[Item]:
    """Items as they came, without thoughts that the service would refuse.

    A thought counts only sealed (nothing is stored there), for the model that had it, and with the item that follows
    it. An id ties an item to its thought: where a thought is left out, the ids of the message are too.
    """
    last = max((index for index, item in enumerate(content) if item.get("type") != "reasoning"), default=-1)
    kept: list[Item] = [
        item
        for index, item in enumerate(content)
        if item.get("type") != "reasoning" or (own and index < last and item.get("encrypted_content"))
    ]
    if own and len(kept) == len(content):
        return kept
    return [item if item.get("type") == "reasoning" else _nameless(item) for item in kept]


def _nameless(item: Item) -> Item:
    return {name: value for name, value in item.items() if name != "id"}


def _encoded(message: Message) -> list[Item]:
    items: list[Item] = []
    for block in message.blocks:
        match block:
            case TextBlock(text) if text.strip():
                items.append(_said("assistant", "output_text", whole_text(text)))
            case ToolUseBlock(id_, name, arguments, raw):
                sent = dump(sendable(arguments, raw)).decode()
                items.append({"type": "function_call", "call_id": _id(id_), "name": name, "arguments": sent})
            case OpaqueBlock(protocol, wire) if protocol == PROTOCOL and wire.get("type") != "reasoning":
                items.append(wire)
            case _:
                pass
    return items


def _said(role: str, kind: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _id(id_: str) -> str:
    return fitting_id(id_, _ID, 40)
