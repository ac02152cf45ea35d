"""Answer: what a service has said so far, and what it amounts to when it ended: a reply or a Failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from harnessd.domain.failure import Failure
from harnessd.domain.messages import Block, FinishReason, Message, ModelReply, ToolUseBlock, Usage
from harnessd.providers.evidence import Witness, Words, request_id
from harnessd.providers.sse import SseEvent


class StreamError(Exception):
    """The service told of an error inside its answer; `body` is what it said."""

    def __init__(self, body: Any) -> None:
        super().__init__("error inside the answer")
        self.body = body


class Reader(Protocol):
    """A protocol's sans-IO half: events in, an answer out. ValueError means: this is not the protocol."""

    whole: bool  # the answer is whole; only figures about it may still come
    settled: bool  # the protocol's end mark has come

    @property
    def usage(self) -> Usage:
        """The tokens told so far; a broken answer costs too."""

    def read(self, event: SseEvent) -> str | None:
        """One word of progress; empty for a sign of life that is none; None for an event that brings nothing on.

        Raises StreamError, ValueError.
        """

    def read_whole(self, body: Mapping[str, Any]) -> None:
        """An answer that came as one JSON body. Raises StreamError, ValueError."""

    def answer(self) -> Answer:
        """The answer, when it is whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        content: the assistant message in the protocol's own form, as it must be sent back.
        model: the configured name of the model, for `Message.wire`.
        stopped_by: the protocol's own word for the end.
        said: the provider's words about a refusal, where it gave any.
    """

    blocks: tuple[Block, ...]
    content: Any
    model: str
    finish: FinishReason
    usage: Usage
    served_by: str = ""
    id: str = ""
    stopped_by: str = ""
    said: str = ""
    last_call_cut: bool = False


_SENTENCES: Mapping[FinishReason, str] = {
    FinishReason.CONTENT_FILTER: "the service's content filter withheld the answer",
    FinishReason.REFUSAL: "the model refused",
    FinishReason.LENGTH: "the answer reached its length limit before it said anything",
}


def conclude(answer: Answer, witness: Witness, status: int, headers: Mapping[str, str]) -> ModelReply | Failure:
    """A reply, or the Failure that a whole answer can still be."""
    sentence = _complaint(answer, witness)
    if sentence is None:
        wire = {"protocol": witness.protocol, "model": answer.model, "content": answer.content}
        message = Message("assistant", answer.blocks, wire)
        return ModelReply(
            message,
            answer.finish,
            answer.usage,
            answer.served_by,
            request_id=request_id(headers) or answer.id,
            marks=() if answer.stopped_by else ("finish_reason_missing",),
        )
    failure = witness.complete(sentence, Words(code=_code(answer)), status, headers)
    return replace(
        failure,
        finish=answer.finish.value,
        call_cut=answer.last_call_cut,
        window_used=witness.window_used(_size(answer.usage)),
        request_id=failure.request_id or answer.id,
    )


def _complaint(answer: Answer, witness: Witness) -> str | None:
    """What is wrong with a whole answer, or None."""
    used = witness.window_used(_size(answer.usage)) or 0.0
    if answer.finish in {FinishReason.CONTENT_FILTER, FinishReason.REFUSAL}:
        sentence = _SENTENCES[answer.finish]
        return f"{sentence}: {answer.said}" if answer.said else sentence
    if answer.last_call_cut:
        name = next((block.name for block in reversed(answer.blocks) if isinstance(block, ToolUseBlock)), "")
        return f"the answer reached its length limit in the middle of a call of {name!r}"
    if used > 1.0:
        # Some services cut the front of a prompt that is too long and say nothing; the answer is to something else.
        return f"the service counted {_size(answer.usage)} tokens of input, more than the window of {witness.window}"
    # Others leave no room for an answer and call that a length limit.
    silent = not answer.blocks and answer.finish is FinishReason.LENGTH
    if silent and (used >= 0.99 or _code(answer)):
        return _SENTENCES[FinishReason.LENGTH]
    return None


def _code(answer: Answer) -> str | None:
    """Anthropic's name for a window that was full before the answer's end is a stop reason, not an error code."""
    return answer.stopped_by if answer.stopped_by.endswith("context_window_exceeded") else None


def _size(usage: Usage) -> int:
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
