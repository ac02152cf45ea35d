"""Handlers of export and import."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from harnessd.domain.effect import EffectState
from harnessd.domain.ports import Clock, Store
from harnessd.domain.task import Task, TaskDraft, TaskState
from harnessd.domain.transfer import Brought
from harnessd.runtime.control import asked, show
from harnessd.runtime.control.answers import Bad, Json, accept
from harnessd.runtime.control.live import Live
from harnessd.runtime.control.peer import Caller
from harnessd.runtime.control.transfer import rows
from harnessd.runtime.control.transfer.reading import Reader, Session
from harnessd.runtime.control.transfer.writing import session_lines

SILENCE_S = 30.0
# What a file may say of how the new task is to be run; another agent has its own.
_ASKED = ("priority", "budget")
_OF_AGENT = ("model", "feature", "policies")


class TransferHandlers:
    """The routes export of a task and import."""

    _store: Store
    _live: Live
    _clock: Clock

    async def export(self, request: Request) -> Response:
        """A whole session as JSON lines."""
        prefix = request.path_params["task"]
        if not prefix.isalnum() or len(prefix) > 64:
            raise Bad("not_found", f"{prefix!r} is not a task id.", "See: harnessctl list")
        task = accept(await self._store.find(prefix))
        lines = session_lines(self._store, task.id, self._clock.now())
        # The first part before the answer begins: what fails at once is still told as an error.
        first = await anext(lines)

        async def all_of_it() -> Any:
            yield first
            async for part in lines:
                yield part

        return StreamingResponse(all_of_it(), media_type="application/jsonl", headers={"cache-control": "no-store"})

    async def bring_in(self, request: Request) -> Response:
        """The lines of a session become a new task, paused; `dry_run` checks them."""
        query = asked.Query(request.query_params)
        session = await _received(request)
        task, agent = session.task, query.text("agent")
        draft = accept(self._live.check_draft(_wanted(session, agent, query.text("workspace"))))
        brought = _brought(session, draft, task.get("system") if agent in (None, task["draft"].get("agent")) else None)
        caller: Caller = request.scope["harnessd.caller"]
        now = self._clock.now()
        facts = _facts(brought)
        if query.flag("dry_run"):
            would = Task("", brought.draft, TaskState.PAUSED, now, pointer=brought.pointer, counters=brought.counters)
            return Json(show.show_task(would) | facts | {"dry_run": True})
        made = await self._store.bring_in(brought, now, caller.name)
        return Json(show.show_task(made) | facts, status_code=201)


async def _received(request: Request) -> Session:
    reader = Reader()
    parts = request.stream()
    try:
        while True:
            async with asyncio.timeout(SILENCE_S):
                part = await anext(parts, None)
            if part is None:
                return reader.end()
            reader.feed(part)
            await asyncio.sleep(0)  # a long file must not keep the daemon's loop for itself
    except TimeoutError:
        hint = "Send the whole file at once."
        raise Bad("bad_request", f"Nothing of the file came for {SILENCE_S:.0f}s.", hint) from None
    except ClientDisconnect:
        raise Bad("bad_request", "The file was cut.") from None


def _wanted(session: Session, agent: str | None, workspace: str | None) -> dict[str, Any]:
    """The body of a submit, as it is checked for every task."""
    stored: Mapping[str, Any] = session.task["draft"]
    fields = _ASKED if agent not in (None, stored.get("agent")) else (*_ASKED, *_OF_AGENT)
    labels = stored.get("labels") or {}
    if not isinstance(labels, dict):
        raise Bad("invalid", "The labels of the session are no object.")
    place = workspace or stored.get("workspace")
    if not place:
        raise Bad("invalid", "The session names no workspace.", "Name a folder with --workspace.")
    return {
        "prompt": stored.get("prompt"),
        "agent": agent or stored.get("agent"),
        "workspace": place,
        "labels": {**labels, "imported": session.task["task"]},
        **{name: stored[name] for name in fields if stored.get(name)},
    }


def _brought(session: Session, draft: TaskDraft, system: str | None) -> Brought:
    task = session.task
    highest = [rows.highest([one.id for one in part]) for part in (session.nodes, session.effects)]
    return Brought(
        source=task["task"],
        draft=replace(draft, keys_of=task.get("keys_of")),
        nodes=session.nodes,
        effects=session.effects,
        decisions=session.decisions,
        pointer=task.get("pointer"),
        counters=rows.counters_from(task["counters"], *highest),
        system=system,
    )


def _facts(brought: Brought) -> dict[str, Any]:
    """What the person is told of it: how much came, and what of it was never known to be done."""
    unknown = [
        one.id for one in brought.effects if one.kind == "tool" and (one.state is EffectState.UNKNOWN or one.state.open)
    ]
    return {
        "imported": brought.source,
        "nodes": len(brought.nodes),
        "effects": len(brought.effects),
        "decisions": len(brought.decisions),
        "unknown": unknown,
    }
