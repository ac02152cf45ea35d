"""Handlers of metrics and of `harnessctl top`: a look that costs little, however often it is taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from harnessd.domain.ports import Clock, Store
from harnessd.domain.task import Task, TaskState
from harnessd.runtime.control import asked
from harnessd.runtime.control.answers import Bad, Json
from harnessd.runtime.observing.meters import CONTENT_TYPE

# Who works stands first, then who waits for somebody, then who waits for a time or a worker.
_ORDER = ("running", "rolling_back", "waiting", "parked", "paused", "queued")


class WatchingHandlers:
    """The routes /metrics and /v1/top."""

    metrics_text: Callable[[], Awaitable[str]] | None = None
    _store: Store
    _clock: Clock

    def _with_progress(self, task: Task) -> dict[str, Any]:
        raise NotImplementedError

    def _budgets(self, task: Task, effective: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def metrics(self, _: Request) -> Response:
        """All figures, as Prometheus reads them."""
        if self.metrics_text is None:
            raise Bad("refused", "This daemon counts nothing.", "See: harnessctl status")
        return Response(await self.metrics_text(), media_type=CONTENT_TYPE)

    async def top(self, request: Request) -> Response:
        """The tasks that have not ended: step, use, what they wait for."""
        wanted = asked.task_filter(asked.Query(request.query_params))
        tasks = sorted(await self._store.list(wanted), key=_place)
        idle = [task.id for task in tasks if task.state is not TaskState.RUNNING]
        moved = await self._store.latest(idle)
        rows = [self._top_row(task, moved.get(task.id)) for task in tasks]
        counts = await self._store.counts()
        return Json({"now": self._clock.now(), "states": dict(counts), "tasks": rows})

    def _top_row(self, task: Task, moved_at: float | None) -> dict[str, Any]:
        shown = self._with_progress(task)
        progress = shown["progress"] or {}
        kept = ("task", "title", "agent", "state", "turns", "tool_calls", "tokens", "cost_usd", "until", "labels")
        return {name: shown[name] for name in kept} | {
            "turns": progress.get("turns", shown["turns"]),
            "tool_calls": progress.get("tool_calls", shown["tool_calls"]),
            "cost_usd": progress.get("cost_usd", shown["cost_usd"]),
            "used": _nearest(self._budgets(task)),
            "since": progress.get("since") or moved_at or task.submitted_at,
            "waits": _waits(task, str(shown["doing"]), in_line=bool(progress.get("in_line"))),
        }


def _place(task: Task) -> tuple[int, float]:
    state = task.state.value
    return _ORDER.index(state) if state in _ORDER else len(_ORDER), task.submitted_at


def _nearest(budgets: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The budget of which most is used: its name, and the part (0..1)."""
    parts = [(row["used"] / row["limit"], row["budget"]) for row in budgets if row["used"] and row["limit"]]
    if not parts:
        return None
    share, budget = max(parts)
    return {"budget": budget, "share": round(share, 4)}


def _waits(task: Task, doing: str, *, in_line: bool) -> str:
    """What a task waits for, in few words; of one at work, what it does."""
    match task.state:
        case TaskState.RUNNING:
            return f"in line: {doing}" if in_line else doing
        case TaskState.WAITING:
            return f"a person: {task.why or task.waits_for or 'an answer'}"
        case TaskState.PARKED:
            return task.why or "its time"
        case TaskState.PAUSED:
            return f"resume{f': {task.why}' if task.why else ''}"
        case TaskState.QUEUED:
            after = ", ".join(task.draft.after)
            return f"after {after}" if after else "a worker"
        case _:
            return task.why or task.state.value.replace("_", " ")
