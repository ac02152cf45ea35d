"""Ledger of incidents: one message for each, again while it lasts, the end told to the same channels; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harnessd.domain.durable.outbox import Incident, Outgoing, Told
from harnessd.domain.events import EventType
from harnessd.domain.record import StoredEvent
from harnessd.domain.task import Task
from harnessd.policy.notify import NotifyPolicy, Route, route, turning_points_s
from harnessd.runtime.telling import course
from harnessd.runtime.telling.words import alert_of

MOMENT_S = 3600.0  # where `again_after` is none: so long the same event without an end is the same incident
_JUST_AFTER_S = 0.001  # `above: 4h` holds after four hours, not at four hours
_HOLDERS_MAX = 1000


@dataclass(slots=True)
class Ledger:
    """All open incidents.

    `lasts` says of a lasting event whether it is still so, where no event tells its end; `down` whether a channel does
    not deliver now: it gets no reminders then, for what it was not told yet still waits.
    """

    policy: Callable[[], NotifyPolicy]
    lasts: Callable[[str], bool] = lambda _: True
    down: Callable[[str], bool] = lambda _: False
    redact: Callable[[Any], Any] = lambda value: value
    _open: dict[str, Incident] = field(default_factory=dict)
    _of_task: dict[str, set[str]] = field(default_factory=dict)
    _shared: set[str] = field(default_factory=set)  # of a dependency or the daemon
    _moved: dict[str, Incident | None] = field(default_factory=dict)  # None: ended
    _alerts: list[Outgoing] = field(default_factory=list)

    def load(self, incidents: Iterable[Incident]) -> None:
        """Begin with what was kept; what was not written is forgotten."""
        self._open, self._of_task, self._shared = {}, {}, set()
        self._moved, self._alerts = {}, []
        for incident in incidents:
            self._keep(incident)
        self._moved = {}

    @property
    def next_at(self) -> float | None:
        """When an incident is to be looked at again."""
        return min((one.next_at for one in self._open.values() if one.next_at is not None), default=None)

    def written(self, cursor: int) -> Told | None:
        """What is to be written since the last call; None: nothing."""
        if not self._moved and not self._alerts:
            return None
        changed = tuple(one for one in self._moved.values() if one is not None)
        ended = tuple(key for key, one in self._moved.items() if one is None)
        told = Told(cursor, changed, ended, tuple(self._alerts))
        self._moved, self._alerts = {}, []
        return told

    def cares(self, event: StoredEvent) -> bool:
        """Whether the facts of the event's task may be needed: most tasks just end, and nobody is told."""
        return event.type in course.LASTING or event.type in course.MOMENTS or (event.task or "") in self._of_task

    def take(self, event: StoredEvent, task: Task | None, now: float) -> None:
        """One event, in order."""
        if course.is_echo(event):
            return
        facts = self.redact(course.about(event, task))
        ended = self._end(event, now) if event.type in course.ENDERS else []
        channels = list(dict.fromkeys(channel for incident in ended for channel in incident.told))
        if event.type in course.LASTING or event.type in course.MOMENTS:
            self._begin(event, facts, channels, now)
        elif ended:
            where = self._route(facts, 0.0).to if event.type in course.ENDS else ()
            self._tell_end(facts, ended, [*channels, *(name for name in where if name not in channels)], now)

    def look(self, now: float, *, anew: bool = False) -> None:
        """Those that are due are told again or forgotten; `anew`: other rules are in force, so all that last."""
        for incident in list(self._open.values()):
            due = incident.next_at is not None and incident.next_at <= now
            lasting = incident.event in course.LASTING
            if lasting and (due or anew):
                if self.lasts(incident.event):
                    self._tell_lasting(incident, now)
                else:
                    self._drop(incident.key)
            elif due and incident.count > incident.told_count:
                self._tell_moment(incident, self._route(incident.about, 0.0), (), now)
            elif due:
                self._drop(incident.key)

    # --- begin and end -----------------------------------------------------------------------------------------------

    def _begin(self, event: StoredEvent, facts: Mapping[str, Any], also: Iterable[str], now: float) -> None:
        key, holder = course.key_of(facts), course.holder_of(event)
        known = self._open.get(key)
        if known is None:
            incident = Incident(key, event.type, event.at, facts, holders=(holder,) if holder else ())
        else:
            more = (holder,) if holder and holder not in known.holders and len(known.holders) < _HOLDERS_MAX else ()
            incident = replace(known, about=facts, count=known.count + 1, holders=known.holders + more)
        if event.type in course.LASTING:
            self._tell_lasting(incident, now)
        elif known is None:
            self._tell_moment(incident, self._route(facts, 0.0), also, now)
        else:
            self._keep(incident)

    def _end(self, event: StoredEvent, now: float) -> list[Incident]:
        """The incidents that this event ends and that somebody is to hear the end of."""
        ended = []
        near = self._of_task.get(event.task or "", set()) | self._shared
        for incident in [self._open[key] for key in sorted(near)]:
            if course.ends(event, incident):
                self._drop(incident.key)
                ended += [incident] if incident.event in course.LASTING else []
                continue
            leaver = course.lets_go(event, incident)
            if leaver and leaver in incident.holders:
                left = tuple(holder for holder in incident.holders if holder != leaver)
                if left:
                    self._keep(replace(incident, holders=left))
                elif incident.event in course.QUESTIONS:
                    self._drop(incident.key)
                    ended.append(incident)
                else:
                    self._end_unheld(incident, event, now)
        return ended

    def _end_unheld(self, incident: Incident, event: StoredEvent, now: float) -> None:
        self._drop(incident.key)
        end = course.LASTING[incident.event][0]
        data = {"dependency": incident.about["dependency"], "sentence": "No task that it concerned is left."}
        facts = {**incident.about, "event": end.value, "seq": event.seq, "at": event.at, "data": data}
        self._tell_end(facts, [incident], list(incident.told), now)

    # --- telling -----------------------------------------------------------------------------------------------------

    def _route(self, facts: Mapping[str, Any], lasting_s: float) -> Route:
        return route(self.policy(), course.facts_for_rules(facts, lasting_s))

    def _tell_lasting(self, incident: Incident, now: float) -> None:
        lasting_s = max(0.0, now - incident.since)
        where = self._route(incident.about, lasting_s)
        again_s = where.again_after_s
        told = incident.told
        due = [name for name in where.to if name not in told]
        if again_s is not None:
            due += [name for name in where.to if name in told and now >= told[name] + again_s - _JUST_AFTER_S]
        told = {**told, **dict.fromkeys(due, now)}
        times = [told[name] + again_s for name in where.to] if again_s is not None else []
        turns = (incident.since + turn_s + _JUST_AFTER_S for turn_s in turning_points_s(self.policy()))
        times += [at for at in turns if at > now]
        after = replace(incident, told=told, next_at=min(times, default=None))
        # A reminder to a channel that is down would only pile up behind what waits already.
        posted = [name for name in due if name not in incident.told or not self.down(name)]
        self._keep(replace(after, told_count=incident.count) if posted else after)
        self._post(incident, posted, "still" if incident.told else "new", lasting_s, now)

    def _tell_moment(self, incident: Incident, where: Route, also: Iterable[str], now: float) -> None:
        names = list(dict.fromkeys((*where.to, *also)))
        again_s = where.again_after_s if where.again_after_s is not None else MOMENT_S
        told = {**incident.told, **dict.fromkeys(names, now)}
        self._keep(replace(incident, told=told, told_count=incident.count, next_at=now + again_s))
        first = not incident.told_count
        posted = names if first else [name for name in names if not self.down(name)]
        self._post(incident, posted, "new" if first else "still", max(0.0, now - incident.since), now)

    def _post(self, incident: Incident, channels: Iterable[str], state: str, lasting_s: float, now: float) -> None:
        key = f"{incident.key}@{incident.since:.3f}" + ("" if state == "new" else f"+{now - incident.since:.3f}")
        alert = alert_of(key, state, incident.about, incident.count, lasting_s)
        self._put(channels, alert, incident.about)

    def _tell_end(self, facts: Mapping[str, Any], ended: list[Incident], channels: Iterable[str], now: float) -> None:
        since = min(incident.since for incident in ended)
        key = f"{course.key_of(facts)}@{since:.3f}.{facts['seq']}"
        count = max(incident.count for incident in ended)
        self._put(channels, alert_of(key, "ended", facts, count, max(0.0, now - since)), facts)

    def _put(self, channels: Iterable[str], alert: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        # A channel is never told that it itself cannot be told.
        own = facts["dependency"] if facts["event"] == EventType.NOTIFY_FAILED else ""
        self._alerts += [Outgoing(name, alert) for name in channels if f"notify/{name}" != own]

    # --- keeping -----------------------------------------------------------------------------------------------------

    def _keep(self, incident: Incident) -> None:
        self._open[incident.key] = self._moved[incident.key] = incident
        task = incident.about["task"]
        if task and incident.event not in course.BY_TASKS:
            self._of_task.setdefault(task, set()).add(incident.key)
        else:
            self._shared.add(incident.key)

    def _drop(self, key: str) -> None:
        incident = self._open.pop(key)
        self._moved[key] = None
        self._shared.discard(key)
        task = incident.about["task"]
        keys = self._of_task.get(task, set())
        keys.discard(key)
        if not keys:
            self._of_task.pop(task, None)
