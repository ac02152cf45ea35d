"""Verbs of people on tasks: what each does, when it is refused, and what it would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harnessd.domain.ports import Clock, Refused, Store
from harnessd.domain.task import Task, TaskState, Verb, after
from harnessd.policy import budget as budget_policy
from harnessd.runtime.control.answers import Bad, accept
from harnessd.runtime.control.live import Live, Told
from harnessd.runtime.control.show import exhausted, raised, show_task
from harnessd.runtime.drafts import read_changes

# The state in which there is nothing left to do for a verb: answered as done, not as refused.
_ALREADY: Mapping[Verb, frozenset[TaskState]] = {
    Verb.CANCEL: frozenset({TaskState.STOPPED}),
    Verb.PAUSE: frozenset({TaskState.PAUSED}),
    Verb.RESUME: frozenset({TaskState.QUEUED, TaskState.RUNNING}),
    Verb.RETRY: frozenset(),
}
_DONE: Mapping[Verb, str] = {
    Verb.CANCEL: "cancelled",
    Verb.PAUSE: "paused",
    Verb.RESUME: "resumed",
    Verb.RETRY: "retried",
}
_HINTS: Mapping[tuple[Verb, TaskState], str] = {
    (Verb.CANCEL, TaskState.COMPLETED): "There is nothing to cancel.",
    (Verb.PAUSE, TaskState.STOPPED): "There is nothing to pause; go on with: harnessctl resume {task}",
    (Verb.PAUSE, TaskState.COMPLETED): "There is nothing to pause.",
    (Verb.RESUME, TaskState.COMPLETED): "Do it again: harnessctl retry {task}",
    (Verb.RETRY, TaskState.RUNNING): "Stop it first: harnessctl cancel {task}",
    (Verb.RETRY, TaskState.QUEUED): "It has not begun.",
    (Verb.RETRY, TaskState.PAUSED): "Go on with: harnessctl resume {task}",
    (Verb.RETRY, TaskState.PARKED): "Go on with: harnessctl resume {task}",
    (Verb.RETRY, TaskState.WAITING): "Answer it: harnessctl inbox --task {task}",
}
_CHANGES = frozenset({"budget", "labels", "policies", "model", "priority", "pin_policies", "keep"})
# Verb -> the fields its body may hold.
NAMES: Mapping[str, frozenset[str]] = {
    "cancel": frozenset(),
    "pause": frozenset({"now"}),
    "resume": frozenset({"budget", "model", "say"}),
    "retry": frozenset({"policies", "model", "say"}),
    "send": frozenset({"text"}),
    "set": _CHANGES,
}


class Verbs:
    """Performs a verb for a person. `by` is who; `dry` tells what would happen and changes nothing."""

    def __init__(self, store: Store, live: Live, clock: Clock) -> None:
        self._store, self._live, self._clock = store, live, clock

    async def perform(self, name: str, task: Task, body: Mapping[str, Any], by: str, *, dry: bool) -> dict[str, Any]:
        """The answer's document: the task as it stands now, `already`, and `dry_run` if nothing was done."""
        for field in body.keys() - NAMES[name]:
            possible = ", ".join(sorted(NAMES[name])) or "none"
            raise Bad("invalid", f'{name} knows no field "{field}".', f"There are: {possible}.")
        match name:
            case "send":
                return await self._send(task, body, by, dry=dry)
            case "set":
                return await self._set(task, body, by, dry=dry)
            case _:
                return await self._move(Verb(name), task, body, by, dry=dry)

    async def _move(self, verb: Verb, task: Task, body: Mapping[str, Any], by: str, *, dry: bool) -> dict[str, Any]:
        asked = (verb is Verb.CANCEL and task.cancel_asked) or (verb is Verb.PAUSE and task.pause_asked)
        now_too = verb is Verb.PAUSE and body.get("now") is True
        # A pause that was asked for and not yet obeyed can be taken back.
        back = verb is Verb.RESUME and task.state is TaskState.RUNNING and task.pause_asked
        if (task.state in _ALREADY[verb] and not back) or (asked and not now_too):
            return _answer(task, verb.value, already=True, dry=dry)
        if after(task.state, verb) is None and not back:
            hint = _HINTS.get((verb, task.state), "").format(task=task.id)
            raise Bad("refused", f"{task.id} is {_state(task)}: it cannot be {_DONE[verb]}.", hint)
        changes = self._changes(task, body) if verb in (Verb.RESUME, Verb.RETRY) else {}
        say = _text(body, "say")
        if verb is Verb.RESUME:
            self._would_end_again(task, changes)
        if dry:
            return _answer(task, verb.value, already=False, dry=True)
        if changes:
            accept(await self._store.change(task.id, self._clock.now(), by, changes))
        facts = {"say": say} if say else {}
        moved = accept(await self._store.apply(task.id, verb, self._clock.now(), by, **facts))
        self._tell(verb, task, by, now_too=now_too)
        return _answer(moved, verb.value, already=False, dry=False)

    def _tell(self, verb: Verb, task: Task, by: str, *, now_too: bool) -> None:
        if task.state is TaskState.RUNNING:
            running: Mapping[Verb, Told] = {Verb.CANCEL: "cancel", Verb.RESUME: "unpause"}
            self._live.tell(task.id, running.get(verb, "pause_now" if now_too else "pause"), by)
        elif verb in (Verb.RESUME, Verb.RETRY):
            self._live.wake()

    async def _send(self, task: Task, body: Mapping[str, Any], by: str, *, dry: bool) -> dict[str, Any]:
        text = _text(body, "text")
        if not text:
            raise Bad("invalid", "There is no text to send.", "harnessctl send TASK TEXT")
        if task.state.ended:
            hint = (
                f'Say it with: harnessctl resume {task.id} --say "..."'
                if task.state is TaskState.STOPPED
                else f"Start again with: harnessctl retry {task.id}"
            )
            raise Bad("refused", f"{task.id} is {_state(task)}: nobody would read it.", hint)
        if dry:
            return _answer(task, "send", already=False, dry=True)
        message = accept(await self._store.send(task.id, text, self._clock.now(), by))
        self._live.tell(task.id, "message")
        self._live.wake()  # a word wakes a task that is parked on its jobs
        return _answer(task, "send", already=False, dry=False) | {"message": message.id}

    async def _set(self, task: Task, body: Mapping[str, Any], by: str, *, dry: bool) -> dict[str, Any]:
        changes = self._changes(task, body)
        if not changes:
            raise Bad("invalid", "There is nothing to set.", "harnessctl set TASK --budget tool_calls=+60")
        if dry:
            return _answer(task, "set", already=False, dry=True) | {"changes": changes}
        changed = accept(await self._store.change(task.id, self._clock.now(), by, changes))
        self._live.tell(task.id, "policies")
        self._live.wake()
        return _answer(changed, "set", already=False, dry=False) | {"changes": changes}

    def _changes(self, task: Task, body: Mapping[str, Any]) -> dict[str, Any]:
        effective = self._live.effective(task.draft, task.id)
        changes = read_changes(body, task.draft, effective.get("limits", {}))
        if isinstance(changes, Refused):
            raise Bad(changes.code, changes.message, changes.hint)
        if "pinned_revision" in changes and changes["pinned_revision"] is not None:
            changes["pinned_revision"] = effective.get("revision", 0)
        if "model" in changes or "policies" in changes:
            self._check_names(task, changes)
        return changes

    def _check_names(self, task: Task, changes: Mapping[str, Any]) -> None:
        """The names of a change are judged as a submit's are."""
        draft = task.draft
        names = {
            "prompt": draft.prompt,
            "agent": draft.agent,
            "workspace": draft.workspace,
            "model": changes.get("model", draft.model),
            "policies": {**draft.policies, **changes.get("policies", {})},
        }
        accept(self._live.check_draft(names))

    def _would_end_again(self, task: Task, changes: Mapping[str, Any]) -> None:
        if task.state is not TaskState.STOPPED:
            return
        if budget_policy.session_full(task.counters.nodes, task.counters.session_bytes):
            said = f"{task.id} has grown to the limit of a session (session_size); it would end again at once."
            raise Bad("refused", said, f"Take the rest up in a new task; what it did: harnessctl export {task.id}")
        limits = {**self._live.effective(task.draft, task.id).get("limits", {}), **changes.get("budget", {})}
        for name, used, limit in exhausted(task, limits, self._clock.now()):
            said = f"{name} {budget_policy.shown(name, used)} of {budget_policy.shown(name, limit)}"
            raise Bad(
                "refused",
                f"{task.id} ended with {said} used; it would end again at once.",
                f"Raise it: harnessctl resume {task.id} --budget {raised(name, used, limit)}",
            )


def _answer(task: Task, did: str, *, already: bool, dry: bool) -> dict[str, Any]:
    return show_task(task) | {"did": did, "already": already} | ({"dry_run": True} if dry else {})


def _state(task: Task) -> str:
    if task.reason and task.state is TaskState.STOPPED:
        return f"{task.state.value} ({task.reason.value})"
    return task.state.value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise Bad("invalid", f"{name} is not a text.", f'Send {{"{name}": "..."}}.')
    return value.strip()
