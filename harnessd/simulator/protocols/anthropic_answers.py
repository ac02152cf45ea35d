"""Anthropic Messages, the answer: one document, or the stream of events in the order the service sends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from harnessd.simulator.answer import Answer, Bill
from harnessd.simulator.protocols import anthropic_rules
from harnessd.simulator.protocols.wire import Headers, Limits, Problem, Refused, pieces, sse
from harnessd.simulator.transcript import Transcript, digest_of

STOP_REASONS = {
    "stop": "end_turn",
    "tool_use": "tool_use",
    "length": "max_tokens",
    "refusal": "refusal",
    "content_filter": "refusal",
}
PROBLEMS: Mapping[str, Problem] = {
    "rate_limited": Problem(
        "This request would exceed your organization's rate limit of 4,000 requests per minute.",
        429,
        "rate_limit_error",
    ),
    "overloaded": Problem("Overloaded", 529, "overloaded_error"),
    "server_error": Problem("Internal server error", 500, "api_error"),
    "unavailable": Problem("Service temporarily unavailable", 503, "api_error"),
    "timeout": Problem("Request timed out", 504, "timeout_error"),
    "quota": Problem(
        "You have reached your specified API usage limits. You will regain access at the start of next month.",
        429,
        "rate_limit_error",
        details={"error_code": "enforced_spend_limit_reached"},
    ),
    "billing": Problem(
        "Your credit balance is too low to access the Anthropic API. "
        "Please go to Plans & Billing to upgrade or purchase credits."
    ),
    "auth": Problem("invalid x-api-key", 401, "authentication_error"),
    "forbidden": Problem(
        "Your API key does not have permission to use the specified resource.", 403, "permission_error"
    ),
    "too_large": Problem("Request exceeds the maximum size", 413, "request_too_large"),
    "invalid_request": Problem("messages.0.content.0: Input should be a valid dictionary"),
}


class Anthropic:
    """The Messages API."""

    name = "anthropic"

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
        return headers.get("x-api-key") or bearer or None

    def check_head(self, headers: Mapping[str, str], limits: Limits) -> None:
        key = self.key_of(headers)
        if limits.key is not None and key is None:
            raise Refused(Problem("x-api-key header is required", 401, "authentication_error"))
        if limits.key is not None and key != limits.key:
            raise Refused(PROBLEMS["auth"])
        if "anthropic-version" not in headers:
            raise Refused(Problem("anthropic-version: header is required"))

    def read(self, body: Mapping[str, Any], limits: Limits) -> Transcript:
        return anthropic_rules.read(body, limits)

    def problem(self, name: str, transcript: Transcript | None, limits: Limits) -> Problem:
        if name == "overflow":
            tokens = max(limits.window + 8_310, transcript.tokens if transcript else 0)
            return Problem(f"prompt is too long: {tokens} tokens > {limits.window} maximum")
        return PROBLEMS[name]

    def error_body(self, problem: Problem, request_id: str) -> dict[str, Any]:
        error: dict[str, Any] = {"type": problem.type, "message": problem.message}
        if problem.details:
            error["details"] = dict(problem.details)
        return {"type": "error", "error": error, "request_id": request_id}

    def error_frame(self, problem: Problem, request_id: str) -> bytes:
        return sse(self.error_body(problem, request_id), "error")

    def headers(self, request_id: str, transcript: Transcript | None) -> Headers:  # noqa: ARG002 - the port's form
        # RFC 3339 in whole seconds: the form in which this service names a reset.
        reset = (datetime.now(UTC) + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
        found: Headers = [("request-id", request_id), ("anthropic-organization-id", "simulated-organization")]
        for what, limit in (
            ("requests", 4000),
            ("tokens", 480_000),
            ("input-tokens", 400_000),
            ("output-tokens", 80_000),
        ):
            found += [
                (f"anthropic-ratelimit-{what}-limit", str(limit)),
                (f"anthropic-ratelimit-{what}-remaining", str(limit - 1)),
                (f"anthropic-ratelimit-{what}-reset", reset),
            ]
        return found

    def whole(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if answer.think:
            signature = anthropic_rules.sign(answer.think)
            content.append({"type": "thinking", "thinking": answer.think, "signature": signature})
        if answer.say:
            content.append({"type": "text", "text": answer.say})
        content += [
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.tool,
                "input": dict(call.arguments) if call.raw is None else call.raw,
            }
            for call in answer.calls
        ]
        return {
            **self._message(transcript, request_id),
            "content": content,
            "stop_reason": None if answer.without_finish else STOP_REASONS[answer.finish],
            "usage": usage_of(cost, cost.output),
        }

    def _message(self, transcript: Transcript, request_id: str) -> dict[str, Any]:
        return {
            "id": f"msg_{digest_of(request_id)}",
            "type": "message",
            "role": "assistant",
            "model": transcript.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def frames(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> Sequence[bytes]:
        start = self._message(transcript, request_id) | {"usage": usage_of(cost, 1)}
        out = [event({"type": "message_start", "message": start})]
        for index, (opening, deltas) in enumerate(blocks_of(answer)):
            out.append(event({"type": "content_block_start", "index": index, "content_block": opening}))
            if index == 0:
                out.append(self.ping())
            out += [event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
            out.append(event({"type": "content_block_stop", "index": index}))
        reason = None if answer.without_finish else STOP_REASONS[answer.finish]
        ending = {"stop_reason": reason, "stop_sequence": None}
        # A running total: a reader that adds it to the first figure counts twice.
        usage = {"output_tokens": cost.output}
        out.append(event({"type": "message_delta", "delta": ending, "usage": usage}))
        out.append(event({"type": "message_stop"}))
        return out

    def ping(self) -> bytes:
        return event({"type": "ping"})

    def bad_json(self, why: str) -> Problem:
        return Problem(f"The request body is not valid JSON: {why}")

    def unknown_model(self, model: str) -> Problem:
        return Problem(f"model: {model}", 404, "not_found_error")

    def too_large(self) -> Problem:
        return PROBLEMS["too_large"]


def event(data: Mapping[str, Any]) -> bytes:
    """An event bears its type twice: on its own line and in its data."""
    return sse(data, data["type"])


def usage_of(cost: Bill, output: int) -> dict[str, Any]:
    """`input_tokens` leaves the cache out."""
    return {
        "input_tokens": cost.fresh,
        "cache_creation_input_tokens": cost.cache_write,
        "cache_read_input_tokens": cost.cache_read,
        "output_tokens": output,
        "service_tier": "standard",
    }


def blocks_of(answer: Answer) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block's opening and its deltas."""
    if answer.think:
        deltas = [{"type": "thinking_delta", "thinking": part} for part in pieces(answer.think, 24)]
        deltas.append({"type": "signature_delta", "signature": anthropic_rules.sign(answer.think)})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if answer.say:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in pieces(answer.say, 16)]
    for call in answer.calls:
        parts = ["", *pieces(call.json, 14)]
        yield (
            {"type": "tool_use", "id": call.id, "name": call.tool, "input": {}},
            [{"type": "input_json_delta", "partial_json": part} for part in parts],
        )
