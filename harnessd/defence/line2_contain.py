"""Line 2, the runtime contains: retry with backoff, park through an outage, or leave the failure to the model."""

from __future__ import annotations

from harnessd.defence.endings import stop_reason
from harnessd.defence.incident import Incident
from harnessd.defence.ladder import walk
from harnessd.domain.decision import Decision, NeedsHuman, Observe, Park, Pass, Remedy, Retry, Stop
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass
from harnessd.policy.retry import backoff_s

# While a dependency is down it is asked every 1 to 5 minutes (R3.2a): the first wait, doubled up to the last.
_FIRST_PARK_S, _LAST_PARK_S = 60.0, 300.0
_REPEATABLE = (EffectClass.READ_ONLY, EffectClass.IDEMPOTENT)


def answer(incident: Incident) -> Decision | Pass:
    """Mine, if a step of the class's ladder can act: retry, park, observe, ask a person, stop."""
    return walk(
        "line2",
        incident,
        {
            "retry": _retry,
            "park": _park,
            "observe": _observe,
            "needs_human": lambda it: NeedsHuman(f"{it.failure.dependency}: {it.failure.message}"),
            "stop": lambda it: Stop(stop_reason(it.failure.source, it.error_class)),
        },
    )


def _observe(incident: Incident) -> Remedy | str:
    return Observe() if incident.failure.source == "tool" else "a failed model call has no result to show"


def _retry(incident: Incident) -> Remedy | str:
    settings, failure = incident.settings, incident.failure
    if failure.output_passed:
        return "output of this attempt was already passed on"
    begun = failure.effect_begun or incident.error_class is ErrorClass.OUTCOME_UNKNOWN
    if begun and incident.effect_class not in _REPEATABLE:
        return "the effect may have begun, and it must not happen twice"
    if incident.tries > settings.retries:
        return f"all {settings.retries} retries are used"
    hint = failure.retry_after_s or 0.0
    if hint > settings.server_wait_max_s:
        return f"the service asks for {hint:g} s, more than server_wait_max {settings.server_wait_max_s:g} s"
    wait = backoff_s(settings, incident.tries - 1, incident.luck)
    if hint:
        # A server's hint is a floor: everybody comes back at that moment, so jitter goes on top, never below.
        wait = max(wait, hint * (1 + incident.luck * min(settings.jitter, 0.1)))
    if incident.elapsed_s + wait > settings.deadline_s:
        return f"the deadline of {settings.deadline_s:g} s for this call would pass"
    return Retry(after_s=wait, attempt=incident.tries + 1, of=settings.retries + 1)


def _park(incident: Incident) -> Remedy | str:
    left = incident.settings.park_max_s - incident.parked_s
    if incident.failure.source != "model":
        return "only a model call can be parked"
    if left <= 0:
        return f"park.max of {incident.settings.park_max_s:g} s is used up"
    hint = incident.failure.retry_after_s or 0.0
    if hint > incident.settings.server_wait_max_s:
        return Park(hint) if hint <= left else f"the service asks for {hint:g} s, more than park.max leaves"
    probe = min(max(_FIRST_PARK_S, incident.parked_s), _LAST_PARK_S) * (1 + incident.luck * 0.25)
    return Park(min(max(probe, hint), left))
