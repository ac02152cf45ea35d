"""Http: the `http_request` tool: one request to a checked address, its answer, and what is known without one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from harnessd.domain import wait_hints
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import CallClocks, ToolContext, ToolOutcome
from harnessd.net import CallTimer, Incoming, Outgoing, TransportError
from harnessd.net.addresses import NotReachable, Target
from harnessd.net.strangers import NOT_CONNECTED, Strangers
from harnessd.tools.answers import NOTES_ROOM, clip, failed, well_formed
from harnessd.tools.arguments import without_time

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110 section 9.2.1: asked for without changing anything
BODY_MAX = 10 * 1024 * 1024  # bytes of an answer that are read; the rest is left on the wire
SENT_MAX = 10 * 1024 * 1024
HOPS_MAX = 5
CONNECT_S = 10.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# 500, 502 and 504 may come after the receiver acted, or from a gateway that lost the receiver's answer.
_UNSURE = frozenset({500, 502, 504})
# Refused for now, or because the same key is under way (409): the act is still to be told of under its key.
_OPEN = frozenset({408, 409, 425})
# What frames the request or names its receiver is ours to say; so is the key: one that the model could choose would
# let it take another task's act for its own.
_OURS = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"),
        *("expect", "idempotency-key"),
    }
)
# What names one sending, and not what is sent.
_SENT_ANEW = frozenset(
    {
        *("x-request-id", "x-correlation-id", "request-id", "traceparent", "tracestate", "date", "user-agent"),
        *("x-idempotency-key", "accept", "accept-encoding", "accept-language", "cache-control"),
    }
)
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})
_SHOWN = ("content-type", "location", "retry-after", "etag", "last-modified", "link", "www-authenticate")


@dataclass(slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    hops: tuple[str, ...] = ()
    onward: Target | None = None  # where it sends us
    body: bytearray = field(default_factory=bytearray)
    note: str = ""  # why the body is not whole


class HttpRequest:
    """Tool `http_request`."""

    # Undone by nobody; what a method means for a repeat is policy's word (the shipped rule makes GET and HEAD reads).
    effect = EffectClass.IRREVERSIBLE
    spec = ToolSpec(
        "http_request",
        "Send one HTTP request and get status, headers and body. Addresses on private networks cannot be reached. A "
        "request that changes something is sent once: where the same act is asked for again, the first answer is given "
        "again. Redirects are followed for GET, HEAD and OPTIONS only.",
        {
            "type": "object",
            "properties": {
                "method": {"enum": ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]},
                "url": {"type": "string", "minLength": 8, "maxLength": 8192, "description": "http:// or https://"},
                "headers": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 50},
                "body": {"type": "string", "description": "Sent as it is."},
                "json": {"description": "Sent as JSON, with its Content-Type; instead of body."},
                "timeout_s": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds for the whole call."},
            },
            "required": ["method", "url"],
            "additionalProperties": False,
        },
    )

    def __init__(self, strangers: Strangers) -> None:
        self._strangers = strangers

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        problem = _problem(arguments)
        if problem:
            return self._refused(problem)
        wanted = float(arguments.get("timeout_s") or context.limits.timeout_s)
        timeout_s = min(wanted, max(context.limits.timeout_max_s, context.limits.timeout_s))
        try:
            answer = await self._ask(arguments, context, timeout_s)
        except ValueError as error:  # of the address, ours or a redirect's
            return self._refused(f"url: {error}")
        except TransportError as error:
            return _no_answer(arguments["method"], error, timeout_s)
        if isinstance(answer, NotReachable):
            advice = "Use a public address. Which private ones may be reached is said in harness.yaml (http_request)."
            return failed(self.spec.name, ErrorClass.PERMISSION_DENIED, answer.sentence, advice)
        return await asyncio.to_thread(_told, arguments["method"], answer, context)

    def _refused(self, problem: str) -> Failure:
        return failed(self.spec.name, ErrorClass.INVALID_ARGUMENTS, problem, "Correct the arguments and call again.")

    async def _ask(
        self, arguments: Mapping[str, Any], context: ToolContext, timeout_s: float
    ) -> _Answer | NotReachable:
        """The last answer of the chain of redirects, each hop's address checked anew."""
        method, url = arguments["method"], arguments["url"]
        headers, body = _request(arguments, context.key)
        clocks = CallClocks(min(CONNECT_S, timeout_s), timeout_s, timeout_s, timeout_s)
        first = Target.parse(url)
        answer, target = _Answer(0, {}, onward=first), first
        try:
            async with CallTimer(clocks) as timer:
                while answer.onward is not None:
                    target = answer.onward
                    addresses = await self._strangers.look_up(target)
                    if isinstance(addresses, NotReachable):
                        return addresses
                    kept = headers if _same_origin(first, target) else _without_secrets(headers)
                    outgoing = Outgoing(method, str(target.url), kept, body)
                    async with self._strangers.open(target, addresses, outgoing, timer) as incoming:
                        answer = _answered(method, incoming, target, answer.hops)
                        await _read(answer, incoming, timer)
        except TransportError as error:
            if answer.onward is not None:
                raise
            # The status line has told the outcome; what breaks after it is a note.
            long = f"the answer is longer than {BODY_MAX // 2**20} MiB and was not read further"
            answer.note = long if error.word == "too_large" else f"the answer is not whole: {error.message}"
        return answer


def _answered(method: str, incoming: Incoming, target: Target, hops: tuple[str, ...]) -> _Answer:
    answer = _Answer(incoming.status, incoming.headers, hops)
    location = incoming.headers.get("location")
    if location and method in SAFE and incoming.status in _REDIRECTS and len(hops) < HOPS_MAX:
        answer.onward = Target.parse(urljoin(str(target.url), location))
        answer.hops = (*hops, str(answer.onward.url))
    return answer


async def _read(answer: _Answer, incoming: Incoming, timer: CallTimer) -> None:
    """The body of the last answer, as far as it comes."""
    if answer.onward is None:
        async with aclosing(incoming.chunks(BODY_MAX)) as chunks:
            async for chunk in chunks:
                timer.useful()
                answer.body += chunk


def _problem(arguments: Mapping[str, Any]) -> str:
    if "body" in arguments and "json" in arguments:
        return "json: only one of body and json can be sent"
    if arguments["method"] in SAFE and ("body" in arguments or "json" in arguments):
        return f"body: a {arguments['method']} request carries none"
    if len(arguments.get("body", "")) > SENT_MAX:
        return f"body: is longer than {SENT_MAX // 2**20} MiB"
    for name, value in arguments.get("headers", {}).items():
        token = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not token or any(ord(char) < 0x20 and char != "\t" for char in value) or "\x7f" in value:
            return f"headers.{name[:60]}: is no HTTP header"
    return ""


def _request(arguments: Mapping[str, Any], key: str | None) -> tuple[dict[str, str], bytes]:
    headers = {name.lower(): value for name, value in arguments.get("headers", {}).items()}
    headers = {name: value for name, value in headers.items() if name not in _OURS}
    body = arguments.get("body", "").encode()
    if "json" in arguments:
        body = json.dumps(arguments["json"], ensure_ascii=False).encode()
        headers = {"content-type": "application/json", **headers}
    if key is not None and arguments["method"] not in SAFE:
        headers["idempotency-key"] = key
    return headers, body


def act_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two requests the same act (R3.13): not how long they may take, nor how often they were sent.

    A model that asks again likes to send a new key or request id, or the same JSON as a text; its act is the old one.
    """
    act = without_time(arguments)
    headers = act.pop("headers", None)
    if isinstance(headers, Mapping):
        named = {str(name).lower(): value for name, value in headers.items()}
        act["headers"] = {name: value for name, value in named.items() if name not in _OURS | _SENT_ANEW} or None
    with suppress(ValueError, TypeError):
        act["url"] = str(Target.parse(act.get("url", "")).url.copy_with(fragment=None))
    body = act.get("body")
    if isinstance(body, str) and body[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            act["json"] = json.loads(act.pop("body"))
            act["headers"] = {"content-type": "application/json", **(act.get("headers") or {})}
    elif "json" in act:
        act["headers"] = {"content-type": "application/json", **(act.get("headers") or {})}
    return act


def _same_origin(one: Target, other: Target) -> bool:
    return (one.url.scheme, one.host, one.port) == (other.url.scheme, other.host, other.port)


def _without_secrets(headers: Mapping[str, str]) -> dict[str, str]:
    """A secret belongs to the origin it was sent to: another one, reached by a redirect, does not get it."""
    return {name: value for name, value in headers.items() if name not in _SECRET}


def _no_answer(method: str, error: TransportError, timeout_s: float) -> Failure:
    """A failure without a status: nothing was sent, nothing can have happened, or nobody can say."""
    tool = HttpRequest.spec.name
    if error.word in NOT_CONNECTED:
        return failed(tool, ErrorClass.UNAVAILABLE, error.message, "Nothing was sent. Check the address, or try later.")
    timed_out = error.word.endswith("_timeout")
    if method in SAFE:
        hint = ErrorClass.TIMEOUT if timed_out else ErrorClass.UNAVAILABLE
        return failed(tool, hint, error.message, f"It may be asked for again, with more than {timeout_s:g} s.")
    return failed(
        tool,
        ErrorClass.OUTCOME_UNKNOWN,
        f"the request was sent, and no answer came: {error.message}",
        "Look whether it was done before you ask for it again.",
        effect_begun=True,
        transport=error.word,
    )


def _told(method: str, answer: _Answer, context: ToolContext) -> ToolOutcome | Failure:
    """The answer in words; a refusal to act for now, and an outcome that nobody can know, are failures."""
    status, tool = answer.status, HttpRequest.spec.name
    shown = well_formed(answer.body.decode("utf-8", "replace"))
    wait_s = wait_hints.retry_after_s(answer.headers, None, shown[:2000], time.time()) if status in (429, 503) else None
    again = f"Try again in {wait_s:g} s." if wait_s is not None else "Try again later."
    if status == 429:
        return failed(
            tool, ErrorClass.RATE_LIMITED, f"HTTP 429: {shown[:300]}", again, status=429, retry_after_s=wait_s
        )
    if status == 503 or (method in SAFE and status in (502, 504)):
        hint = ErrorClass.UNAVAILABLE
        return failed(tool, hint, f"HTTP {status}: {shown[:300]}", again, status=status, retry_after_s=wait_s)
    if status in _UNSURE and method not in SAFE:
        message = f"HTTP {status}: whether it was done cannot be told from this answer: {shown[:300]}"
        advice = "Look whether it was done before you ask for it again."
        return failed(tool, ErrorClass.OUTCOME_UNKNOWN, message, advice, status=status, effect_begun=True)
    return _outcome(answer, shown, context)


def _outcome(answer: _Answer, shown: str, context: ToolContext) -> ToolOutcome:
    lines = [f"HTTP {answer.status}"]
    lines += [f"{name}: {answer.headers[name][:500]}" for name in _SHOWN if name in answer.headers]
    lines += [f"[redirected to {hop}]" for hop in answer.hops]
    lines += [f"[{answer.note}]"] if answer.note else []
    artefact = None
    text_like = b"\0" not in answer.body[:8192]
    room = max(context.limits.output_max - NOTES_ROOM, 64)
    if not text_like or len(shown.encode()) > room:
        file = Path(context.artefacts) / f"{context.call_id}.out"
        file.write_bytes(answer.body)
        artefact = str(file)
        lines.append(f"[the whole body, {len(answer.body):,} bytes, is kept: job_output reads it by {context.call_id}]")
        shown = clip(shown, room) if text_like else "(not text)"
    return ToolOutcome(
        "\n".join([*lines, "", shown]) if shown else "\n".join(lines),
        is_error=answer.status >= 400,
        artefact=artefact,
        facts={
            "status": answer.status,
            "result": {"status": answer.status, "body": _json(shown, artefact)},
            **({"refused": True} if 400 <= answer.status < 500 and answer.status not in _OPEN else {}),
        },
    )


def _json(shown: str, artefact: str | None) -> Any:
    """The body for conditions on `result.body.*`, where it is JSON and short enough to be shown whole."""
    if artefact is None:
        try:
            return json.loads(shown)
        except (ValueError, RecursionError):
            pass
    return None
