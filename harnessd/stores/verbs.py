"""Verbs: what persons do to tasks: resume, retry, cancel, pause, set, send, answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harnessd.domain.effect import Effect
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Refused
from harnessd.domain.record import PersonMessage, Question
from harnessd.domain.session import Node, NodeKind
from harnessd.domain.task import Task, TaskDraft, TaskState, Verb, after
from harnessd.stores.database import Missed, Statement, Unit
from harnessd.stores.kernel import event
from harnessd.stores.operations.jobs import woken_by_word
from harnessd.stores.queue import Queue
from harnessd.stores.records import SEEN_AS, TARGETS, move, said
from harnessd.stores.rows import draft_from_json, draft_to_json, effect_from, encode, node_from, plain, question_from

PLANS = 16  # how often a verb is planned anew because the task moved between reading and writing
PERSONAL = (Verb.RESUME, Verb.RETRY, Verb.CANCEL, Verb.PAUSE)
ALREADY_SO = (Verb.RESUME, Verb.CANCEL, Verb.PAUSE)  # asking for what is there is no mistake
ASKED = {Verb.PAUSE: EventType.PAUSE_ASKED, Verb.CANCEL: EventType.CANCEL_ASKED}
CHANGES = ("budget", "policies", "model", "priority", "labels", "pinned_revision", "keep_s")
DONE = {
    Verb.RESUME: "resumed",
    Verb.RETRY: "retried",
    Verb.CANCEL: "cancelled",
    Verb.PAUSE: "paused",
}
HINTS = {
    TaskState.QUEUED: "It has not run since; `harnessctl cancel {id}` takes it out of the queue.",
    TaskState.RUNNING: "It is at work; `harnessctl pause {id}` or `harnessctl cancel {id}` stops it first.",
    TaskState.PARKED: "`harnessctl resume {id}` wakes it now, `harnessctl cancel {id}` ends it.",
    TaskState.WAITING: "`harnessctl inbox` shows what it asks, `harnessctl resume {id}` goes on without an answer.",
    TaskState.PAUSED: "`harnessctl resume {id}` goes on, `harnessctl cancel {id}` ends it.",
    TaskState.ROLLING_BACK: "Wait until the rollback is through; `harnessctl status {id}` shows it.",
    TaskState.STOPPED: "`harnessctl resume {id}` goes on, `harnessctl retry {id}` does the last turn again.",
    TaskState.COMPLETED: "`harnessctl retry {id}` does the last turn again; `harnessctl submit` makes a new task.",
}


class Verbs(Queue):
    """The rest of `TaskQueue`. Each verb is planned on what is read and written by compare-and-set."""

    async def apply(self, task: str, verb: Verb, now: float, by: str, **facts: Any) -> Task | Refused:
        """See the port. `say` in the facts of `resume` becomes a person's message in the same unit."""
        for _ in range(PLANS):
            found = await self.find(task)
            if isinstance(found, Refused):
                return found
            planned = await self._planned(found, verb, now, by, facts)
            if not isinstance(planned, tuple):
                return planned
            try:
                await self._write(planned)
            except Missed:
                continue
            self._queued.set()
            return await self._task(found.id)
        raise HarnessError(f"Task {task} moved each time it was looked at.")

    async def _planned(
        self, task: Task, verb: Verb, now: float, by: str, facts: Mapping[str, Any]
    ) -> Unit | Task | Refused:
        state = task.state
        if verb not in PERSONAL:
            return Refused("refused", f"A person cannot {verb.value} a task this way.", HINTS[state].format(id=task.id))
        if state is TaskState.RUNNING:
            asked = _asked_of_running(task, verb, now, by, facts)
            return asked if asked is not None else refusal(task, verb)
        if verb in ALREADY_SO and TARGETS[verb] is state:
            return task
        if after(state, verb) is None:
            return refusal(task, verb)
        where = await self._before_failed_turn(task) if verb is Verb.RETRY else task.pointer
        epoch = await self._epoch(task.id)
        sentence = f"Cancelled by {by}." if verb is Verb.CANCEL else ""
        steps = encode([["harnessctl", "resume", task.id]]) if verb is Verb.CANCEL else "[]"
        row = {"sentence": plain(sentence), "next_steps": steps}
        data = {"by": by, **facts, **({"sentence": sentence, "reason": "aborted"} if verb is Verb.CANCEL else {})}
        if where != task.pointer:
            data |= {"from": task.pointer, "to": where}
        return (
            *move(task.id, epoch, verb, now, (state,), row),
            Statement("move_pointer", {"task": task.id, "expected": task.pointer, "to": where}, must_touch=1),
            *_said(task.id, facts, now, by),
            event(SEEN_AS[verb], now, task.id, data, where),
        )

    async def _epoch(self, task: str) -> int:
        row = await self._row("epoch", {"task": task})
        return row[0] if row is not None else 0

    async def _before_failed_turn(self, task: Task) -> str | None:
        params = {"task": task.id}
        path, effects = await self._database.fetch((Statement("path", params), Statement("effects", params)))
        return before_last_turn([node_from(row) for row in path], [effect_from(row) for row in effects])

    async def change(self, task: str, now: float, by: str, changes: Mapping[str, Any]) -> Task | Refused:
        """See the port. A map is merged into the one there; None takes a name out of it."""
        unknown = sorted(set(changes) - set(CHANGES))
        if unknown:
            return Refused("refused", f"{unknown[0]!r} cannot be set on a task.", f"One can set {', '.join(CHANGES)}.")
        for _ in range(PLANS):
            found = await self.find(task)
            if isinstance(found, Refused):
                return found
            was = (await self._rows("draft", {"task": found.id}))[0][0]
            draft = changed(draft_from_json(json.loads(was)), changes)
            params = {
                "task": found.id,
                "was": was,
                "draft": encode(draft_to_json(draft)),
                "priority": draft.priority,
                "labels": encode(dict(draft.labels)),
            }
            shown = event(EventType.CHANGED, now, found.id, {"by": by, "changes": dict(changes)})
            try:
                await self._write((Statement("change_draft", params, must_touch=1), shown))
            except Missed:
                continue
            return await self._task(found.id)
        raise HarnessError(f"Task {task} was changed each time it was looked at.")

    async def send(self, task: str, text: str, now: float, by: str) -> PersonMessage | Refused:
        """See the port."""
        found = await self.find(task)
        if isinstance(found, Refused):
            return found
        # Whoever waits for a job only may be told something better.
        answer = await self._write((
            *_said(found.id, {"say": text}, now, by),
            *woken_by_word(found.id, now, f"{by} said something"),
        ))  # fmt: skip
        self._queued.set()
        if not answer[0]:
            return Refused(
                "refused",
                f"Task {found.id} has ended ({found.reason or found.state}) and reads no messages.",
                f"`harnessctl resume {found.id} --say TEXT` goes on with your words.",
            )
        return PersonMessage(answer[0][0][0], plain(text), now)

    async def answer(self, question: str, choice: str, say: str, now: float, by: str) -> Task | Refused:
        """See the port. `TASK/ID` names a question whose id more than one task uses."""
        asked = await self._question(question)
        if isinstance(asked, Refused):
            return asked
        if asked.choice is not None:
            if asked.choice == choice:
                return await self._task(asked.task)
            words = f"{asked.id} was answered {asked.choice!r} by {asked.answered_by}."
            return Refused("conflict", words, f"`harnessctl status {asked.task}` shows what came of it.")
        if asked.choices and choice not in asked.choices:
            words = f"{choice!r} is no answer to {asked.id}."
            return Refused("refused", words, f"Choose one of {', '.join(asked.choices)}.")
        params = {"task": asked.task, "id": asked.id, "choice": plain(choice), "say": plain(say), "by": by, "now": now}
        data = {"question": asked.id, "choice": choice, "say": say, "by": by}
        try:
            await self._write(
                (
                    Statement("answer_question", params, must_touch=1),
                    Statement("queue_answered", {"id": asked.task, "task": asked.task, "now": now}),
                    event(EventType.ANSWERED, now, asked.task, data, asked.node),
                )
            )
        except Missed:
            return await self.answer(question, choice, say, now, by)
        self._queued.set()
        return await self._task(asked.task)

    async def _question(self, name: str) -> Question | Refused:
        task, _, id_ = name.rpartition("/")
        rows = await self._rows("question_by_id", {"id": id_, "task": task or None})
        questions = [question_from(row) for row in rows]
        waiting = [question for question in questions if question.choice is None]
        if len(waiting) > 1:
            names = ", ".join(f"{question.task}/{question.id}" for question in waiting)
            return Refused("ambiguous", f"{name!r} may mean {names}.", "Write the task before the question.")
        if not questions:
            return Refused("not_found", f"There is no question {name!r}.", "`harnessctl inbox` shows what waits.")
        asked = (waiting or questions)[0]
        state = (await self._task(asked.task)).state
        if asked.choice is None and state.ended:
            hint = f"`harnessctl resume {asked.task}` goes on with it."
            return Refused("refused", f"Task {asked.task} has ended ({state.value}); nobody waits for {name!r}.", hint)
        return asked


def refusal(task: Task, verb: Verb) -> Refused:
    """Why a verb does not go with the present state, and what does."""
    words = f"{task.state.value} ({task.reason.value})" if task.reason is not None else task.state.value
    return Refused(
        "refused",
        f"Task {task.id} is {words} and cannot be {DONE[verb]}.",
        HINTS[task.state].format(id=task.id),
    )


def before_last_turn(path: Sequence[Node], effects: Sequence[Effect]) -> str | None:
    """Where the last turn began: the node its model call was planned from, else before the last assistant node.

    A call that failed left no assistant node: the turn before it was sound and is kept.
    """
    there = {node.id for node in path}
    for effect in reversed(effects):
        if effect.kind == "model" and effect.node in there:
            return effect.node
    for node in reversed(path):
        if node.kind is NodeKind.ASSISTANT:
            return node.parent
    return path[-1].id if path else None


def changed(draft: TaskDraft, changes: Mapping[str, Any]) -> TaskDraft:
    """The draft with the changes in it."""
    new: dict[str, Any] = {}
    for name, value in changes.items():
        if name in ("budget", "policies", "labels"):
            merged = {**getattr(draft, name), **value}
            new[name] = {key: kept for key, kept in merged.items() if kept is not None}
        else:
            new[name] = value
    return replace(draft, **new)


def _asked_of_running(task: Task, verb: Verb, now: float, by: str, facts: Mapping[str, Any]) -> Unit | Task | None:
    """What a person may ask of a task at work: its row remembers, its worker does the rest."""
    if verb in ASKED:
        if (verb is Verb.PAUSE and task.pause_asked) or (verb is Verb.CANCEL and task.cancel_asked):
            return task
        flags = {"task": task.id, "pause": int(verb is Verb.PAUSE), "cancel": int(verb is Verb.CANCEL)}
        shown = event(ASKED[verb], now, task.id, {"by": by, **facts})
        return (Statement("ask_running", flags, must_touch=1), shown)
    if verb is Verb.RESUME and task.pause_asked:
        shown = event(EventType.RESUMED, now, task.id, {"by": by, **facts})
        said = _said(task.id, facts, now, by)
        return (Statement("withdraw_pause", {"task": task.id}, must_touch=1), *said, shown)
    return None


def _said(task: str, facts: Mapping[str, Any], now: float, by: str) -> Unit:
    return said(task, facts.get("say") or "", now, by)
