"""Handlers of rollbacks, checkpoints and differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from harnessd.domain.ports import Clock, Store
from harnessd.domain.task import Task
from harnessd.runtime.control import asked
from harnessd.runtime.control.answers import Bad, Json, accept, read_object
from harnessd.runtime.control.live import Live
from harnessd.runtime.control.peer import Caller
from harnessd.runtime.control.recovery.port import Recovery
from harnessd.runtime.rollbacks.targets import Wish

_FIELDS = frozenset({"to", "steps", "undo", "keep", "overwrite", "undo_effects", "prompt", "model", "dry_run"})


class RecoveryHandlers:
    """The routes rollback, diff and checkpoints of a task."""

    _recovery: Recovery | None
    _store: Store
    _live: Live
    _clock: Clock

    async def rollback(self, request: Request) -> Response:
        """Take a task back to a node, files and all; `dry_run` tells what it would do."""
        body = await read_object(request)
        dry = asked.Query(request.query_params).flag("dry_run") or body.pop("dry_run", False) is True
        task = accept(await self._store.find(request.path_params["task"]))
        wish = _wish(task, body)
        await self._check_model(task, wish, dry=dry)
        caller: Caller = request.scope["harnessd.caller"]
        found = accept(await self._keeper().wanted(task, wish, caller.name, dry=dry))
        story, refused = found
        if refused is None:
            return Json({**story, "refusal": None})
        if not dry:
            raise Bad(refused.code, refused.message, refused.hint)
        # The story is told all the same: it holds what has to be chosen.
        return Json({**story, "refusal": {"message": refused.message, "hint": refused.hint}})

    async def diff(self, request: Request) -> Response:
        """What differs in a task's workspace between two nodes, or between one and now."""
        task = accept(await self._store.find(request.path_params["task"]))
        query = asked.Query(request.query_params)
        return Json(dict(accept(await self._keeper().differ(task, query.text("from") or "", query.text("to") or ""))))

    async def checkpoints(self, request: Request) -> Response:
        """A task's checkpoints."""
        task = accept(await self._store.find(request.path_params["task"]))
        return Json({"task": task.id, "checkpoints": await self._keeper().checkpoints(task)})

    async def _check_model(self, task: Task, wish: Wish, *, dry: bool) -> None:
        if not wish.model:
            return
        names = {"prompt": task.draft.prompt, "agent": task.draft.agent, "workspace": task.draft.workspace}
        accept(self._live.check_draft({**names, "model": wish.model, "policies": dict(task.draft.policies)}))
        if not dry:
            changed: Mapping[str, Any] = {"model": wish.model}
            accept(await self._store.change(task.id, self._clock.now(), "rollback", changed))

    def _keeper(self) -> Recovery:
        if self._recovery is None:
            raise Bad("refused", "This daemon keeps no checkpoints.")
        return self._recovery


def _wish(task: Task, body: Mapping[str, Any]) -> Wish:
    """The body as a wish; exactly one way of saying where to."""
    for name in sorted(set(body) - _FIELDS):
        raise Bad("invalid", f'rollback knows no field "{name}".', f"There are: {', '.join(sorted(_FIELDS))}.")
    keep, overwrite = _texts(body, "keep"), _texts(body, "overwrite")
    to = _text(body, "to")
    steps, undo = body.get("steps", 0), body.get("undo", False) is True
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise Bad("invalid", "steps is not a count of turns.", 'Send {"steps": 1}.')
    if (bool(to) + bool(steps) + undo) != 1:
        hint = f"harnessctl rollback {task.id} --to NODE, --to last-good, --steps N or --undo"
        raise Bad("invalid", "Where to go back to is to be said in exactly one way.", hint)
    if both := set(keep) & set(overwrite):
        raise Bad("invalid", f"{min(both)} cannot be kept and overwritten.", "Name it once.")
    effects, prompt, model = _texts(body, "undo_effects"), _text(body, "prompt"), _text(body, "model")
    return Wish(to, steps, undo, keep, overwrite, effects, prompt, model)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise Bad("invalid", f"{name} is not a text.", f'Send {{"{name}": "..."}}.')
    return value.strip()


def _texts(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Bad("invalid", f"{name} is not a list of texts.", f'Send {{"{name}": ["..."]}}.')
    return tuple(one.rstrip("/") for one in value)
