"""OpenAI Responses, the answer: one document, or the stream of numbered events in the order the service sends them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harnessd.simulator.answer import Answer, Bill, PlannedCall
from harnessd.simulator.protocols import responses_rules
from harnessd.simulator.protocols.chat_answers import OpenAIChat
from harnessd.simulator.protocols.wire import Limits, Problem, pieces, sse
from harnessd.simulator.transcript import Transcript, digest_of

# Why an answer that is no error is not whole.
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class OpenAIResponses(OpenAIChat):
    """The Responses API: keys, headers and named errors are those of the same service's older one."""

    name = "openai-responses"

    def read(self, body: Mapping[str, Any], limits: Limits) -> Transcript:
        return responses_rules.read(body, limits)

    def problem(self, name: str, transcript: Transcript | None, limits: Limits) -> Problem:
        if name == "overflow":
            words = "Your input exceeds the context window of this model. Please adjust your input and try again."
            return Problem(words, code="context_length_exceeded", param="input")
        return super().problem(name, transcript, limits)

    def error_frame(self, problem: Problem, request_id: str) -> bytes:
        body = self.error_body(problem, request_id) | {"type": "error", "sequence_number": 2}
        return sse(body, "error")

    def whole(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> dict[str, Any]:
        output = [finished for _, finished, _ in items_of(answer, request_id)]
        return response_of(answer, transcript, cost, request_id) | {"output": output}

    def frames(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> Sequence[bytes]:
        running = response_of(answer, transcript, None, request_id)
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": running},
            {"type": "response.in_progress", "response": running},
        ]
        output = []
        for index, (opening, finished, inner) in enumerate(items_of(answer, request_id)):
            place = {"output_index": index}
            events.append({"type": "response.output_item.added", "item": opening} | place)
            events += [event | place | {"item_id": finished["id"]} for event in inner]
            events.append({"type": "response.output_item.done", "item": finished} | place)
            output.append(finished)
        if not answer.without_finish:
            ended = response_of(answer, transcript, cost, request_id) | {"output": output}
            events.append({"type": f"response.{ended['status']}", "response": ended})
        return [sse(event | {"sequence_number": n}, event["type"]) for n, event in enumerate(events)]


def response_of(answer: Answer, transcript: Transcript, cost: Bill | None, request_id: str) -> dict[str, Any]:
    """The response object: in progress without a bill, ended with one."""
    reason = INCOMPLETE.get(answer.finish) if cost else None
    return {
        "id": f"resp_{digest_of(request_id)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress" if cost is None else "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "max_output_tokens": transcript.max_tokens,
        "model": transcript.model,
        "output": [],
        "parallel_tool_calls": True,
        "store": False,
        "usage": usage_of(cost) if cost else None,
    }


def usage_of(cost: Bill) -> dict[str, Any]:
    """`input_tokens` counts the cached ones too."""
    prompt = cost.fresh + cost.cache_read + cost.cache_write
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cost.cache_read},
        "output_tokens": cost.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + cost.output,
    }


ItemEvents = tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]


def items_of(answer: Answer, request_id: str) -> Iterator[ItemEvents]:
    """Each output item: as it opens, as it ends, and the events between."""
    if answer.think:
        yield thought(answer.think, request_id)
    if answer.say or answer.finish == "refusal":
        yield words(answer, request_id)
    for call in answer.calls:
        yield call_item(call)


def thought(text: str, request_id: str) -> ItemEvents:
    """A reasoning item; its content is sealed, its summary is in words."""
    whole = {"id": f"rs_{digest_of([request_id, text])}", "type": "reasoning", "summary": []}
    summary = [{"type": "summary_text", "text": text}]
    deltas = [
        {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": part}
        for part in pieces(text, 24)
    ]
    return whole, whole | {"summary": summary, "encrypted_content": responses_rules.seal(text)}, deltas


def words(answer: Answer, request_id: str) -> ItemEvents:
    """A message item: text, or a refusal."""
    refused = answer.finish == "refusal"
    text = answer.say or "I can't help with that."
    part: dict[str, Any] = (
        {"type": "refusal", "refusal": text} if refused else {"type": "output_text", "annotations": [], "text": text}
    )
    field = "refusal" if refused else "text"
    kind = "response.refusal" if refused else "response.output_text"
    opening = {"id": f"msg_{digest_of([request_id, text])}", "type": "message", "role": "assistant", "content": []}
    place = {"content_index": 0}
    events: list[dict[str, Any]] = [{"type": "response.content_part.added", "part": part | {field: ""}} | place]
    events += [{"type": f"{kind}.delta", "delta": piece} | place for piece in pieces(text, 16)]
    events.append({"type": f"{kind}.done", field: text} | place)
    events.append({"type": "response.content_part.done", "part": part} | place)
    status = "incomplete" if answer.finish in INCOMPLETE and not answer.calls else "completed"
    return opening | {"status": "in_progress"}, opening | {"status": status, "content": [part]}, events


def call_item(call: PlannedCall) -> ItemEvents:
    """A function call item; `id` names the item, `call_id` the call."""
    item = {
        "id": f"fc_{digest_of(call.id)}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.tool,
        "arguments": "",
    }
    kind = "response.function_call_arguments"
    events: list[dict[str, Any]] = [{"type": f"{kind}.delta", "delta": part} for part in pieces(call.json, 14)]
    events.append({"type": f"{kind}.done", "arguments": call.json})
    return item | {"status": "in_progress"}, item | {"arguments": call.json, "status": "completed"}, events
