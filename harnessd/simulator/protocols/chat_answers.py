"""OpenAI Chat Completions, the answer: one document, or the stream of chunks in the order the service sends them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.simulator.answer import Answer, Bill
from harnessd.simulator.protocols import chat_rules
from harnessd.simulator.protocols.wire import Headers, Limits, Problem, Refused, pieces, sse
from harnessd.simulator.transcript import Transcript, digest_of

FINISH_REASONS = {
    "stop": "stop",
    "tool_use": "tool_calls",
    "length": "length",
    "refusal": "stop",
    "content_filter": "content_filter",
}
PROBLEMS: Mapping[str, Problem] = {
    "rate_limited": Problem(
        "Rate limit reached for requests per min (RPM): Limit 500, Used 500, Requested 1. Please try again in 120ms.",
        429,
        "requests",
        "rate_limit_exceeded",
    ),
    "overloaded": Problem(
        "The server is currently overloaded with other requests. Sorry about that! "
        "You can retry your request, or contact us through our help center if the error persists.",
        503,
        "server_error",
        "server_overloaded",
    ),
    "server_error": Problem(
        "The server had an error while processing your request. Sorry about that!", 500, "server_error"
    ),
    "unavailable": Problem("The engine is currently unavailable, please try again later.", 503, "server_error"),
    "timeout": Problem("Request timed out.", 504, "server_error"),
    "quota": Problem(
        "You exceeded your current quota, please check your plan and billing details.",
        429,
        "insufficient_quota",
        "insufficient_quota",
    ),
    "billing": Problem("Your account is not active, please check your billing details.", 429, "billing_not_active"),
    "auth": Problem("Incorrect API key provided.", 401, "invalid_request_error", "invalid_api_key"),
    "forbidden": Problem("You are not allowed to sample from this model.", 403, "invalid_request_error"),
    "too_large": Problem("Request entity too large.", 413, "invalid_request_error", "request_too_large"),
    "invalid_request": Problem(
        "Invalid value for 'content': expected a string, got null.", param="messages.[0].content"
    ),
}


class OpenAIChat:
    """Chat Completions."""

    name = "openai-chat"

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("authorization", "").removeprefix("Bearer ").strip() or None

    def check_head(self, headers: Mapping[str, str], limits: Limits) -> None:
        key = self.key_of(headers)
        if limits.key is None or key == limits.key:
            return
        if key is None:
            words = (
                "You didn't provide an API key. You need to provide your API key in an Authorization header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY)."
            )
            raise Refused(Problem(words, 401))
        # The real service shows the ends of the key it was given, so a client must not print this blindly.
        shown = f"{key[:4]}{'*' * 8}{key[-4:]}" if len(key) > 12 else "*" * 8
        raise Refused(Problem(f"Incorrect API key provided: {shown}.", 401, code="invalid_api_key"))

    def read(self, body: Mapping[str, Any], limits: Limits) -> Transcript:
        return chat_rules.read(body, limits)

    def problem(self, name: str, transcript: Transcript | None, limits: Limits) -> Problem:
        if name == "overflow":
            tokens = max(limits.window + 8_310, transcript.tokens if transcript else 0)
            words = (
                f"This model's maximum context length is {limits.window} tokens. However, your messages resulted in "
                f"{tokens} tokens. Please reduce the length of the messages."
            )
            return Problem(words, code="context_length_exceeded", param="messages")
        return PROBLEMS[name]

    def error_body(self, problem: Problem, request_id: str) -> dict[str, Any]:  # noqa: ARG002 - the port's form
        error = {"message": problem.message, "type": problem.type, "param": problem.param, "code": problem.code}
        return {"error": error}

    def error_frame(self, problem: Problem, request_id: str) -> bytes:
        return sse(self.error_body(problem, request_id))

    def headers(self, request_id: str, transcript: Transcript | None) -> Headers:  # noqa: ARG002 - the port's form
        return [
            ("x-request-id", request_id),
            ("openai-version", "2020-10-01"),
            ("openai-processing-ms", "12"),
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-limit-tokens", "200000"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-remaining-tokens", "199000"),
            # Durations, not times: the other form of naming a reset.
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ]

    def whole(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> dict[str, Any]:
        refused = answer.finish == "refusal"
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if refused or not answer.say else answer.say,
            "refusal": (answer.say or "I can't help with that.") if refused else None,
        }
        if answer.think and refused is False:
            message["reasoning_content"] = answer.think
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": call.json}}
                for call in answer.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_of(answer)}
        head = head_of("chat.completion", transcript, request_id)
        return head | {"choices": [choice], "usage": usage_of(cost)}

    def frames(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> Sequence[bytes]:
        head = head_of("chat.completion.chunk", transcript, request_id)
        # With `include_usage` every chunk bears a null usage but the one after the last choice.
        blank: dict[str, Any] = {"usage": None} if transcript.usage_in_stream else {}

        def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
            return sse(head | {"choices": [choice]} | blank)

        out = [chunk({"role": "assistant", "content": "" if not answer.calls else None, "refusal": None})]
        out += [chunk(delta) for delta in deltas_of(answer)]
        if not answer.without_finish:
            out.append(chunk({}, finish_of(answer)))
        if transcript.usage_in_stream:
            out.append(sse(head | {"choices": [], "usage": usage_of(cost)}))
        out.append(sse("[DONE]"))
        return out

    def ping(self) -> bytes:
        return b": keep-alive\n\n"

    def bad_json(self, why: str) -> Problem:  # noqa: ARG002 - this service does not say where
        return Problem(
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP "
            "library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
        )

    def unknown_model(self, model: str) -> Problem:
        words = f"The model `{model}` does not exist or you do not have access to it."
        return Problem(words, 404, code="model_not_found")

    def too_large(self) -> Problem:
        return PROBLEMS["too_large"]


def head_of(kind: str, transcript: Transcript, request_id: str) -> dict[str, Any]:
    """What every chunk and the whole document bear."""
    return {
        "id": f"chatcmpl-{digest_of(request_id)}",
        "object": kind,
        "created": int(time.time()),
        "model": transcript.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulator",
    }


def finish_of(answer: Answer) -> str | None:
    """Why the answer ended, in this service's words."""
    return None if answer.without_finish else FINISH_REASONS[answer.finish]


def deltas_of(answer: Answer) -> list[dict[str, Any]]:
    """The changing part of each chunk. A call's id and name come once; its arguments come in pieces."""
    out: list[dict[str, Any]] = [{"reasoning_content": part} for part in pieces(answer.think, 24)]
    if answer.finish == "refusal":
        return out + [{"refusal": part} for part in pieces(answer.say or "I can't help with that.", 16)]
    out += [{"content": part} for part in pieces(answer.say, 16)]
    for index, call in enumerate(answer.calls):
        opening = {"name": call.tool, "arguments": ""}
        out.append({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": opening}]})
        out += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in pieces(call.json, 14)]
    return out


def usage_of(cost: Bill) -> dict[str, Any]:
    """`prompt_tokens` counts the cached ones too."""
    prompt = cost.fresh + cost.cache_read + cost.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": cost.output,
        "total_tokens": prompt + cost.output,
        "prompt_tokens_details": {"cached_tokens": cost.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
