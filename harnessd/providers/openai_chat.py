"""OpenAI's Chat Completions and the many servers that speak it: vLLM, Ollama, llama.cpp, OpenRouter, Mistral, Azure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Message, ModelReply, ModelRequest, OpaqueBlock, ToolResultBlock, ToolUseBlock
from harnessd.domain.ports import CallClocks, Progress
from harnessd.providers.credential import attempt
from harnessd.providers.endpoint import AZURE, Endpoint
from harnessd.providers.openai_chat_stream import PROTOCOL, OpenAIChatReader
from harnessd.providers.wire import dump, fitting_id, sendable, whole_text

_MISTRAL = ("mistral.ai",)
_ID = re.compile(r".{1,40}", re.DOTALL)
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")
_FIELDS = frozenset({"role", "content", "tool_calls"})


class OpenAIChat:
    """A `ModelProvider` for Chat Completions."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # A bare host gets the version that all have; any other path is taken as it is written.
        path = endpoint.path.removesuffix("/chat/completions") or "/v1"
        self._url = endpoint.address(f"{path}/chat/completions")

    async def call(self, request: ModelRequest, clocks: CallClocks, progress: Progress) -> ModelReply | Failure:
        body = dump(encode(request, self._endpoint))
        reader = OpenAIChatReader(self._endpoint.model)
        return await attempt(
            self._endpoint, PROTOCOL, self._url, self._endpoint.bearer, (body, reader, clocks, progress)
        )

    async def aclose(self) -> None:
        await self._endpoint.clients.release(self._endpoint.base_url)


def encode(request: ModelRequest, endpoint: Endpoint) -> dict[str, Any]:
    """The request's body. The system prompt stands first and is frozen, so that the service's prefix cache holds."""
    speaker = _Speaker(endpoint)
    messages = [wire for message in request.messages for wire in speaker.messages(message)]
    if request.system.strip():
        messages.insert(0, {"role": "system", "content": request.system})
    # OpenAI's reasoning models refuse `max_tokens`; most other servers know nothing else.
    limit = "max_completion_tokens" if endpoint.is_at("openai.com", *AZURE) else "max_tokens"
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": messages,
        limit: endpoint.output_limit(request.max_tokens),
        "stream": True,
    }
    if not endpoint.is_at(*_MISTRAL):  # Mistral always tells the usage and refuses the wish for it
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": tool.name, "description": tool.about, "parameters": tool.schema}}
            for tool in request.tools
        ]
        if request.tool_choice == "none":  # the definitions stay, so that the prefix cache holds
            body["tool_choice"] = "none"
    return body


class _Speaker:
    """Messages in the protocol's form, for one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._model = endpoint.model
        self._wants_thoughts = endpoint.is_at("deepseek.com")
        # Mistral takes ids of nine letters and digits only; OpenAI takes forty characters.
        self._shape, self._length = (_MISTRAL_ID, 9) if endpoint.is_at(*_MISTRAL) else (_ID, 40)

    def messages(self, message: Message) -> list[Mapping[str, Any]]:
        """One of ours is several of theirs: each result of a call is a message of its own, before the words."""
        if message.role == "assistant":
            wire = self._assistant(message)
            if self._wants_thoughts and wire.get("tool_calls"):
                # DeepSeek refuses a call without its thoughts, also one that another model made without any.
                wire = {"reasoning_content": "", **wire}
            return [wire] if wire.get("content") or wire.get("tool_calls") else []
        results: list[Mapping[str, Any]] = [
            {"role": "tool", "tool_call_id": self._id(block.tool_use_id), "content": whole_text(block.text)}
            for block in message.blocks
            if isinstance(block, ToolResultBlock)
        ]
        said = whole_text(message.text)
        return [*results, {"role": "user", "content": said}] if said.strip() else results

    def _assistant(self, message: Message) -> Mapping[str, Any]:
        wire = message.wire
        if wire is None or wire.get("protocol") != PROTOCOL:
            return self._encoded(message)
        content: Mapping[str, Any] = wire["content"]
        if wire.get("model") != self._model:
            # Thoughts and other extra fields are the sending server's own.
            content = {name: value for name, value in content.items() if name in _FIELDS}
        calls = content.get("tool_calls") or []
        if all(self._shape.fullmatch(call["id"]) for call in calls):
            return content
        return {**content, "tool_calls": [{**call, "id": self._id(call["id"])} for call in calls]}

    def _encoded(self, message: Message) -> Mapping[str, Any]:
        wire: dict[str, Any] = {"role": "assistant", "content": whole_text(message.text) or None}
        for block in message.blocks:
            if isinstance(block, OpaqueBlock) and block.protocol == PROTOCOL:
                wire.update(block.wire)
            elif isinstance(block, ToolUseBlock):
                wire.setdefault("tool_calls", []).append(self._call(block))
        return wire

    def _call(self, call: ToolUseBlock) -> Mapping[str, Any]:
        arguments = dump(sendable(call.arguments, call.raw)).decode()
        return {
            "id": self._id(call.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    def _id(self, id_: str) -> str:
        return fitting_id(id_, self._shape, self._length)
