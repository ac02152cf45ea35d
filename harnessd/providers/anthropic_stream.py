"""Anthropic's answer: the events of the Messages API, read into blocks and kept in their wire form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harnessd.domain.messages import Block, FinishReason, OpaqueBlock, TextBlock, ToolUseBlock, Usage
from harnessd.providers.answer import Answer, StreamError
from harnessd.providers.evidence import tells_of_error
from harnessd.providers.sse import SseEvent
from harnessd.providers.wire import (
    arguments_of,
    count,
    distinct_id,
    label,
    load,
    part,
    sendable,
    whole_json,
    whole_text,
    words,
)

PROTOCOL = "anthropic"
_FINISH: Mapping[str, FinishReason] = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_USE,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    # A server-side tool loop paused: the answer is not whole, and the next request goes on from it.
    "pause_turn": FinishReason.LENGTH,
    "refusal": FinishReason.REFUSAL,
}
# delta type -> (its field, the block's field that grows, word of progress)
_DELTAS: Mapping[str, tuple[str, str, str]] = {
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("signature", "signature", "thinking"),
    "input_json_delta": ("partial_json", "", "tool_use"),
}
_USAGE = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class AnthropicReader:
    """Reads one answer. Unknown events, deltas and fields are ignored: the protocol says that they may come."""

    def __init__(self, model: str) -> None:
        self.whole = False
        self.settled = False
        self._model = model
        self._blocks: dict[int, dict[str, Any]] = {}
        self._parts: dict[int, dict[str, list[str]]] = {}  # growing fields; joined once, at the end
        self._usage: dict[str, int] = {}
        self._started = False
        self._served_by = ""
        self._id = ""
        self._stop = ""
        self._said = ""

    def read(self, event: SseEvent) -> str | None:
        """See `Reader`. Pings, empty deltas and unknown events bring nothing on."""
        data = load(event.data)
        if not isinstance(data, dict):
            raise ValueError("an event of the answer is no JSON object")  # noqa: TRY004 - the value is wrong
        kind = words(data.get("type")) or event.name
        if kind == "error" or data.get("error") or (not kind and tells_of_error(data)):
            raise StreamError(data)
        match kind:
            case "message_start":
                return self._start(data)
            case "content_block_start":
                return self._block_start(data)
            case "content_block_delta":
                return self._delta(data)
            case "message_delta":
                return self._message_delta(data)
            case "message_stop":
                self.whole = self.settled = True
                return ""
            case _:
                return None

    def read_whole(self, body: Mapping[str, Any]) -> None:
        """A Message object in one piece."""
        if body.get("type") == "error" or tells_of_error(body):
            raise StreamError(body)
        content = body.get("content")
        if not isinstance(content, list):
            raise ValueError("the answer is no message of the Messages API")  # noqa: TRY004 - the value is wrong
        self._head(body)
        self._end(body)
        self._blocks = {index: _typed(block) for index, block in enumerate(content)}
        self.whole = self.settled = True

    @property
    def usage(self) -> Usage:
        """The tokens told so far."""
        return Usage(*(self._usage.get(name, 0) for name in _USAGE))

    def answer(self) -> Answer:
        """The answer with its wire content, in the order in which its blocks began."""
        finish = _FINISH.get(self._stop, FinishReason.STOP)
        taken: set[str] = set()
        blocks: list[Block] = []
        content: list[dict[str, Any]] = []
        cut = False
        for index in sorted(self._blocks):
            wire = self._joined(index)
            block = self._block(wire, index, taken)
            if block is None:
                continue
            cut = isinstance(block, ToolUseBlock) and (block.arguments is None or not self._raw(index, wire))
            blocks.append(block)
            content.append(wire)
        called = any(isinstance(block, ToolUseBlock) for block in blocks)
        if finish in {FinishReason.STOP, FinishReason.TOOL_USE}:
            finish = FinishReason.TOOL_USE if called else FinishReason.STOP
        return Answer(
            blocks=tuple(blocks),
            content=content,
            model=self._model,
            finish=finish,
            usage=self.usage,
            served_by=self._served_by,
            id=self._id,
            stopped_by=whole_text(self._stop),
            said=whole_text(self._said),
            last_call_cut=finish is FinishReason.LENGTH and cut,
        )

    def _start(self, data: Mapping[str, Any]) -> str | None:
        message = data.get("message")
        if isinstance(message, dict):
            self._head(message)
        # A sign of life once; a server that starts for ever makes no progress.
        first, self._started = not self._started, True
        return "" if first else None

    def _head(self, message: Mapping[str, Any]) -> None:
        self._id = label(message.get("id"))
        self._served_by = label(message.get("model"))
        self._count(message.get("usage"))

    def _end(self, delta: Mapping[str, Any]) -> None:
        self._stop = words(delta.get("stop_reason")) or self._stop
        details = delta.get("stop_details")
        self._said = words(part(details, "explanation")) or words(part(details, "reason")) or self._said

    def _block_start(self, data: Mapping[str, Any]) -> str | None:
        index = data.get("index")
        if not isinstance(index, int) or index in self._blocks:
            raise ValueError("a block of the answer starts without a place of its own")
        block = self._blocks[index] = _typed(data.get("content_block"))
        self._parts[index] = {}
        if block.get("type") == "tool_use":
            return "tool_use"
        return "text" if words(block.get("text")) else None

    def _delta(self, data: Mapping[str, Any]) -> str | None:
        index, delta = data.get("index"), data.get("delta")
        if not isinstance(delta, dict) or not isinstance(index, int):
            return None
        field, _, word = _DELTAS.get(words(delta.get("type")), ("", "", ""))
        piece = words(delta.get(field))
        if not piece:
            return None
        if index not in self._parts:
            raise ValueError("a part of the answer belongs to no block")
        self._parts[index].setdefault(_DELTAS[delta["type"]][1], []).append(piece)
        return word

    def _message_delta(self, data: Mapping[str, Any]) -> str | None:
        delta = data.get("delta")
        if isinstance(delta, dict):
            self._end(delta)
        self._count(data.get("usage"))
        return "" if self._stop else None

    def _count(self, usage: Any) -> None:
        """Figures are running totals: the last one that is there wins, and 0 is a figure."""
        for name in _USAGE:
            tokens = count(part(usage, name))
            if tokens is not None:
                self._usage[name] = tokens

    def _joined(self, index: int) -> dict[str, Any]:
        """The block with what its deltas brought."""
        block = self._blocks[index]
        for field, pieces in self._parts.get(index, {}).items():
            if field:
                block[field] = words(block.get(field)) + "".join(pieces)
                pieces.clear()
        return {whole_text(name): whole_json(value) for name, value in block.items()}

    def _raw(self, index: int, wire: Mapping[str, Any]) -> str:
        """The words of a call's arguments; without deltas, the object that came with the start speaks for itself."""
        pieces = self._parts.get(index, {}).get("", [])
        return "".join(pieces) or ("{}" if wire.get("input") else "")

    def _block(self, wire: dict[str, Any], index: int, taken: set[str]) -> Block | None:
        """Our form of a block; its wire form is put in order where no later request could carry it."""
        kind = wire.get("type")
        if kind == "text":
            # Sent back, a blank text is refused with the whole history.
            text = words(wire.get("text"))
            return TextBlock(text) if text.strip() else None
        pieces = self._parts.get(index, {}).get("", [])
        if kind != "tool_use":
            if pieces:  # a tool that the service runs itself
                wire["input"] = dict(arguments_of("".join(pieces)) or {})
            return OpaqueBlock(PROTOCOL, wire)
        raw = "".join(pieces)
        given = wire.get("input") or {}
        arguments = arguments_of(raw) if pieces else given if isinstance(given, dict) else None
        wire["id"] = distinct_id(words(wire.get("id")), taken, f"toolu_{self._id or 'made'}_{index}")
        wire["name"] = words(wire.get("name"))
        wire["input"] = dict(sendable(arguments, raw))
        return ToolUseBlock(wire["id"], wire["name"], arguments, whole_text(raw) if arguments is None else None)


def _typed(block: Any) -> dict[str, Any]:
    """A block of our own to fill, if it is one: an object that says what it is."""
    if not isinstance(block, dict) or not words(block.get("type")):
        raise ValueError("a block of the answer does not say what it is")
    return dict(block)
