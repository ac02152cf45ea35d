"""Failure: what went wrong, as facts without judgement; the error classes; our own exceptions.

An *expected* failure (a 429, a missing file, a killed tool) is a `Failure` value. An exception is our own bug or a
lost resource, and its class docstring is the sentence a person reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from harnessd.domain.messages import Usage


class ErrorClass(StrEnum):
    """The taxonomy of mission.md. `timeout` and `rate_limited` exist in two groups; `Failure.source` tells which."""

    # model service
    TIMEOUT = "timeout"
    NETWORK = "network"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    STREAM_INTERRUPTED = "stream_interrupted"
    QUOTA_EXHAUSTED = "quota_exhausted"
    AUTH = "auth"
    REFUSED = "refused"
    CONTEXT_OVERFLOW = "context_overflow"
    INVALID_REQUEST = "invalid_request"
    MALFORMED_OUTPUT = "malformed_output"
    # tool
    INVALID_ARGUMENTS = "invalid_arguments"
    UNKNOWN_TOOL = "unknown_tool"
    PERMISSION_DENIED = "permission_denied"
    EXECUTION_FAILED = "execution_failed"
    UNAVAILABLE = "unavailable"
    OUTCOME_UNKNOWN = "outcome_unknown"
    # agent
    LOOP_DETECTED = "loop_detected"
    BUDGET_EXHAUSTED = "budget_exhausted"
    NO_PROGRESS = "no_progress"
    HANG = "hang"
    STATE_CORRUPT = "state_corrupt"
    INTERNAL_ERROR = "internal_error"


class Owner(StrEnum):
    """Who can still deal with an error: where the chain of the four lines starts."""

    MODEL = "model"
    RUNTIME = "runtime"
    CONTEXT = "context"
    SESSION = "session"
    OPERATOR = "operator"


Source = Literal["model", "tool", "agent"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Normalised evidence of one failed attempt.

    Attributes:
        source: whose attempt it was.
        dependency: its name in policies, e.g. `model/primary`, `tool/bash`.
        message: the service's or the tool's own words, secrets redacted, at most 2,000 characters.
        status: HTTP status, if an answer came.
        code: the answer's error code; `type`: its error type.
        transport: our word for a failure without an answer (`connect_timeout`, `read_timeout`, `reset`, `dns`, `tls`,
            `closed`, `protocol`), else None.
        body: the answer's parsed JSON body, for rules on `body.PATH`.
        headers: lower-case names; only the ones rules and wait hints may look at.
        ended: how a stream ended: `complete`, `cut`, `error`, `none`.
        finish: the finish reason the answer gave, in our vocabulary.
        call_cut: a tool call's arguments are not whole.
        window_used: reported or estimated size / window, as a ratio.
        retry_after_s: the wait the answer asks for, in seconds, if it does.
        exit_code: of a tool's process.
        output_passed: output of this attempt already reached somebody; effect_begun: an effect may have begun.
        request_id: the provider's name of the request.
        hint: for tools: the class the tool itself knows it to be (a tool's failures are born classified).
        advice: for tools: the suggested next step, in words for the model.
        output: for tools: what the tool had produced until then.
        first_event_s: the dependency's measured median time to its first event, in seconds, where it is known.
        usage: of a model call that failed after its service had counted tokens: they are spent all the same.
    """

    source: Source
    dependency: str
    message: str
    status: int | None = None
    code: str | None = None
    type: str | None = None
    transport: str | None = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    protocol: str | None = None
    ended: Literal["complete", "cut", "error", "none"] | None = None
    finish: str | None = None
    call_cut: bool = False
    window_used: float | None = None
    retry_after_s: float | None = None
    exit_code: int | None = None
    output_passed: bool = False
    effect_begun: bool = False
    request_id: str = ""
    hint: ErrorClass | None = None
    advice: str = ""
    output: str = ""
    cancelled: bool = False
    usage: Usage | None = None
    first_event_s: float | None = None


class HarnessError(Exception):
    """Something harnessd depends on is lost or broken."""

    exit_code = 1

    def __init__(self, sentence: str = "", *, remedy: str = "") -> None:
        """Keep what is wrong (default: the class docstring) and what to do about it."""
        self.sentence = sentence or (type(self).__doc__ or "").strip().splitlines()[0]
        self.remedy = remedy
        super().__init__(f"{self.sentence} {remedy}".strip())


class ConfigError(HarnessError):
    """The configuration cannot be used."""

    exit_code = 78


class StoreLocked(HarnessError):  # noqa: N818 - named as the state it is
    """Another daemon holds this store."""

    exit_code = 75


class StoreTooNew(HarnessError):  # noqa: N818
    """The store was written by a newer harnessd."""

    exit_code = 78


class StoreLost(HarnessError):  # noqa: N818
    """The store's files were deleted, replaced or damaged under the daemon; it stops before it acknowledges more."""


class StorageFull(HarnessError):  # noqa: N818
    """The disk under the store is full; nothing of this step was written."""


REFUSED_FOR_NOW = (StorageFull, StoreLocked)  # nothing was written, and the same may be tried again


class OutcomeUnknown(HarnessError):  # noqa: N818
    """The store could not say whether a write became durable."""


class LeaseLost(HarnessError):  # noqa: N818
    """The task's lease belongs to somebody else now; nothing more may be written for it."""


class IllegalEvent(HarnessError):  # noqa: N818
    """An event came in a state that does not know it: our bug, never the model's."""
