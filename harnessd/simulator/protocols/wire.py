"""What every wire protocol of the simulator must be able to do, and the shape of a refusal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harnessd.simulator.answer import Answer, Bill
from harnessd.simulator.transcript import Transcript

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a script says of its model: sizes in tokens, the key it wants, the dialect and the optional rules."""

    window: int = 200_000
    max_output: int = 64_000
    key: str | None = None
    dialect: str = ""
    tools_for_history: bool = True


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request is refused: status, the service's own type and code, its words."""

    message: str
    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class Refused(Exception):  # noqa: N818 - it is the service's answer, not an error of ours
    """The service refuses the request."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def refuse(message: str, *, code: str | None = None, param: str | None = None, status: int = 400) -> Refused:
    """The refusal of an invalid request, ready to raise."""
    return Refused(Problem(message, status=status, code=code, param=param))


class WireProtocol(Protocol):
    """One service's way of speaking."""

    name: str

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """The key that the client presents, if any."""

    def check_head(self, headers: Mapping[str, str], limits: Limits) -> None:
        """Refuse a missing or wrong key, or a missing header that the service demands."""

    def read(self, body: Mapping[str, Any], limits: Limits) -> Transcript:
        """The transcript that is shown; raises Refused for what the service would refuse."""

    def problem(self, name: str, transcript: Transcript | None, limits: Limits) -> Problem:
        """The service's own words for a named fault: rate_limited, overloaded, quota, auth, overflow, ..."""

    def error_body(self, problem: Problem, request_id: str) -> dict[str, Any]:
        """The JSON body of a refusal."""

    def error_frame(self, problem: Problem, request_id: str) -> bytes:
        """The same as an event inside a stream that began with 200."""

    def headers(self, request_id: str, transcript: Transcript | None) -> Headers:
        """The service's own response headers: request id and rate limits."""

    def whole(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> dict[str, Any]:
        """The answer as one JSON document."""

    def frames(self, answer: Answer, transcript: Transcript, cost: Bill, request_id: str) -> Sequence[bytes]:
        """The answer as a stream of events."""

    def ping(self) -> bytes:
        """A sign of life that is no progress."""

    def bad_json(self, why: str) -> Problem:
        """The words for a body that is not JSON."""

    def unknown_model(self, model: str) -> Problem:
        """The words for a model that does not exist."""

    def too_large(self) -> Problem:
        """The words for a body over the limit."""


def pieces(text: str, size: int) -> list[str]:
    """A text in pieces of about `size` characters, at most some forty: how a service streams it."""
    step = max(size, len(text) // 40 + 1)
    return [text[start : start + step] for start in range(0, len(text), step)]


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> bytes:
    """One server-sent event."""
    body = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {body}\n\n".encode()


def is_text(value: Any) -> bool:
    """A text with something to read in it."""
    return isinstance(value, str) and bool(value.strip())


def fits_pattern(pattern: str, value: Any) -> bool:
    """A text that is the pattern altogether."""
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None
