"""Steps: what the words of a ladder do that more than one line knows; each acts, or says why it cannot."""

from __future__ import annotations

from harnessd.defence.endings import stop_reason
from harnessd.defence.incident import Incident
from harnessd.domain.decision import Fallback, NeedsHuman, Park, Probe, Remedy, Retry, Stop
from harnessd.domain.failure import ErrorClass
from harnessd.policy.fallback import Link
from harnessd.policy.retry import backoff_s

# While a dependency is down it is asked every 1 to 5 minutes (R3.2a): the first wait, doubled up to the last.
_FIRST_PARK_S, _LAST_PARK_S = 60.0, 300.0


def question(incident: Incident) -> Remedy | str:
    """A person is asked, in the failure's own words."""
    failure = incident.failure
    return NeedsHuman(f"{failure.dependency}: {failure.message.strip() or incident.error_class.value}")


def stop(incident: Incident) -> Remedy | str:
    """The end that this class has."""
    return Stop(stop_reason(incident.failure.source, incident.error_class))


def retry(incident: Incident) -> Remedy | str:
    """The same again, after the wait."""
    settings, failure = incident.settings, incident.failure
    why_not = _no_retry(incident)
    if why_not:
        return why_not
    hint = failure.retry_after_s or 0.0
    if hint > settings.server_wait_max_s:
        return f"the service asks for {hint:g} s, more than server_wait_max {settings.server_wait_max_s:g} s"
    # A link that takes over is asked anew: its own waits begin at base, while the call's tries go on being counted.
    wait = backoff_s(settings, _here(incident) - 1, incident.luck)
    if hint:
        # A server's hint is a floor: everybody comes back at that moment, so jitter goes on top, never below.
        wait = max(wait, hint * (1 + incident.luck * min(settings.jitter, 0.1)))
    if incident.elapsed_s + wait > settings.deadline_s:
        return f"the deadline of {settings.deadline_s:g} s for this call would pass"
    return Retry(after_s=wait, attempt=incident.tries + 1, of=settings.retries + 1)


def fallback(incident: Incident) -> Remedy | str:
    """The next link of the chain that can take the request."""
    following = incident.following
    if incident.failure.output_passed:
        return "output of this attempt was already passed on"
    if incident.begun:
        return "the effect may have begun, and it must not happen twice"
    if isinstance(following, Link):
        return Fallback(following.name, following.passed)
    if following is None or not following.passed:
        return "there is no chain"
    return "the chain is used up: " + "; ".join(f"{link}: {why}" for link, why in following.passed)


def park(incident: Incident) -> Remedy | str:
    """The worker is given back until the service named, the breaker's next probe, or the next look at an outage."""
    left = incident.settings.park_max_s - incident.parked_s
    if incident.failure.source != "model":
        return "only a model call can be parked"
    if left <= 0:
        return f"park.max of {incident.settings.park_max_s:g} s is used up"
    hint, others = incident.failure.retry_after_s or 0.0, incident.reachable_in_s
    asked = hint > incident.settings.server_wait_max_s and not incident.breaker_open
    if asked and hint > left and others is None:
        return f"the service asks for {hint:g} s, more than park.max leaves"
    probe = min(max(_FIRST_PARK_S, incident.parked_s), _LAST_PARK_S) * (1 + incident.luck * 0.25)
    mine = max(hint, 1.0) if incident.breaker_open or asked else max(probe, hint)
    # The chain is asked again as soon as one of its links may be: the earliest probe, not the last link's own.
    return Park(min(mine if others is None else min(mine, max(others, 1.0)), left))


def probe(incident: Incident) -> Remedy | str:
    """The world is asked whether an act was done that nobody saw the end of."""
    if incident.error_class is not ErrorClass.OUTCOME_UNKNOWN:
        return "the outcome is known"
    return Probe(incident.probe) if incident.probe else f"no probe of {incident.failure.dependency} is left to ask"


def _here(incident: Incident) -> int:
    return max(1, incident.tries if incident.here is None else incident.here)


def _no_retry(incident: Incident) -> str:
    """Why the same may not be tried again here, whatever the wait; empty where it may."""
    settings, dependency = incident.settings, incident.failure.dependency
    following = incident.following.name if isinstance(incident.following, Link) else None
    if incident.breaker_open:
        return f"the breaker of {dependency} is open"
    if incident.failure.output_passed:
        return "output of this attempt was already passed on"
    if incident.begun:
        return "the effect may have begun, and it must not happen twice"
    if incident.tries > settings.retries:
        return f"all {settings.retries} retries are used"
    if not incident.may_retry:
        return f"too many calls of {dependency} in this minute were retries (retry_share)"
    if incident.probing and following:
        return f"this was the probe of {dependency}, and {following} is left"
    switching = incident.failure.source == "model" and following and "fallback" in _ladder(incident)
    if switching and _here(incident) >= settings.switch_after:
        return (
            f"{_here(incident)} tries on {dependency}, and {following} is left (switch_after {settings.switch_after})"
        )
    return ""


def _ladder(incident: Incident) -> tuple[str, ...]:
    return incident.settings.do if incident.escalated is None else incident.escalated.do
