"""Answers and bodies of the control API: JSON both ways, bounded, every error with code, message and hint."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from harnessd.domain.ports import Refused

BODY_MAX = 4 * 1024 * 1024
BODY_TIMEOUT_S = 30.0

# Our codes and what they are in HTTP; a client goes by the code.
STATUS_OF: Mapping[str, int] = {
    "bad_request": 400,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "ambiguous": 409,
    "refused": 409,
    "too_large": 413,
    "content_type": 415,
    "invalid": 422,
    "internal": 500,
    "storage_full": 500,
    "store_locked": 500,
    "store_lost": 500,
    "outcome_unknown": 500,
}
T = TypeVar("T")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Bad(Exception):  # noqa: N818 - a way out of a handler, not an error of ours
    """The request cannot be answered as asked."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint


class Json(Response):
    """A JSON answer. Lone surrogates cannot be encoded and have become U+FFFD."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
        return _SURROGATE.sub("\ufffd", text).encode()


def error(code: str, message: str, hint: str = "") -> Json:
    """`{"error": {"code", "message", "hint"}}` under the HTTP status of the code."""
    return Json({"error": {"code": code, "message": message, "hint": hint}}, status_code=STATUS_OF.get(code, 409))


def accept(value: T | Refused) -> T:
    """The value, or a way out with the store's refusal."""
    if isinstance(value, Refused):
        raise Bad(value.code, value.message, value.hint)
    return value


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of a body; an empty body is an empty object."""
    raw = await _read(request)
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        what = "nested too deeply" if isinstance(fault, RecursionError) else str(fault)
        raise Bad("bad_request", f"The body is not JSON: {what}.", "Send one JSON object in UTF-8.") from None
    if not isinstance(value, dict):
        raise Bad("bad_request", "The body is not a JSON object.", "Send one JSON object in UTF-8.")
    # JSON can spell half a surrogate pair; no encoder downstream can take it.
    cleaned: dict[str, Any] = _clean(value) if b"\\ud" in raw.lower() else value
    return cleaned


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > BODY_MAX:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > BODY_MAX:
                    raise _too_large()
                parts.append(part)
    except TimeoutError:
        hint = "Send the whole body at once."
        raise Bad("bad_request", f"The body did not arrive within {BODY_TIMEOUT_S:.0f}s.", hint) from None
    except ClientDisconnect:
        raise Bad("bad_request", "The body was cut.") from None
    return b"".join(parts)


def _too_large() -> Bad:
    hint = "Put large input into a file of the workspace."
    return Bad("too_large", f"The body is larger than {BODY_MAX} bytes.", hint)


def _refuse_constant(name: str) -> float:
    message = f"{name} is no JSON number"
    raise ValueError(message)


def _clean(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list():
            return [_clean(item) for item in value]
        case _:
            return value
