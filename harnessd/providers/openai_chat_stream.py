"""Chat Completions' answer: chunks read into blocks, with the habits of the many servers that speak it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

PROTOCOL = "openai-chat"
_FINISH: Mapping[str, FinishReason] = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.TOOL_USE,
    "function_call": FinishReason.TOOL_USE,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.REFUSAL,
    # Mistral's word, and those of gateways that pass on what other protocols say.
    "model_length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "sensitive": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "recitation": FinishReason.CONTENT_FILTER,
    "prohibited_content": FinishReason.CONTENT_FILTER,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
}
# The service gave up in the middle: OpenRouter; vLLM; DeepSeek; Zhipu; Gemini behind a gateway.
_NO_END = frozenset({"error", "abort", "insufficient_system_resource", "network_error", "malformed_function_call"})
# Thoughts have no place in the protocol; each server has a field of its own, and some want it back as it was.
_THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class OpenAIChatReader:
    """Reads one answer: the first choice, whatever else is offered."""

    def __init__(self, model: str) -> None:
        self.whole = False
        self.settled = False
        self._model = model
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._thoughts: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._calls: list[_Call] = []
        self._places: dict[int, _Call] = {}
        self.usage = Usage()
        self._started = False
        self._served_by = ""
        self._id = ""
        self._stop = ""

    def read(self, event: SseEvent) -> str | None:
        """See `Reader`. Role-only and empty chunks bring nothing on."""
        if event.data.strip() == "[DONE]":
            # Some local servers never give a reason. Words are then the answer; a call could lack its end, and
            # without any words it is a relay's end mark under nothing.
            self.settled = True
            self.whole = self.whole or bool(self._text and not self._calls)
            return None
        chunk = load(event.data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk of the answer is no JSON object")  # noqa: TRY004 - the value is wrong
        if event.name == "error" or tells_of_error(chunk):
            raise StreamError(chunk)
        self._head(chunk)
        choice = part(chunk, "choices", 0)
        if not isinstance(choice, dict):
            return None
        word = self._delta(choice.get("delta") or choice.get("message"))
        self._end(choice, chunk)
        first, self._started = not self._started, True
        return word or ("" if first or self.whole else None)

    def read_whole(self, body: Mapping[str, Any]) -> None:
        """A completion in one piece."""
        if tells_of_error(body):
            raise StreamError(body)
        choice = part(body, "choices", 0)
        message = part(choice, "message")
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise ValueError("the answer is no chat completion")  # noqa: TRY004 - the value is wrong
        self._head(body)
        self._delta(message)
        self._end(choice, body)
        self._stop = self._stop or "stop"
        self.whole = self.settled = True

    def answer(self) -> Answer:
        """The answer with its wire message."""
        text, refusal = whole_text("".join(self._text)), whole_text("".join(self._refusal))
        finish = _FINISH.get(_bare(self._stop), FinishReason.STOP)
        wire: dict[str, Any] = {"role": "assistant", "content": text or None}
        blocks: list[Block] = list(self._opaque(wire))
        if text.strip():
            blocks.append(TextBlock(text))
        calls = self._tool_uses(wire)
        if finish in {FinishReason.STOP, FinishReason.TOOL_USE}:
            finish = FinishReason.TOOL_USE if calls else FinishReason.STOP
        if refusal and not calls and finish is FinishReason.STOP:
            finish = FinishReason.REFUSAL
        unfinished = bool(calls) and (calls[-1].arguments is None or not "".join(self._calls[-1].arguments).strip())
        return Answer(
            blocks=(*blocks, *calls),
            content=wire,
            model=self._model,
            finish=finish,
            usage=self.usage,
            served_by=self._served_by,
            id=self._id,
            stopped_by=whole_text(self._stop),
            said=refusal,
            last_call_cut=finish is FinishReason.LENGTH and unfinished,
        )

    def _head(self, chunk: Mapping[str, Any]) -> None:
        self._id = label(chunk.get("id")) or self._id
        self._served_by = label(chunk.get("model")) or self._served_by
        # The usual place; Groq's; Moonshot's.
        places = (chunk.get("usage"), part(chunk, "x_groq", "usage"), part(chunk, "choices", 0, "usage"))
        usage = next((place for place in places if isinstance(place, dict)), None)
        if usage is not None:
            self.usage = _counted(usage)

    def _end(self, choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> None:
        self._stop = words(choice.get("finish_reason")) or self._stop
        if _bare(self._stop) in _NO_END:
            told = next((place for place in (choice, chunk) if place.get("error")), None)
            said = f"the answer ended with {self._stop}"
            raise StreamError(told or {"error": {"code": _bare(self._stop), "message": said}})
        self.whole = self.whole or bool(self._stop)

    def _delta(self, delta: Any) -> str | None:
        """Take what a chunk brings; its word of progress."""
        if not isinstance(delta, dict):
            return None
        word = None
        for name in _THOUGHTS:
            if words(delta.get(name)):
                self._thoughts.setdefault(name, []).append(delta[name])
                word = "thinking"
        if isinstance(delta.get("reasoning_details"), list):
            self._details += delta["reasoning_details"]
        if refusal := words(delta.get("refusal")):
            self._refusal.append(refusal)
            word = "text"
        if text := _text(delta.get("content")):
            self._text.append(text)
            word = "text"
        calls = delta.get("tool_calls")
        if not isinstance(calls, list):
            calls = [{"index": 0, "function": delta["function_call"]}] if delta.get("function_call") else []
        for call in calls:
            word = self._call(call) or word
        return word

    def _call(self, delta: Any) -> str | None:
        if not isinstance(delta, dict):
            return None
        function = delta.get("function")
        name, arguments = words(part(function, "name")), part(function, "arguments")
        call = self._place(delta.get("index"), words(delta.get("id")), name)
        call.id = call.id or words(delta.get("id"))
        # The name comes once, or again with each piece; it does not come in pieces.
        fresh, call.name = bool(name and not call.name), call.name or name
        piece = arguments if isinstance(arguments, str) else dump(arguments).decode() if arguments else ""
        if piece:
            call.arguments.append(piece)
        return "tool_use" if piece or fresh else None

    def _place(self, index: Any, id_: str, name: str) -> _Call:
        """The call that a piece belongs to.

        By its index where there is one; but some servers give all calls of a reply the index 0, or none, and begin
        each with an id or a name of its own.
        """
        if isinstance(index, int) and not isinstance(index, bool):
            known = self._places.get(index)
            begins = known is None or bool(id_ and name and known.id and id_ != known.id)
        else:
            known = self._calls[-1] if self._calls else None
            begins = known is None or bool((id_ and id_ != known.id) or (name and not id_ and known.arguments))
            index = len(self._calls)
        if known is None or begins:
            known = _Call()
            self._calls.append(known)
            self._places[index] = known
        return known

    def _tool_uses(self, wire: dict[str, Any]) -> list[ToolUseBlock]:
        """The calls, and their form in the wire message: whatever came, it can be sent back."""
        taken: set[str] = set()
        calls: list[ToolUseBlock] = []
        sent: list[dict[str, Any]] = []
        for number, call in enumerate(self._calls):
            raw = whole_text("".join(call.arguments))
            arguments, name = arguments_of(raw), whole_text(call.name)
            id_ = distinct_id(call.id, taken, f"call_{self._id or 'made'}_{number}")
            good = raw if arguments is not None and raw.strip() else dump(sendable(arguments, raw)).decode()
            sent.append({"id": id_, "type": "function", "function": {"name": name, "arguments": good}})
            calls.append(ToolUseBlock(id_, name, arguments, raw if arguments is None else None))
        if sent:
            wire["tool_calls"] = sent
        return calls

    def _opaque(self, wire: dict[str, Any]) -> list[OpaqueBlock]:
        """Thoughts, in the server's own field."""
        thoughts: dict[str, Any] = {name: whole_text("".join(said)) for name, said in self._thoughts.items()}
        if self._details:
            thoughts["reasoning_details"] = whole_json(self._details)
        wire.update(thoughts)
        return [OpaqueBlock(PROTOCOL, thoughts)] if thoughts else []


def _bare(stop: str) -> str:
    """A finish reason as the table has it: `content_filter: PROHIBITED_CONTENT` is Google's form."""
    return stop.partition(":")[0].strip().lower()


def _text(content: Any) -> str:
    """Text, as a string or as a list of parts."""
    if isinstance(content, list):
        return "".join(words(part(piece, "text")) for piece in content)
    return words(content)


def _counted(usage: Mapping[str, Any]) -> Usage:
    """Usage in our count. The protocol counts cached tokens as part of the prompt; ours leaves them out.

    xAI and Google leave thoughts out of the completion's figure, but not out of the total.
    """
    prompt = count(usage.get("prompt_tokens")) or 0
    completion = count(usage.get("completion_tokens")) or 0
    total = count(usage.get("total_tokens")) or 0
    details = usage.get("prompt_tokens_details")
    figures = (part(details, "cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    read = min(next((tokens for tokens in map(count, figures) if tokens is not None), 0), prompt)
    written = min(count(part(details, "cache_write_tokens")) or 0, prompt - read)
    return Usage(prompt - read - written, max(completion, total - prompt), read, written)
