"""Responses' answer: output items read from numbered events, and kept in their wire form."""

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
    dump,
    label,
    load,
    part,
    sendable,
    whole_json,
    whole_text,
    words,
)

PROTOCOL = "openai-responses"
# Why an answer that is no error is not whole. A reason that came later than this list is a limit of some sort.
_INCOMPLETE: Mapping[str, FinishReason] = {
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
# Event -> (item type, the field of the open item that grows, word of progress).
_DELTAS: Mapping[str, tuple[str, str, str]] = {
    "response.output_text.delta": ("message", "text", "text"),
    "response.refusal.delta": ("message", "refusal", "text"),
    "response.function_call_arguments.delta": ("function_call", "arguments", "tool_use"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary", "thinking"),
    "response.reasoning_text.delta": ("reasoning", "content", "thinking"),
}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_BROKEN = frozenset({"failed", "cancelled"})
_UNFINISHED = frozenset({"in_progress", "incomplete"})


class OpenAIResponsesReader:
    """Reads one answer. Close without one of the terminal events is a cut; unknown events are ignored."""

    def __init__(self, model: str) -> None:
        self.whole = False
        self.settled = False
        self.usage = Usage()
        self._model = model
        self._items: dict[int, dict[str, Any]] = {}
        self._closed: set[int] = set()  # items whose last form came
        self._grown: dict[int, dict[str, list[str]]] = {}
        self._places: dict[str, int] = {}  # item id -> place, for servers that leave the index out
        self._started = False
        self._served_by = ""
        self._id = ""
        self._status = ""
        self._reason = ""

    def read(self, event: SseEvent) -> str | None:
        """See `Reader`."""
        if event.data.strip() == "[DONE]":
            # The protocol has no such mark; gateways add it. It does not make an answer whole.
            self.settled = True
            return None
        data = load(event.data)
        if not isinstance(data, dict):
            raise ValueError("an event of the answer is no JSON object")  # noqa: TRY004 - the value is wrong
        kind = words(data.get("type")) or event.name
        if kind == "error" or data.get("error") or (not kind and tells_of_error(data)):
            raise StreamError(_told(data))
        if kind in _ENDS:
            self._end(data.get("response"), kind.removeprefix("response."))
            return ""
        if kind in _DELTAS:
            return self._delta(kind, data)
        if kind in {"response.output_item.added", "response.output_item.done"}:
            return self._item(data, closed=kind.endswith("done"))
        if kind == "response.function_call_arguments.done":
            self._arguments(data)
            return None
        self._head(data.get("response"))
        first, self._started = not self._started, True
        return "" if first and kind.startswith("response.") else None

    def read_whole(self, body: Mapping[str, Any]) -> None:
        """A Response object in one piece."""
        if tells_of_error(body) and not isinstance(body.get("output"), list):
            raise StreamError(body)
        if not isinstance(body.get("output"), list):
            raise ValueError("the answer is no response of the Responses API")  # noqa: TRY004 - the value is wrong
        self._end(body, words(body.get("status")) or "completed")

    def answer(self) -> Answer:
        """The answer with its items, as they must be sent back."""
        finish = FinishReason.STOP
        if self._status == "incomplete":
            finish = _INCOMPLETE.get(self._reason, FinishReason.LENGTH)
        taken: set[str] = set()
        blocks: list[Block] = []
        content: list[dict[str, Any]] = []
        refusals: list[str] = []
        cut = False
        for number, item in enumerate(self._finished()):
            unfinished = words(item.get("status")) in _UNFINISHED
            block = self._block(number, item, taken, refusals)
            if block is not None:
                blocks.append(block)
                content.append(item)
                cut = isinstance(block, ToolUseBlock) and (unfinished or block.arguments is None)
        called = any(isinstance(block, ToolUseBlock) for block in blocks)
        if finish is FinishReason.STOP and called:
            finish = FinishReason.TOOL_USE
        if finish is FinishReason.STOP and refusals:
            finish = FinishReason.REFUSAL
        return Answer(
            blocks=tuple(blocks),
            content=content,
            model=self._model,
            finish=finish,
            usage=self.usage,
            served_by=self._served_by,
            id=self._id,
            stopped_by=whole_text(self._reason or self._status),
            said=whole_text("".join(refusals)),
            last_call_cut=finish is FinishReason.LENGTH and cut,
        )

    def _head(self, response: Any) -> None:
        self._id = label(part(response, "id")) or self._id
        self._served_by = label(part(response, "model")) or self._served_by
        if isinstance(usage := part(response, "usage"), dict):
            self.usage = _counted(usage)

    def _end(self, response: Any, status: str) -> None:
        """A terminal event, or the whole document. Raises StreamError where it tells of a failure."""
        self._head(response)
        self._status = words(part(response, "status")) or status
        self._reason = words(part(response, "incomplete_details", "reason"))
        if self._status in _BROKEN or part(response, "error"):
            error = part(response, "error")
            raise StreamError({"error": error} if error else {"error": {"message": f"the response {self._status}"}})
        output = part(response, "output")
        # Some servers leave the list out of the last event, or leave it empty.
        if isinstance(output, list) and len(output) >= len(self._items):
            self._items = {index: _typed(item) for index, item in enumerate(output)}
            self._closed = set(self._items)
        self.whole = self.settled = True

    def _place(self, data: Mapping[str, Any], kind: str) -> int:
        """Which item an event is about: by its index, by the item's id, else the last one of that type."""
        index = data.get("output_index")
        if isinstance(index, int) and not isinstance(index, bool):
            return index
        id_ = words(data.get("item_id"))
        if id_ in self._places:
            return self._places[id_]
        last = max(self._items, default=-1)
        if last >= 0 and not id_ and self._items[last].get("type") == kind and last not in self._closed:
            return last
        return last + 1

    def _item(self, data: Mapping[str, Any], *, closed: bool) -> str | None:
        item = _typed(data.get("item"))
        id_ = words(item.get("id"))
        index = self._place(data if data.get("output_index") is not None else {"item_id": id_}, words(item["type"]))
        fresh = index not in self._items
        self._items[index] = item
        if id_:
            self._places[id_] = index
        if closed:
            self._closed.add(index)
            # A done item is a step on; its deltas were told already where there were any.
            return "" if index in self._grown else _word(item)
        return "tool_use" if fresh and item["type"] == "function_call" else "" if fresh else None

    def _delta(self, kind: str, data: Mapping[str, Any]) -> str | None:
        type_, field, word = _DELTAS[kind]
        piece = words(data.get("delta"))
        if not piece:
            return None
        index = self._place(data, type_)
        if index not in self._items:
            id_ = words(data.get("item_id"))
            self._items[index] = {"type": type_} | ({"id": id_} if id_ else {})
            if id_:
                self._places[id_] = index
        self._grown.setdefault(index, {}).setdefault(field, []).append(piece)
        return word

    def _arguments(self, data: Mapping[str, Any]) -> None:
        """The whole arguments at their end: what counts where pieces were lost, or never sent."""
        index = self._place(data, "function_call")
        if words(data.get("arguments")) and index in self._items:
            self._grown.setdefault(index, {})["arguments"] = [data["arguments"]]

    def _finished(self) -> list[dict[str, Any]]:
        """The items in order; one that was never closed is made of what its deltas brought."""
        found = []
        for index, item in sorted(self._items.items()):
            grown = {name: "".join(pieces) for name, pieces in self._grown.get(index, {}).items()}
            found.append(whole_json(item if index in self._closed else _filled(item, grown)))
        return found

    def _block(self, number: int, item: dict[str, Any], taken: set[str], refusals: list[str]) -> Block | None:
        """Our form of an item; its wire form is put in order where no later request could carry it."""
        match words(item.get("type")):
            case "message":
                return _text(item, refusals)
            case "function_call":
                return self._call(number, item, taken)
            case _:
                return OpaqueBlock(PROTOCOL, item)

    def _call(self, number: int, item: dict[str, Any], taken: set[str]) -> ToolUseBlock:
        given = words(item.get("call_id"))
        id_ = distinct_id(given, taken, words(item.get("id")) or f"call_{self._id or 'made'}_{number}")
        raw = words(item.get("arguments"))
        arguments = arguments_of(raw)
        if id_ != given:
            item.pop("id", None)  # it names an item of another call
        item["call_id"], item["name"] = id_, words(item.get("name"))
        if arguments is None or not raw.strip():
            item["arguments"] = dump(sendable(arguments, raw)).decode()
        if words(item.get("status")) in _UNFINISHED:
            item["status"] = "completed"
        return ToolUseBlock(id_, item["name"], arguments, raw if arguments is None else None)


def _typed(item: Any) -> dict[str, Any]:
    """An item of our own to fill, if it is one: an object that says what it is. Raises ValueError."""
    if not isinstance(item, dict) or not words(item.get("type")):
        raise ValueError("an item of the answer does not say what it is")
    return dict(item)


def _told(data: Mapping[str, Any]) -> Any:
    """An error event in the form of an error body: it comes flat, and nested."""
    if data.get("error"):
        return data
    return {"error": {name: value for name, value in data.items() if name not in {"type", "sequence_number"}}}


def _text(item: Mapping[str, Any], refusals: list[str]) -> TextBlock | None:
    """A message's words; its refusals are put aside. Sent back, a message without words is refused."""
    said: list[str] = []
    content = item.get("content")
    for piece in content if isinstance(content, list) else []:
        said.append(words(part(piece, "text")))
        refusals.append(words(part(piece, "refusal")))
    refusals[:] = [refusal for refusal in refusals if refusal]
    text = "".join(said)
    return TextBlock(text) if text.strip() else None


def _filled(item: Mapping[str, Any], grown: Mapping[str, str]) -> dict[str, Any]:
    """An item that was never closed, with what came of it."""
    filled = dict(item)
    if item.get("type") == "message" and grown:
        content: list[dict[str, Any]] = []
        if grown.get("text"):
            content.append({"type": "output_text", "text": grown["text"], "annotations": []})
        if grown.get("refusal"):
            content.append({"type": "refusal", "refusal": grown["refusal"]})
        filled |= {"role": "assistant", "content": content}
    elif item.get("type") == "function_call" and grown:
        filled["arguments"] = grown.get("arguments", "")
    return filled


def _word(item: Mapping[str, Any]) -> str:
    return {"message": "text", "function_call": "tool_use", "reasoning": "thinking"}.get(words(item.get("type")), "")


def _counted(usage: Mapping[str, Any]) -> Usage:
    """Usage in our count: the protocol counts cached tokens as part of the input, thoughts as part of the output."""
    sent = count(usage.get("input_tokens")) or 0
    read = min(count(part(usage, "input_tokens_details", "cached_tokens")) or 0, sent)
    return Usage(sent - read, count(usage.get("output_tokens")) or 0, read, 0)
