"""Line 1, the model heals itself: failures become tool results it can act on."""

from __future__ import annotations

from harnessd.defence.incident import Incident
from harnessd.defence.ladder import walk
from harnessd.domain.decision import Decision, Observe, Pass
from harnessd.domain.failure import ErrorClass, Failure

# Whether the same call again makes sense, and what else does, when the tool has no better advice of its own.
_ADVICE: dict[ErrorClass, tuple[bool, str]] = {
    ErrorClass.INVALID_ARGUMENTS: (False, "Correct the arguments and call the tool again."),
    ErrorClass.UNKNOWN_TOOL: (False, "Use one of the tools you were given."),
    ErrorClass.PERMISSION_DENIED: (False, "Reach the goal in a way that is allowed, or say that it cannot be done."),
    ErrorClass.EXECUTION_FAILED: (False, "Read the reason, check your assumption with another tool, then try again."),
    ErrorClass.TIMEOUT: (False, "Split the work into smaller steps, or run it in the background."),
    ErrorClass.UNAVAILABLE: (True, "Try again later, or use another tool."),
    ErrorClass.RATE_LIMITED: (True, "Wait, then try again."),
    ErrorClass.OUTCOME_UNKNOWN: (False, "Find out what the call did before you repeat it."),
}


def answer(incident: Incident) -> Decision | Pass:
    """Mine, if the failure is a tool's and its ladder lets the model observe it."""
    if incident.failure.source != "tool":
        return Pass("line1", "a failed model call has no result to show")
    return walk("line1", incident, {"observe": lambda _: Observe()})


def observation(action: str, failure: Failure, error_class: ErrorClass, *, begun: bool = False) -> str:
    """The result text of a failed call: action, class, reason, whether retrying makes sense, next step (R2.1).

    `begun`: it may have changed something, and nobody can say what.
    """
    worth_retrying, advice = _ADVICE.get(error_class, (False, "Try another way."))
    if failure.retry_after_s is not None:
        advice = f"Retry after {failure.retry_after_s:g} seconds."
    lines = [
        f"{action} failed ({error_class.value}): {failure.message.strip() or 'no reason was given'}",
        *(["It had begun: what it did until then is not known."] if begun else []),
        f"Retrying the same call makes sense: {'yes' if worth_retrying and not begun else 'no'}.",
        f"Next: {failure.advice or advice}",
    ]
    if failure.output:
        lines += ["Output until then:", failure.output]
    return "\n".join(lines)
