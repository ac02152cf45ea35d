"""Handlers: what each route answers, from the store and the running daemon."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from harnessd.domain.events import EventType
from harnessd.domain.ports import Clock, Refused, Store, TaskFilter
from harnessd.domain.record import Question
from harnessd.domain.session import NodeKind
from harnessd.domain.task import StopReason, Task, TaskState
from harnessd.runtime.control import asked, openapi, show
from harnessd.runtime.control.answers import Bad, Json, accept, error, read_object
from harnessd.runtime.control.dependencies.handlers import DependencyHandlers
from harnessd.runtime.control.dependencies.port import Dependencies
from harnessd.runtime.control.draining.handlers import DrainHandlers
from harnessd.runtime.control.events import Wanted, stream
from harnessd.runtime.control.live import Live
from harnessd.runtime.control.peer import Caller
from harnessd.runtime.control.policies import PolicyHandlers
from harnessd.runtime.control.recovery import way
from harnessd.runtime.control.recovery.handlers import RecoveryHandlers
from harnessd.runtime.control.recovery.port import Recovery
from harnessd.runtime.control.routes import ROUTES
from harnessd.runtime.control.transfer.handlers import TransferHandlers
from harnessd.runtime.control.upkeep.handlers import UpkeepHandlers
from harnessd.runtime.control.upkeep.nodes import NodeHandlers, machine_waited_for
from harnessd.runtime.control.verbs import NAMES, Verbs
from harnessd.runtime.control.watching.handlers import WatchingHandlers

_DAY_S = 86400.0
_RUNNING_SHOWN = 20

# The events that put a task without a worker where it stands.
_ENTERED: Mapping[TaskState, frozenset[EventType]] = {
    TaskState.QUEUED: frozenset(
        {
            *(EventType.SUBMITTED, EventType.RESUMED, EventType.RETRIED, EventType.WOKEN),
            *(EventType.ANSWERED, EventType.HANDED_BACK, EventType.INTERRUPTED),
            *(EventType.ROLLED_BACK, EventType.ROLLBACK_FAILED),
        }
    ),
    TaskState.PARKED: frozenset({EventType.PARKED}),
    TaskState.PAUSED: frozenset({EventType.PAUSED, EventType.ROLLED_BACK, EventType.ROLLBACK_FAILED}),
    TaskState.ROLLING_BACK: frozenset({EventType.ROLLING_BACK}),
    TaskState.WAITING: frozenset({EventType.NEEDS_HUMAN, EventType.APPROVAL_WANTED}),
}


class Handlers(
    PolicyHandlers,
    DependencyHandlers,
    RecoveryHandlers,
    TransferHandlers,
    UpkeepHandlers,
    WatchingHandlers,
    DrainHandlers,
    NodeHandlers,
):
    """One method for each row of the table."""

    def __init__(
        self,
        store: Store,
        live: Live,
        clock: Clock,
        stop: asyncio.Event,
        dependencies: Dependencies | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        """`stop` is set when the daemon ends: open streams say good-bye then."""
        self._dependencies, self._recovery = dependencies, recovery
        self._store, self._live, self._clock, self._stop = store, live, clock, stop
        self._verbs = Verbs(store, live, clock)

    async def status(self, _: Request) -> Response:
        now = self._clock.now()
        counts = dict(await self._store.counts())
        ended = await self._store.list(TaskFilter((TaskState.STOPPED, TaskState.COMPLETED), since=now - 7 * _DAY_S))
        running = await self._store.list(TaskFilter((TaskState.RUNNING,), limit=_RUNNING_SHOWN))
        waiting = await self._store.questions()
        last_day = Counter(str(task.reason) for task in ended if task.reason and (task.ended_at or 0) > now - _DAY_S)
        return Json(
            {
                **self._live.status(),
                "now": now,
                "tasks": {state.value: counts.get(state.value, 0) for state in TaskState},
                "last_day": dict(last_day),
                "inbox": len(waiting),
                "running_tasks": [self._with_progress(task) | {"budgets": self._budgets(task)} for task in running],
            }
        )

    async def openapi(self, _: Request) -> Response:
        return Json(openapi.document(ROUTES))

    async def list_tasks(self, request: Request) -> Response:
        query = asked.Query(request.query_params)
        wanted = asked.task_filter(query)
        if ids := query.texts("id"):
            found = [accept(await self._store.find(prefix)) for prefix in ids]
            tasks = [task for task in found if asked.fits(task, wanted)]
        else:
            tasks = list(await self._store.list(wanted))
        if policies := asked.policies(query):
            tasks = [task for task in tasks if self._under(task, policies)]
        agents: Mapping[str, Any] = self._live.policies().get("agents", {})
        if wanted.agent and not tasks and agents and wanted.agent not in agents:
            raise Bad("not_found", f'There is no agent "{wanted.agent}".', f"There are: {', '.join(sorted(agents))}.")
        return Json({"tasks": [show.show_task(task) for task in tasks]})

    async def submit(self, request: Request) -> Response:
        body = await read_object(request)
        dry = asked.Query(request.query_params).flag("dry_run") or body.pop("dry_run", False) is True
        pin = body.pop("pin_policies", False) is True
        if isinstance(body.get("after"), list):
            body["after"] = [(await self._task(str(prefix))).id for prefix in body["after"]]
        draft = accept(self._live.check_draft(body))
        effective = self._live.effective(draft, None)
        if pin:
            draft = replace(draft, pinned_revision=int(effective.get("revision", 0)))
        if dry:
            known = await self._store.known(draft)
            there = accept(known) if known is not None else None
            task = there.task if there is not None else Task("", draft, TaskState.QUEUED, self._clock.now())
            return Json(show.show_task(task) | self._in_force(task) | {"dry_run": True, "fresh": there is None})
        submitted = accept(await self._store.submit(draft, self._clock.now()))
        if submitted.fresh:
            self._live.wake()
        shown = show.show_task(submitted.task) | {"fresh": submitted.fresh}
        return Json(shown, status_code=201 if submitted.fresh else 200)

    async def task(self, request: Request) -> Response:
        task = await self._task(request.path_params["task"])
        decisions = await self._store.decisions(task.id)
        failure = show.show_failure(decisions)
        shown = self._with_progress(task) | self._in_force(task)
        if task.state is TaskState.STOPPED and task.reason is not StopReason.ABORTED:
            # The whole failure in one record; what the row itself says goes first.
            shown = failure | {key: value for key, value in shown.items() if value is not None or key not in failure}
        stands = await way.standing(self._store, task)
        steps = show.steps_now(task, failure, self._models(), self._used_up(task))
        return Json(
            shown
            | stands
            | {
                "prompt": task.draft.prompt,
                "trace": await self._store.trace_at(task.id),
                "last_failure": failure or None,
                "decisions": len(decisions),
                "context": show.show_window(task),
                **await self._last_words(task),
                "state_since": await self._since(task),
                "next": steps + way.steps(task, stands["way"]),
                "waits_behind": await self._store.waits_for(task.id) if task.state is TaskState.QUEUED else None,
                "waits_for_host": await machine_waited_for(self._store, task.id),
                "jobs": [show.show_job(job) for job in await self._store.open_jobs() if job.task == task.id],
                "questions": [show.show_question(one, task) for one in await self._store.questions(task.id)],
            }
        )

    async def verb(self, request: Request) -> Response:
        name = request.path_params["verb"]
        if name not in NAMES:
            raise Bad("not_found", f'There is no verb "{name}".', f"There are: {', '.join(NAMES)}.")
        body = await read_object(request)
        dry = asked.Query(request.query_params).flag("dry_run") or body.pop("dry_run", False) is True
        task = await self._task(request.path_params["task"])
        return Json(await self._verbs.perform(name, task, body, _by(request), dry=dry))

    async def nodes(self, request: Request) -> Response:
        task = await self._task(request.path_params["task"])
        return Json(await way.tree(self._store, task))

    async def node(self, request: Request) -> Response:
        task = await self._task(request.path_params["task"])
        wanted = request.path_params["node"]
        for node in await self._store.nodes(task.id):
            if node.id == wanted:
                facts = await way.node_facts(self._store, task, wanted)
                trace = await self._store.trace_at(task.id, node=wanted)
                return Json({"task": task.id, **show.show_node(node, whole=True), **facts, "trace": trace})
        raise Bad("not_found", f"{task.id} has no node {wanted}.", f"See: harnessctl tree {task.id}")

    async def context(self, request: Request) -> Response:
        task = await self._task(request.path_params["task"])
        found = accept(self._live.context(await self._store.history(task.id)))
        return Json({**show.show_task(task), "context": dict(found)})

    async def decisions(self, request: Request) -> Response:
        task = await self._task(request.path_params["task"])
        found = await self._store.decisions(task.id)
        return Json({**show.show_task(task), "decisions": [show.show_decision(one) for one in found]})

    async def effects(self, request: Request) -> Response:
        task = await self._task(request.path_params["task"])
        found = await self._store.effects(task.id)
        return Json({**show.show_task(task), "effects": [show.show_effect(one) for one in found]})

    async def inbox(self, request: Request) -> Response:
        query = asked.Query(request.query_params)
        asked.error_class(query)
        only = query.text("task")
        task_id = (await self._task(only)).id if only else None
        rows = [await self._question(one) for one in await self._store.questions(task_id)]
        return Json({"questions": [row for row in rows if asked.fits_question(row, query)]})

    async def answer(self, request: Request) -> Response:
        body = await read_object(request)
        dry = asked.Query(request.query_params).flag("dry_run")
        wanted = request.path_params["question"]
        question = await self._waiting(wanted)
        choice, say = asked.choice(body, question)
        if dry:
            task = await self._task(question.task)
            return Json(show.show_task(task) | {"id": wanted, "choice": choice, "dry_run": True})
        task = accept(
            await self._store.answer(f"{question.task}/{question.id}", choice, say, self._clock.now(), _by(request))
        )
        self._live.wake()
        return Json(show.show_task(task) | {"id": wanted, "choice": choice})

    async def events(self, request: Request) -> Response:
        query = asked.Query(request.query_params)
        task = query.text("task")
        after = query.number("after", request.headers.get("last-event-id"))
        wanted = Wanted(
            after=int(after or 0),
            task=(await self._task(task)).id if task else None,
            follow=query.flag("follow"),
            until_end=query.flag("until_end"),
            heartbeat_s=min(60.0, max(1.0, query.number("heartbeat") or 15.0)),
        )
        frames: AsyncIterator[bytes] = stream(self._store, wanted, self._stop)
        headers = {"cache-control": "no-store"}
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers)

    async def _task(self, prefix: str) -> Task:
        if not prefix.isalnum() or len(prefix) > 64:
            raise Bad("not_found", f"{prefix!r} is not a task id.", "See: harnessctl list")
        return accept(await self._store.find(prefix))

    async def _waiting(self, wanted: str) -> Question:
        """The open question of an id, or of `TASK/ID` where two tasks use the same id."""
        fitting = [one for one in await self._store.questions() if wanted in (one.id, f"{one.task}/{one.id}")]
        if len(fitting) > 1:
            names = ", ".join(f"{one.task}/{one.id}" for one in fitting)
            raise Bad("ambiguous", f"{wanted} could be {names}.", "Write the task before the question.")
        if not fitting:
            hint = "It may be answered already; see: harnessctl inbox"
            raise Bad("not_found", f"No question {wanted} waits for an answer.", hint)
        return fitting[0]

    async def _question(self, question: Question) -> dict[str, Any]:
        task = await self._store.find(question.task)
        return show.show_question(question, None if isinstance(task, Refused) else task)

    async def _since(self, task: Task) -> float | None:
        """When the task came into its present state; the move is an event."""
        entered = _ENTERED.get(task.state)
        if entered is None:
            return task.ended_at or task.started_at
        after, found = 0, task.submitted_at
        while events := await self._store.events(after, task.id):
            found = next((one.at for one in reversed(events) if one.type in entered), found)
            after = events[-1].seq
        return found

    async def _last_words(self, task: Task) -> dict[str, Any]:
        """`said`: what the agent said in its last turn, where a budget ended the task. `output`: its answer as a value.

        `output` is there where the agent declares a form; `safe` where it is the declared answer, not the model's.
        """
        ended = task.reason in (StopReason.BUDGET_EXHAUSTED, StopReason.COMPLETED)
        nodes = await self._store.nodes(task.id) if ended else ()
        last = next((node for node in nodes if node.id == task.pointer), None)
        if last is None:
            return {"said": None}
        facts = last.payload.get("facts", {})
        over = task.reason is StopReason.BUDGET_EXHAUSTED and last.kind is NodeKind.ASSISTANT
        said = str(show.show_node(last)["text"]) if over else None
        return {"said": said} | {name: facts[name] for name in ("output", "safe") if name in facts}

    def _used_up(self, task: Task) -> list[tuple[str, float, float]]:
        limits = self._live.effective(task.draft, task.id or None).get("limits", {})
        return show.exhausted(task, limits, self._clock.now())

    def _models(self) -> list[str]:
        """All aliases, where the daemon knows of models."""
        known = self._dependencies.models() if self._dependencies is not None else ()
        return [str(row["model"]) for row in known]

    def _with_progress(self, task: Task) -> dict[str, Any]:
        progress = self._live.progress(task.id) if task.state is TaskState.RUNNING else None
        shown = show.show_task(task)
        if progress is None:
            return shown | {"progress": None}
        return shown | {"progress": dict(progress), "doing": progress.get("doing") or shown["doing"]}

    def _budgets(self, task: Task, effective: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        known = self._live.effective(task.draft, task.id or None) if effective is None else effective
        return show.show_budgets(task, known.get("limits", {}), self._clock.now(), self._silence(task))

    def _in_force(self, task: Task) -> dict[str, Any]:
        effective: Mapping[str, Any] = self._live.effective(task.draft, task.id or None)
        return {
            "model": effective.get("model", task.draft.model),
            "budgets": self._budgets(task, effective),
            "policies": effective.get("policies", {}),
            "policies_missing": effective.get("missing", []),
            "revision": effective.get("revision", 0),
            "pinned": task.draft.pinned_revision is not None,
        }

    def _silence(self, task: Task) -> float | None:
        progress = self._live.progress(task.id) if task.state is TaskState.RUNNING else None
        # Silence is the other side's: while we wait by our own will, nobody owes us a sign of life.
        ours = progress is None or progress.get("phase") == "backoff" or progress.get("in_line")
        return None if ours or progress is None else progress.get("life_s")

    def _under(self, task: Task, policies: Mapping[str, str]) -> bool:
        names: Mapping[str, Any] = self._live.effective(task.draft, task.id).get("policies", {})
        return all(names.get(kind, {}).get("name") == name for kind, name in policies.items())


def _by(request: Request) -> str:
    caller: Caller = request.scope["harnessd.caller"]
    return caller.name


async def refuse_path(request: Request, _: Exception) -> Response:
    """404 of the router."""
    return error("not_found", f"There is nothing at {request.url.path}.", "See /v1/openapi.json.")


async def refuse_method(request: Request, _: Exception) -> Response:
    """405 of the router."""
    return error("method_not_allowed", f"{request.method} is not possible here.", "See /v1/openapi.json.")
