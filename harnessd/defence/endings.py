"""Endings: the stop reason of each class, the sentence a person reads, and what can be done next (R3.8)."""

from __future__ import annotations

from harnessd.domain.failure import ErrorClass, Failure, Source
from harnessd.domain.task import StopReason

_MODEL_ENDS: dict[ErrorClass, StopReason] = {
    ErrorClass.TIMEOUT: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.NETWORK: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.RATE_LIMITED: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.OVERLOADED: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.SERVER_ERROR: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.STREAM_INTERRUPTED: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.QUOTA_EXHAUSTED: StopReason.QUOTA_EXHAUSTED,
    ErrorClass.AUTH: StopReason.SERVICE_UNAVAILABLE,
    ErrorClass.REFUSED: StopReason.REFUSED,
    ErrorClass.CONTEXT_OVERFLOW: StopReason.CONTEXT_EXHAUSTED,
}
_AGENT_ENDS: dict[ErrorClass, StopReason] = {
    ErrorClass.OUTCOME_UNKNOWN: StopReason.UNANSWERED,
    ErrorClass.LOOP_DETECTED: StopReason.LOOP_DETECTED,
    ErrorClass.NO_PROGRESS: StopReason.LOOP_DETECTED,
    ErrorClass.BUDGET_EXHAUSTED: StopReason.BUDGET_EXHAUSTED,
    ErrorClass.HANG: StopReason.INTERRUPTED,
    ErrorClass.STATE_CORRUPT: StopReason.INTERNAL_ERROR,
    ErrorClass.INTERNAL_ERROR: StopReason.INTERNAL_ERROR,
}
_SENTENCES: dict[StopReason, str] = {
    StopReason.SERVICE_UNAVAILABLE: "{dependency} could not be reached: {message}. The task is kept.",
    StopReason.QUOTA_EXHAUSTED: "The quota of {dependency} is used up: {message}. The task is kept.",
    StopReason.REFUSED: "{dependency} refused to answer: {message}.",
    StopReason.CONTEXT_EXHAUSTED: "The conversation no longer fits the window of {dependency}: {message}.",
    StopReason.LOOP_DETECTED: "The agent went in circles: {message}.",
    StopReason.ERROR: "{dependency} failed for good ({error_class}): {message}.",
}


def stop_reason(source: Source, error_class: ErrorClass) -> StopReason:
    """How a task ends when nothing helps against this class (policies.md 3.2, "ends as")."""
    if source == "model":
        return _MODEL_ENDS.get(error_class, StopReason.ERROR)
    return _AGENT_ENDS.get(error_class, StopReason.ERROR)


def stop_sentence(reason: StopReason, failure: Failure, error_class: ErrorClass) -> str:
    """One sentence for the person: what failed, in the service's own words."""
    message = " ".join(failure.message.split()).rstrip(".")
    if not message:
        sign = failure.transport or failure.status
        message = "no words came with it" + (f" ({sign})" if sign else "")
    words = _SENTENCES.get(reason, _SENTENCES[StopReason.ERROR])
    return words.format(dependency=failure.dependency, message=message[:300], error_class=error_class.value)


def next_steps(task: str, reason: StopReason, *, budget: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Commands that make sense after this end, as argument lists."""
    if reason is StopReason.COMPLETED:
        return (("harnessctl", "show", task), ("harnessctl", "tree", task))
    if reason is StopReason.BUDGET_EXHAUSTED:
        raised = ("--budget", budget) if budget else ()
        return (("harnessctl", "resume", task, *raised), ("harnessctl", "show", task))
    if reason is StopReason.INTERNAL_ERROR:
        return (("harnessctl", "logs", task), ("harnessctl", "retry", task))
    return (("harnessctl", "resume", task), ("harnessctl", "retry", task), ("harnessctl", "logs", task))
