"""Messages, blocks, usage: what is said between the model, its tools and us; wire form kept.

A block keeps the form in which its provider sent it (`wire`), so that a message nobody touched leaves
byte-identical and the provider's prompt cache and signatures hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class FinishReason(StrEnum):
    """Why a model's answer ended, in one vocabulary for all protocols."""

    STOP = "stop"
    TOOL_USE = "tool_use"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUseBlock:
    """A tool call that the model asks for.

    `arguments` is None when what the model wrote is not a JSON object; `raw` then holds its words.
    Such a call is answered with `invalid_arguments`, never guessed at.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    """The one result of one tool call."""

    tool_use_id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class OpaqueBlock:
    """A block that only its own protocol understands (thinking, reasoning); carried back unchanged, or left out."""

    protocol: str
    wire: Mapping[str, Any]


Block = TextBlock | ToolUseBlock | ToolResultBlock | OpaqueBlock


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the view that a model is shown.

    `wire` is the provider's own form of an assistant message (`{"protocol": ..., "model": ..., "content": ...}`);
    a provider of the same protocol sends `content` as it is, any other encodes `blocks`.
    """

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]
    wire: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """All words of the message, in order."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The calls that the message asks for, in order."""
        return tuple(block for block in self.blocks if isinstance(block, ToolUseBlock))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call. `input_tokens` leaves cached ones out, whatever the protocol counts."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total(self) -> int:
        """Input with cache + output: what the `tokens` budget counts."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told of a tool: name, one paragraph, JSON Schema of the arguments."""

    name: str
    about: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call, free of any protocol."""

    model: str  # alias in harness.yaml
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    max_tokens: int
    tool_choice: Literal["auto", "none"] = "auto"  # `none`: the last turn, to sum up without tools


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A whole answer. `served_by` is the provider's own name of the model that answered.

    `marks` are oddities of it that are worth a warning: `finish_reason_missing`.
    """

    message: Message
    finish: FinishReason
    usage: Usage = field(default_factory=Usage)
    served_by: str = ""
    request_id: str = ""
    cost_usd: float = 0.0
    marks: tuple[str, ...] = ()


def block_to_json(block: Block) -> dict[str, Any]:
    """The stored form of a block."""
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ToolUseBlock(id_, name, arguments, raw):
            stored: dict[str, Any] = {"type": "tool_use", "id": id_, "name": name}
            if arguments is None:
                return stored | {"raw": raw or ""}
            return stored | {"arguments": dict(arguments)}
        case ToolResultBlock(tool_use_id, text, is_error):
            return {"type": "tool_result", "tool_use_id": tool_use_id, "text": text, "is_error": is_error}
        case OpaqueBlock(protocol, wire):
            return {"type": "opaque", "protocol": protocol, "wire": dict(wire)}


def block_from_json(stored: Mapping[str, Any]) -> Block:
    """The block behind its stored form. Raises KeyError or ValueError for a form this version does not know."""
    match stored["type"]:
        case "text":
            return TextBlock(stored["text"])
        case "tool_use":
            return ToolUseBlock(stored["id"], stored["name"], stored.get("arguments"), stored.get("raw"))
        case "tool_result":
            return ToolResultBlock(stored["tool_use_id"], stored["text"], stored.get("is_error", False))
        case "opaque":
            return OpaqueBlock(stored["protocol"], stored["wire"])
        case other:
            message = f"unknown block type {other!r}"
            raise ValueError(message)


def message_to_json(message: Message) -> dict[str, Any]:
    """The stored form of a message: `{"role", "blocks", "wire"?}`."""
    stored: dict[str, Any] = {
        "role": message.role,
        "blocks": [block_to_json(block) for block in message.blocks],
    }
    return stored | ({"wire": dict(message.wire)} if message.wire is not None else {})


def message_from_json(stored: Mapping[str, Any]) -> Message:
    """The message behind its stored form."""
    blocks: Sequence[Mapping[str, Any]] = stored["blocks"]
    return Message(stored["role"], tuple(block_from_json(block) for block in blocks), stored.get("wire"))
