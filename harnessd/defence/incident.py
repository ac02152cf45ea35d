"""Incident: everything the four lines may look at; built once, never looked up again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.domain.decision import Rollback, RuleRef
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure, Owner
from harnessd.policy import TaskPolicies
from harnessd.policy import escalation as escalation_policy
from harnessd.policy import fallback as fallback_policy
from harnessd.policy import retry as retry_policy

# The gateway's word for a call that it did not make: an open breaker lets nothing through.
BREAKER_OPEN = "breaker_open"
# The same where the day's money of an agent or label is used up (kind limits).
DAY_LIMIT_REACHED = "day_limit_reached"
# The engine's own: by our count the request cannot fit, and it was not sent.
CONTEXT_FULL = "context_window_full"
NOT_MADE = frozenset({BREAKER_OPEN, DAY_LIMIT_REACHED, CONTEXT_FULL})


def _no_way_back(_: str) -> Rollback | str:
    return "only a tool's failures and loops lead back"


def _nothing_to_take_out() -> str:
    return "there is nothing to take out"


def _no_stricter_view() -> tuple[str, ...]:
    return ()


# Characters: of the words that `why` shows, and of a body that is kept with a decision.
_MESSAGE_SHOWN_MAX, _BODY_KEPT_MAX = 500, 8_000

# An agent is swapped for another where its model is down; what one request or one answer got wrong is no such thing.
DOWN = frozenset({
    *(ErrorClass.TIMEOUT, ErrorClass.NETWORK, ErrorClass.RATE_LIMITED, ErrorClass.OVERLOADED, ErrorClass.SERVER_ERROR),
    *(ErrorClass.STREAM_INTERRUPTED, ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Incident:
    """One failed attempt, classified, with the facts of its episode.

    Attributes:
        tries: failed attempts of this episode, this one included.
        elapsed_s: since the first attempt of the episode, parked time left out.
        parked_s: how long the episode has been parked until now.
        luck: a random number in [0, 1) that was handed in: the jitter's only source.
        here: failed attempts on the link in use; None: there is one link, and all of them were there.
        probing: the attempt was the probe of a first link that had failed before.
        may_retry: the daemon's retry budget has room.
        following: who takes over, or that nobody can.
        escalated: the ladder of the escalation rule that holds, if one does.
        taken: how often steps that act once an episode were taken, by `ladder:word`.
        reachable_in_s: until the first of the chain's other links may be asked again; None: nobody said.
        compactions: smaller views made since the window overflowed, of `compactions_max`.
        no_compaction: why no smaller view can be made; empty where one can.
        stricter: the rules of a stricter view whose bytes differ from what was refused; empty where there is none.
        way_back: from a word of policy (`last_good`, ...) to the remedy that goes there, or why there is no such node.
        probe: the tool that can tell whether the act was done; empty: none is declared, or it told nothing.
    """

    task: str
    failure: Failure
    error_class: ErrorClass
    classified_by: RuleRef
    owner: Owner
    settings: retry_policy.ClassSettings
    tries: int
    elapsed_s: float
    parked_s: float
    luck: float
    effect_class: EffectClass | None = None
    here: int | None = None
    probing: bool = False
    may_retry: bool = True
    following: fallback_policy.Link | fallback_policy.UsedUp | None = None
    escalated: escalation_policy.Escalated | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    reachable_in_s: float | None = None
    compactions: int = 0
    compactions_max: int = 1
    no_compaction: Callable[[], str] = _nothing_to_take_out
    stricter: Callable[[], tuple[str, ...]] = _no_stricter_view
    probe: str = ""
    way_back: Callable[[str], Rollback | str] = _no_way_back

    @property
    def breaker_open(self) -> bool:
        """No attempt was made: the dependency's breaker is open."""
        return self.failure.code == BREAKER_OPEN

    @property
    def begun(self) -> bool:
        """An effect that must not happen twice may have begun."""
        begun = self.failure.effect_begun or self.error_class is ErrorClass.OUTCOME_UNKNOWN
        return begun and self.effect_class not in (EffectClass.READ_ONLY, EffectClass.IDEMPOTENT)

    def evidence(self) -> dict[str, Any]:
        """What `why` shows of it; empty fields left out."""
        failure = self.failure
        facts = {
            "class": self.error_class.value,
            "dependency": failure.dependency,
            "message": failure.message[:_MESSAGE_SHOWN_MAX],
            "status": failure.status,
            "code": failure.code,
            "type": failure.type,
            "transport": failure.transport,
            "ended": failure.ended,
            "retry_after_s": failure.retry_after_s,
            "request_id": failure.request_id,
            "exit_code": failure.exit_code,
            "effect": self.effect_class.value if self.effect_class else None,
            "tries": self.tries,
            "tries_here": self.here if self.here != self.tries else None,
            "elapsed_s": round(self.elapsed_s, 3),
            "classified_by": rule_json(self.classified_by),
            "answer": _answer(failure),
        }
        return {name: value for name, value in facts.items() if value not in (None, "", {})}


def _answer(failure: Failure) -> dict[str, Any]:
    """What else rules may look at in a service's answer: with it `why --evidence` can be classified again."""
    if failure.source != "model" or failure.code in NOT_MADE:
        return {}
    body = failure.body if len(str(failure.body)) <= _BODY_KEPT_MAX else None
    facts = {
        "protocol": failure.protocol,
        "headers": dict(failure.headers),
        "body": body,
        "finish": failure.finish,
        "call_cut": failure.call_cut or None,
        "window_used": failure.window_used,
        "hint": failure.hint.value if failure.hint is not None else None,
        "message": failure.message if len(failure.message) > _MESSAGE_SHOWN_MAX else None,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", {})}


def rule_json(rule: RuleRef) -> dict[str, Any]:
    """A rule reference as JSON."""
    return {
        "kind": rule.kind,
        "name": rule.name,
        "rule": rule.rule,
        "file": rule.file,
        "line": rule.line,
        "revision": rule.revision,
    }


@dataclass(frozen=True, slots=True)
class Whose:
    """The task whose failure it is, as escalation rules may ask for it. `model` is who it works with: a full name."""

    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class Tallies:
    """How often the same happened in a row, this time included, since the last step taken against it."""

    consecutive: int = 1
    failed_corrections: int = 0
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class Standby:
    """A chain of another sort that is walked once the dependency's own is used up: a feature's, an agent's.

    `classes`: only for these; None: for all.
    """

    home: str
    tried: tuple[str, ...] = ()
    unable: Mapping[str, str] = field(default_factory=dict)
    classes: frozenset[ErrorClass] | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The chain's state. Names are full ones.

    Attributes:
        home: where the chain starts; empty: there is none.
        tried: links that failed in this episode, the one in use included.
        unable: why others cannot take the request.
        too_small: why others cannot take one that just overflowed.
        here: failed attempts on the link in use.
        then: what is walked after this chain.
        reachable_in_s: until the first of the other links may be asked again, by its breaker or service; None: unknown.
    """

    home: str = ""
    tried: tuple[str, ...] = ()
    unable: Mapping[str, str] = field(default_factory=dict)
    too_small: Mapping[str, str] = field(default_factory=dict)
    here: int | None = None
    probing: bool = False
    then: tuple[Standby, ...] = ()
    reachable_in_s: float | None = None


def _first_time(_: ErrorClass) -> Tallies:
    return Tallies()


@dataclass(frozen=True, slots=True)
class Episode:
    """Where a call stands when an attempt of it fails. `tallies` counts for the class that the failure turns out."""

    task: str
    tries: int
    elapsed_s: float = 0.0
    parked_s: float = 0.0
    luck: float = 0.0
    effect_class: EffectClass | None = None
    whose: Whose = field(default_factory=Whose)
    tallies: Callable[[ErrorClass], Tallies] = _first_time
    links: Links = field(default_factory=Links)
    taken: Mapping[str, int] = field(default_factory=dict)
    first_event_s: float | None = None
    may_retry: bool = True
    compactions: int = 0
    no_compaction: Callable[[], str] = _nothing_to_take_out
    stricter: Callable[[], tuple[str, ...]] = _no_stricter_view
    probe: str = ""
    way_back: Callable[[str], Rollback | str] = _no_way_back


def incident_of(
    failure: Failure, episode: Episode, policies: TaskPolicies, classified: retry_policy.Classified | None = None
) -> Incident:
    """Classify a failure, unless that was done already, and gather what the lines need."""
    classified = classified or retry_policy.classify(policies.retry, failure)
    # Rules may find an answer complete ("ok"); one that reaches us as a failure all the same is the service's fault.
    error_class = classified.error_class or ErrorClass.SERVER_ERROR
    settings = retry_policy.for_class(policies.retry, failure.source, error_class)
    slow = policies.retry.shape.model.slow
    if failure.source == "model" and slow.over is not None and (episode.first_event_s or 0.0) > slow.over:
        # A slow link gets fewer tries while another one is left (R3.16).
        settings = replace(settings, switch_after=min(settings.switch_after, slow.switch_after))
    if failure.code == DAY_LIMIT_REACHED and isinstance(failure.body, Mapping):
        settings = _of_the_limit(settings, failure.body, episode.parked_s + (failure.retry_after_s or 0.0))
    slow = policies.retry.shape.model.slow
    if slow.over is not None and failure.first_event_s is not None and failure.first_event_s > slow.over:
        settings = replace(settings, switch_after=min(settings.switch_after, slow.switch_after))
    return Incident(
        task=episode.task,
        failure=failure,
        error_class=error_class,
        classified_by=classified.rule,
        owner=settings.owner,
        settings=settings,
        tries=episode.tries,
        elapsed_s=episode.elapsed_s,
        parked_s=episode.parked_s,
        luck=episode.luck,
        effect_class=episode.effect_class,
        here=episode.links.here,
        probing=episode.links.probing,
        may_retry=episode.may_retry,
        following=_following(policies.fallback, episode.links, error_class),
        escalated=_escalated(policies.escalation, failure, error_class, episode),
        taken=episode.taken,
        reachable_in_s=episode.links.reachable_in_s,
        compactions=episode.compactions,
        compactions_max=policies.compaction.shape.emergency_tries,
        no_compaction=episode.no_compaction,
        stricter=episode.stricter,
        probe=episode.probe,
        way_back=episode.way_back,
    )


def _of_the_limit(
    settings: retry_policy.ClassSettings, body: Mapping[str, Any], park_s: float
) -> retry_policy.ClassSettings:
    """The ladder of the limit itself; its park lasts until the day is over, however long `park.max` is."""
    stated = body.get("rule", {})
    rule = RuleRef(**{**stated, "line": int(stated["line"])}) if stated else settings.rule
    return replace(
        settings, do=tuple(body.get("do") or settings.do), rule=rule, park_max_s=max(park_s, settings.park_max_s)
    )


def _following(
    policy: fallback_policy.FallbackPolicy, links: Links, error_class: ErrorClass
) -> fallback_policy.Link | fallback_policy.UsedUp | None:
    if not links.home:
        return None
    overflow = error_class is ErrorClass.CONTEXT_OVERFLOW
    unable = {**(links.too_small if overflow else {}), **links.unable}
    found = fallback_policy.next_link(policy, links.home, error_class.value, links.tried, unable)
    for standby in links.then:
        if isinstance(found, fallback_policy.Link):
            break
        if standby.classes is None or error_class in standby.classes:
            more = fallback_policy.next_link(policy, standby.home, None, standby.tried, standby.unable)
            kept = found if isinstance(more, fallback_policy.UsedUp) and found.passed else more
            found = replace(kept, passed=(*found.passed, *more.passed))
    return found


def _escalated(
    policy: escalation_policy.EscalationPolicy, failure: Failure, error_class: ErrorClass, episode: Episode
) -> escalation_policy.Escalated | None:
    whose, tallies = episode.whose, episode.tallies(error_class)
    return escalation_policy.escalate(
        policy,
        escalation_policy.FailureFacts(
            error_class=error_class.value,
            dependency=failure.dependency,
            agent=whose.agent,
            workspace=whose.workspace,
            labels=whose.labels,
            priority=whose.priority,
            model=failure.dependency if failure.source == "model" else whose.model,
            tool=failure.dependency if failure.source == "tool" else "",
            effect=episode.effect_class.value if episode.effect_class else None,
            window_used=failure.window_used,
            consecutive=tallies.consecutive,
            failed_corrections=tallies.failed_corrections,
            recoveries=tallies.recoveries,
        ),
    )
