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
# Where the reason alone would mislead: a dead key is no outage.
_SENTENCES_OF_CLASSES: dict[ErrorClass, str] = {
    ErrorClass.AUTH: "{dependency} does not accept its key: {message}. The task is kept.",
    ErrorClass.RATE_LIMITED: "{dependency} allows no more calls for now: {message}. The task is kept.",
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
    if reason is StopReason.SERVICE_UNAVAILABLE:
        words = _SENTENCES_OF_CLASSES.get(error_class, words)
    return words.format(dependency=failure.dependency, message=message[:300], error_class=error_class.value)


def budget_sentence(used: str) -> str:
    """The end of a budget for a person; `used` is `90 of 90 tool_calls used`, or more."""
    return f"The task's budget is used up: {used.rstrip('.')}. What it did is kept; a higher limit lets it go on."


def session_sentence(used: str) -> str:
    """The end of a session that has grown too large, for a person."""
    return (
        f"The task's session has grown to its limit (session_size): {used.rstrip('.')}. What it did is kept;"
        " it cannot go on in this session. Take the rest up in a new task."
    )


def session_steps(task: str) -> tuple[tuple[str, ...], ...]:
    """What can be done with a session that is full."""
    return (("harnessctl", "show", task), ("harnessctl", "export", task), ("harnessctl", "tree", task))


def next_steps(task: str, reason: StopReason, *, budget: str | None = None) -> tuple[tuple[str, ...], ...]:
    """Commands that make sense after this end, as argument lists; each does something as it stands.

    TEXT is a word that the person writes instead.
    """
    resume, retry = ("harnessctl", "resume", task), ("harnessctl", "retry", task)
    changed, why = (*resume, "--say", "TEXT"), ("harnessctl", "why", task)
    match reason:
        case StopReason.COMPLETED:
            return (("harnessctl", "show", task), ("harnessctl", "tree", task))
        case StopReason.BUDGET_EXHAUSTED:
            return ((*resume, "--budget", budget) if budget else resume, ("harnessctl", "show", task))
        case StopReason.INTERNAL_ERROR:
            return (("harnessctl", "logs", task), retry)
        case StopReason.LOOP_DETECTED | StopReason.REFUSED:
            # Going on as it was would end as it did: the goal or the way is to be changed.
            return (changed, (*retry, "--say", "TEXT"), why)
        case StopReason.UNANSWERED:
            return (resume, changed, ("harnessctl", "logs", task))
        case StopReason.CONTEXT_EXHAUSTED | StopReason.ERROR:
            return (retry, resume, why)
        case _:
            return (resume, retry, ("harnessctl", "logs", task))
