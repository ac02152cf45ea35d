"""Foreign answers: protocols without an adapter, read for how they ended; what they say is not looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harnessd.domain.messages import FinishReason, TextBlock, Usage
from harnessd.providers.answer import Answer, Reader, StreamError
from harnessd.providers.anthropic_stream import AnthropicReader
from harnessd.providers.evidence import tells_of_error
from harnessd.providers.openai_chat_stream import OpenAIChatReader
from harnessd.providers.openai_responses_stream import OpenAIResponsesReader
from harnessd.providers.sse import SseEvent
from harnessd.providers.wire import count, dump, load, part, whole_text, words

# Where services say why an answer ended: Gemini; Bedrock whole and streamed; Cohere; Ollama; TGI; others.
_STOPS: tuple[tuple[str | int, ...], ...] = (
    ("candidates", 0, "finishReason"),
    ("stopReason",),
    ("messageStop", "stopReason"),
    ("stop_reason",),
    ("delta", "stop_reason"),
    ("finish_reason",),
    ("delta", "finish_reason"),
    ("generations", 0, "finish_reason"),
    ("details", "finish_reason"),
    ("done_reason",),
    ("outputs", 0, "stop_reason"),
    ("results", 0, "completionReason"),
)
_FINISH: Mapping[FinishReason, frozenset[str]] = {
    FinishReason.LENGTH: frozenset(
        {"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"}
    ),
    FinishReason.TOOL_USE: frozenset({"tool_use", "tool_call", "tool_calls"}),
    FinishReason.REFUSAL: frozenset({"refusal"}),
    FinishReason.CONTENT_FILTER: frozenset(
        {
            *("safety", "image_safety", "recitation", "blocklist", "prohibited_content", "spii", "model_armor"),
            *("content_filter", "content_filtered", "guardrail_intervened", "error_toxic", "language", "blocked"),
        }
    ),
}
_BLOCKED: tuple[tuple[str | int, ...], ...] = (
    ("promptFeedback", "blockReason"),
    ("prompt_feedback", "block_reason"),
)
_SIZES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("usageMetadata", "promptTokenCount"), ("usageMetadata", "candidatesTokenCount")),
    (("usage", "inputTokens"), ("usage", "outputTokens")),
    (("metadata", "usage", "inputTokens"), ("metadata", "usage", "outputTokens")),
    (("prompt_eval_count",), ("eval_count",)),
    (("meta", "tokens", "input_tokens"), ("meta", "tokens", "output_tokens")),
)
# Names of stops that tell of a fault: Gemini's broken calls, Cohere's and DeepSeek's errors.
_FAULTY = ("malformed", "unexpected_tool_call", "error", "network_error", "insufficient_system_resource", "abort")


class ForeignReader:
    """Reads the end of an answer. One that looks like a known protocol is read as that."""

    def __init__(self, model: str) -> None:
        self.whole = False
        self.settled = False
        self.usage = Usage()
        self._model = model
        self._known: Reader | None = None
        self._seen = False
        self._stop = ""
        self._said: list[str] = []

    def read(self, event: SseEvent) -> str | None:
        """See `Reader`."""
        if self._known is None and not self._seen and event.data.strip() != "[DONE]":
            self._known = _known(load(event.data), self._model)
        if self._known is not None:
            word = self._known.read(event)
            self._follow(self._known)
            return word
        if event.data.strip() == "[DONE]":
            self.whole = self.settled = True
            return ""
        data = load(event.data)
        if not isinstance(data, dict):
            raise ValueError("an event of the answer is no JSON object")  # noqa: TRY004 - the value is wrong
        if event.name == "error":
            raise StreamError(data)
        self._seen = True
        self._take(data)
        if self._stop or data.get("done") is True:
            self.whole = True
        return "text"

    def read_whole(self, body: Mapping[str, Any]) -> None:
        """A document in one piece."""
        self._known = _known(body, self._model)
        if self._known is not None:
            self._known.read_whole(body)
            self._follow(self._known)
            return
        self._take(body)
        self.whole = self.settled = True

    def read_documents(self, raw: bytes) -> bool:
        """A stream of JSON documents: a line each (Ollama), or the items of one list (Gemini). False if it is none."""
        text = raw.decode("utf-8", "replace").strip()
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            documents = load(text) if text.startswith("[") else [load(line) for line in lines if len(lines) > 1]
        except ValueError:
            return False
        if not isinstance(documents, list) or not documents or not all(isinstance(item, dict) for item in documents):
            return False
        for document in documents:
            self.read(SseEvent("", dump(document).decode()))
        return True

    def answer(self) -> Answer:
        """The answer's end; its blocks only tell that something was said."""
        if self._known is not None:
            return self._known.answer()
        text = whole_text("".join(self._said))
        finish = next((finish for finish, stops in _FINISH.items() if self._stop in stops), FinishReason.STOP)
        silent = finish is FinishReason.LENGTH and not text.strip()
        return Answer(
            blocks=() if silent else (TextBlock(text or "(not read)"),),
            content=None,
            model=self._model,
            finish=finish,
            usage=self.usage,
            stopped_by=whole_text(self._stop),
        )

    def _follow(self, known: Reader) -> None:
        self.whole, self.settled, self.usage = known.whole, known.settled, known.usage

    def _take(self, data: Mapping[str, Any]) -> None:
        """One event or document. Raises StreamError where it tells of a fault."""
        if data.get("errors") or data.get("type") == "error" or (not _answers(data) and tells_of_error(data)):
            raise StreamError(data)
        if any(words(part(data, *path)) for path in _BLOCKED):
            self._stop = "blocked"
        stop = next((word for path in _STOPS if (word := words(part(data, *path)))), "")
        if stop:
            self._stop = stop.lower()
        if self._stop.startswith(_FAULTY) and self._stop not in _FINISH[FinishReason.CONTENT_FILTER]:
            said = words(part(data, "candidates", 0, "finishMessage")) or f"the answer ended with {stop}"
            raise StreamError({"error": {"code": self._stop, "message": said}})
        self._said += list(_texts(data))
        for sent, made in _SIZES:
            if (tokens := count(part(data, *sent))) is not None:
                self.usage = Usage(tokens, count(part(data, *made)) or 0)


def _known(value: Any, model: str) -> Reader | None:
    """The reader of a known protocol that a first event or a document looks like."""
    if not isinstance(value, dict):
        return None
    kind = words(value.get("type"))
    if "choices" in value:
        return OpenAIChatReader(model)
    if kind == "message_start" or (kind == "message" and isinstance(value.get("content"), list)):
        return AnthropicReader(model)
    if kind.startswith("response.") or value.get("object") == "response":
        return OpenAIResponsesReader(model)
    return None


def _answers(data: Mapping[str, Any]) -> bool:
    """Whether the words under `message` and its like are an answer: Cohere and Ollama put theirs there."""
    return not data.get("error") and (isinstance(data.get("message"), dict) or any(part(data, *p) for p in _STOPS))


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Words under `text` and `content`, wherever a protocol puts them."""
    if depth > 6:
        return
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str) and name in {"text", "content", "generated_text", "response"}:
                yield item
            else:
                yield from _texts(item, depth + 1)
    elif isinstance(value, list):
        for item in value[:50]:
            yield from _texts(item, depth + 1)
