"""Dependencies: what people see of models, tools and their breakers, and what they do about them by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from harnessd.domain.durable.breaker_store import BreakerStore
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import Message, ModelReply, ModelRequest, TextBlock
from harnessd.domain.ports import Clock, Refused, Tool
from harnessd.policy.budget import shown
from harnessd.runtime.gateway import Gateway
from harnessd.runtime.policies.in_force import Standing
from harnessd.runtime.traffic.breakers import Breaker
from harnessd.runtime.traffic.caller import NOBODY
from harnessd.runtime.traffic.passage import Traffic

_ALL = 1_000_000
_NEAR = 0.9  # of a day's money: told in the status
_REMEDIES: Mapping[ErrorClass, str] = {
    ErrorClass.AUTH: "Put the right key where harness.yaml says: it is read again at each use, no restart is needed.",
    ErrorClass.QUOTA_EXHAUSTED: "Pay, or raise the account's limit; parked tasks go on at its reset or a check.",
    ErrorClass.RATE_LIMITED: "Nothing: tasks wait and try again. Lower limits.requests_per_minute if it lasts.",
    ErrorClass.OVERLOADED: "Nothing: tasks wait, or another link answers. See: harnessctl breaker list",
    ErrorClass.NETWORK: "Check base_url in harness.yaml, name resolution and the way out of this machine.",
    ErrorClass.TIMEOUT: "Check base_url in harness.yaml and the service's status page.",
    ErrorClass.SERVER_ERROR: "Look at the service's status page.",
    ErrorClass.INVALID_REQUEST: "Check protocol, base_url and model in harness.yaml.",
}


class Workers(Protocol):
    """Who works on tasks."""

    def wake(self) -> None:
        """Something may be claimable."""

    def standing(self) -> Sequence[Standing]:
        """The running tasks with what is known of them now."""


class Dependencies:
    """The daemon's models, tools and breakers for the control API."""

    def __init__(  # noqa: PLR0913 - each is a different thing that is looked at
        self,
        traffic: Traffic,
        gateway: Gateway,
        store: BreakerStore,
        clock: Clock,
        *,
        models: Callable[[], Mapping[str, Mapping[str, Any]]],
        tools: Mapping[str, Tool],
        workers: Workers,
    ) -> None:
        """`models`: alias -> what harness.yaml says of it; `workers` are woken when parked tasks were queued."""
        self._traffic, self._gateway, self._store, self._clock = traffic, gateway, store, clock
        self._models, self._tools, self._workers = models, tools, workers

    # --- breakers ----------------------------------------------------------------------------------------------------

    def breakers(self) -> Sequence[Mapping[str, Any]]:
        """All breakers; those of models also before their first call."""
        seen = {breaker.name: breaker for breaker in self._traffic.breakers.all()}
        for alias in self._gateway.aliases:
            seen.setdefault(f"model/{alias}", Breaker(f"model/{alias}"))
        return [self._traffic.breakers.row(seen[name]) for name in sorted(seen)]

    def open_breakers(self) -> list[Mapping[str, Any]]:
        """Those that are not closed, for the status."""
        return [row for row in self.breakers() if row["state"] != "closed"]

    async def trip(self, name: str, for_s: float, by: str, note: str) -> Mapping[str, Any] | Refused:
        """Open one by hand."""
        if not self._known(name):
            return self._unknown(name)
        return self._traffic.breakers.row(self._traffic.breakers.trip(name, for_s, by, note))

    async def reset(self, name: str, by: str, note: str) -> Mapping[str, Any] | Refused:
        """Close one by hand; what is parked on it comes back bit by bit."""
        if not self._known(name):
            return self._unknown(name)
        before = self._traffic.breakers.find(name)
        already = before is None or before.word == "closed"
        why = f'{by}: "{note}"' if note else by
        return {**self._traffic.breakers.row(self._traffic.breakers.reset(name, why)), "already": already}

    # --- models ------------------------------------------------------------------------------------------------------

    def models(self) -> Sequence[Mapping[str, Any]]:
        """All models with breaker, load and measured speed."""
        rows = []
        for alias, facts in self._models().items():
            name, health = f"model/{alias}", self._traffic.health(alias)
            breaker = self._traffic.breakers.find(name) or Breaker(name)
            rows.append(
                {
                    "model": alias,
                    **facts,
                    "breaker": breaker.word,
                    "open_for_s": health.open_for_s,
                    "median_first_event_s": health.median_first_event_s,
                    "running": self._traffic.desk.running(name),
                    "waiting": self._traffic.desk.waiting(name),
                    "concurrency": self._traffic.desk.settings(name).concurrency,
                    "cost_usd_today": round(self._traffic.days.spent(name), 4),
                }
            )
        return rows

    async def check_model(self, alias: str) -> Mapping[str, Any] | Refused:
        """One cheap real call, past limits and an open breaker. Where it succeeds, what is parked on it is woken."""
        if alias not in self._gateway.aliases:
            return Refused("not_found", f"There is no model {alias!r}.", "See: harnessctl model list")
        started = self._clock.monotonic()
        question = Message("user", (TextBlock("Answer with the word ok."),))
        answer = await self._gateway.check(ModelRequest(alias, "", (question,), (), max_tokens=16))
        facts = {"model": alias, "took_s": round(self._clock.monotonic() - started, 3)}
        if isinstance(answer, ModelReply) or answer.hint is ErrorClass.MALFORMED_OUTPUT:
            # Too few words to be an answer still prove that key, address and model are right.
            return facts | {"ok": True, "class": "ok", "sentence": f"model/{alias} answers."} | await self._well(alias)
        return facts | self._ill(alias, answer)

    async def _well(self, alias: str) -> dict[str, Any]:
        name = f"model/{alias}"
        breaker = self._traffic.breakers.find(name)
        if breaker is not None and breaker.word == "tripped":
            return {"woken": 0, "remedy": f"Its breaker is tripped by hand. Close it: harnessctl breaker reset {name}"}
        if breaker is not None and breaker.word != "closed":
            self._traffic.breakers.reset(name, "model check")  # the prober brings parked tasks back bit by bit
            return {"woken": (await self._store.parked_on()).get(name, 0), "remedy": ""}
        woken = await self._store.wake_parked(name, _ALL, self._clock.now(), f"model check: {name} answers")
        if woken:
            self._workers.wake()
        return {"woken": woken, "remedy": ""}

    def _ill(self, alias: str, failure: Failure) -> dict[str, Any]:
        error_class = self._traffic.class_of(failure, NOBODY) or ErrorClass.SERVER_ERROR
        detail = failure.status or failure.transport or ""
        words = " ".join(failure.message.split())[:300]
        remedy = _REMEDIES.get(error_class, "See: harnessctl breaker list")
        if failure.code == "credential_unusable":
            # Nothing was sent: what is wrong and what to do stand in one sentence of our own.
            words, _, told = words.partition(": ")[2].partition(": ")
            remedy = f"{told[0].upper()}{told[1:]}." if told else remedy
        return {
            "ok": False,
            "class": error_class.value,
            "status": failure.status,
            "request": failure.request_id,
            "sentence": f"model/{alias}: {error_class.value}{f' ({detail})' if detail else ''}: {words}",
            "remedy": remedy,
            "woken": 0,
        }

    # --- tools -------------------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """All tools with effect, load and breaker."""
        rows = []
        for short, tool in sorted(self._tools.items()):
            name = f"tool/{short}"
            breaker = self._traffic.breakers.find(name) or Breaker(name)
            rows.append(
                {
                    "tool": short,
                    "effect": tool.effect.value,
                    "about": tool.spec.about.splitlines()[0] if tool.spec.about else "",
                    "breaker": breaker.word,
                    "running": self._traffic.desk.running(name),
                    "waiting": self._traffic.desk.waiting(name),
                }
            )
        return rows

    async def check_tool(self, name: str) -> Mapping[str, Any] | Refused:
        """Whether calls of a tool are let through now. A tool is not called for it: it might do something."""
        short = name.removeprefix("tool/")
        if short not in self._tools:
            return Refused("not_found", f"There is no tool {short!r}.", "See: harnessctl tool list")
        shut = self._traffic.breakers.shut(f"tool/{short}")
        if shut is None:
            return {"tool": short, "ok": True, "sentence": f"tool/{short} can be called.", "remedy": ""}
        remedy = f"Close it by hand: harnessctl breaker reset tool/{short}"
        return {"tool": short, "ok": False, "sentence": f"tool/{short}: {shut.sentence}", "remedy": remedy}

    # --- warnings ----------------------------------------------------------------------------------------------------

    def warnings(self) -> list[dict[str, Any]]:
        """Who answers for whom now, and names whose money of the day is nearly or wholly used up."""
        found = list(self._stand_ins())
        for name in self._traffic.days.names():
            limits = self._traffic.desk.settings(name)
            charged = self._traffic.days.charged(name)
            if limits.cost_usd_per_day is not None and charged >= _NEAR * limits.cost_usd_per_day:
                of = f"{charged:.2f} of {shown('cost_usd', limits.cost_usd_per_day)} USD today"
                found.append({"what": name, "sentence": f"{of}; then {limits.do[0]} until 00:00 UTC"})
        return found

    def _stand_ins(self) -> Iterator[dict[str, Any]]:
        """Degradations of the running tasks: `model/second answers for 11 tasks` (R3.4)."""
        rows: dict[tuple[str, str], list[float]] = {}
        for one in self._workers.standing():
            for home, link in one.counters.degraded.items():
                since = one.counters.roles_since.get(home.partition("/")[0], one.counters.link_since)
                rows.setdefault((home, link), []).append(since)
        for (home, link), times in sorted(rows.items()):
            tasks = f"{len(times)} running task{'s' if len(times) != 1 else ''}"
            since_at = min(times) or None
            yield {"what": home, "since": since_at, "sentence": f"degraded: {link} answers for {tasks}"}

    def _known(self, name: str) -> bool:
        sort, _, rest = name.partition("/")
        return (sort == "model" and rest in self._gateway.aliases) or (sort == "tool" and rest in self._tools)

    def _unknown(self, name: str) -> Refused:
        for sort, names in (("model", self._gateway.aliases), ("tool", tuple(self._tools))):
            if name in names:
                return Refused("not_found", f"There is no dependency {name!r}.", f"Did you mean {sort}/{name}?")
        return Refused("not_found", f"There is no dependency {name!r}.", "See: harnessctl breaker list, tool list")
