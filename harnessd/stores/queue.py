"""Queue: tasks from submit over lease and heartbeat to the next one that is due."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

from harnessd.domain.effect import canonical_json
from harnessd.domain.events import EventType
from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import Refused, Submitted, TaskFilter
from harnessd.domain.record import Question
from harnessd.domain.task import Lease, Task, TaskDraft, TaskState
from harnessd.domain.transfer.chain import CHAIN_START
from harnessd.stores.database import Conflict, Statement, Unit
from harnessd.stores.kernel import Kernel, event
from harnessd.stores.records import fence_of
from harnessd.stores.rows import draft_from_json, draft_to_json, encode, folder, plain, question_from, task_from

# Crockford's digits: none is mistaken for another when read aloud, and they sort as their values do.
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
ID_DIGITS = 6  # 2**30 seconds from the start below: until 2058
ID_START_S = 1_704_067_200  # 2024-01-01T00:00:00Z
ID_TRIES = 8
CLAIMS_AT_ONCE = 16  # in one unit: it is written out for all of them before anybody knows how many are queued
BEYOND = "\x7f"  # sorts behind every id


class Queue(Kernel):
    """`TaskQueue` of the domain's ports, but for what persons do to tasks (`verbs.py`)."""

    _last_id: int = -1
    _claims: int = 0

    async def open(self, owner: str) -> None:
        """See the port."""
        await super().open(owner)
        try:
            await self._behind_newest()
        except BaseException:  # a damaged page: whoever tries again must find the lock free
            await self.close()
            raise

    async def _behind_newest(self) -> None:
        newest = await self._row("newest_id", {})
        found = id_number(newest[0]) if newest is not None and newest[0] else -1
        self._last_id = max(self._last_id, found)

    # --- submit ------------------------------------------------------------------------------------------------------

    async def submit(self, draft: TaskDraft, now: float) -> Submitted | Refused:
        """See the port."""
        self._crashpoint("J1")  # read, not written: the client sees no answer and asks again with its key
        if draft.after:
            found = await self._predecessors(draft.after)
            if isinstance(found, Refused):
                return found
            draft = replace(draft, after=found)
        for _ in range(ID_TRIES):
            task = Task(self._next_id(now), draft, TaskState.QUEUED, now)
            unit = submission(task)
            try:
                answer = await self._write(unit)
            except Conflict:
                await self._behind_newest()  # somebody else's id: another daemon's, or from a clock set back
                continue
            if not answer[0]:
                return await self._same_key(draft)
            self._queued.set()
            self._crashpoint("J2")  # written, not answered: the client asks again and gets this task
            stored: str = unit[0].params["draft"]
            # What is not plain ASCII may have been mended on its way in.
            kept = task if stored.isascii() else replace(task, draft=draft_from_json(json.loads(stored)))
            return Submitted(kept, fresh=True)
        raise HarnessError("No free task id was found.")

    async def known(self, draft: TaskDraft) -> Submitted | Refused | None:
        """See the port."""
        if draft.key is None or await self._row("task_by_key", {"key": key_of(draft)}) is None:
            return None
        return await self._same_key(draft)

    async def _same_key(self, draft: TaskDraft) -> Submitted | Refused:
        row = await self._row("task_by_key", {"key": key_of(draft)})
        if row is None:
            raise HarnessError(f"The task with the key {draft.key!r} vanished while it was looked up.")
        task = task_from(row[1:])
        if row[0] == identity_of(draft):
            return Submitted(task, fresh=False)
        return Refused(
            "conflict",
            f"The key {draft.key!r} belongs to task {task.id}, which asks for something else.",
            "Use another --key, or submit exactly the same again.",
        )

    async def _predecessors(self, after: Sequence[str]) -> tuple[str, ...] | Refused:
        ids = []
        for prefix in after:
            found = await self.find(prefix)
            if isinstance(found, Refused):
                return replace(found, message=f"--after: {found.message}")
            ids.append(found.id)
        return tuple(ids)

    def _next_id(self, now: float) -> str:
        self._last_id = max(self._last_id + 1, int(now) - ID_START_S, 0)
        return id_text(self._last_id)

    # --- leases ------------------------------------------------------------------------------------------------------

    async def claim(
        self, owner: str, limit: int, now: float, ttl_s: float, full: Collection[str] = ()
    ) -> tuple[Task, ...]:
        """See the port."""
        tasks: tuple[Task, ...] = ()
        while len(tasks) < limit:
            wanted = min(limit - len(tasks), CLAIMS_AT_ONCE)
            more = await self._claim(owner, wanted, now, ttl_s, encode(list(full)))
            tasks += more
            if len(more) < wanted:
                break
        if tasks:
            self._crashpoint("J3")  # leased, nobody works: the lease ends, or the next start releases it
        return tasks

    async def _claim(self, owner: str, count: int, now: float, ttl_s: float, full: str) -> tuple[Task, ...]:
        unit: list[Statement] = []
        traces: list[str] = []
        for _ in range(count):
            self._claims += 1
            claim = f"{self.epoch}-{self._claims}"
            traces.append(_trace(owner, claim, now))
            data = encode({"owner": owner, "trace": traces[-1]})
            lease = {"owner": owner, "now": now, "expires": now + ttl_s, "ttl": ttl_s}
            params = {**lease, "claim": claim, "data": data, "full": full}
            unit += (
                Statement("claim_one", params, or_stop=True),
                Statement("hold_workspace", params),
                Statement("event_started", params),
            )
        answer = await self._write(tuple(unit))
        claimed = zip(answer[0::3], traces, strict=False)  # the unit ends at the first claim that finds nothing
        return tuple(_traced(task_from(rows[0]), trace) for rows, trace in claimed if rows)

    async def heartbeat(self, leases: Sequence[Lease], now: float, ttl_s: float) -> frozenset[str]:
        """See the port."""
        if not leases:
            return frozenset()
        answer = await self._write(
            tuple(
                Statement(
                    "heartbeat",
                    {**fence_of(lease), "now": now, "expires": now + ttl_s, "ttl": ttl_s},
                )
                for lease in leases
            )
        )
        return frozenset(row[0] for rows in answer for row in rows)

    async def sweep(self, now: float) -> int:
        """See the port."""
        if await self._row("due_for_sweep", {"now": now}) is None:
            return 0
        interrupted = {"now": now, "expired": now, "why": "the lease ran out"}
        woken = {"now": now}
        return await self._requeue(
            (
                Statement("event_interrupted", interrupted),
                Statement("requeue_interrupted", interrupted),
                Statement("event_woken", woken),
                Statement("requeue_woken", woken),
            )
        )

    async def release_all(self, now: float) -> int:
        """See the port. A planned shutdown hands its tasks back before, and costs no recovery."""
        params = {"now": now, "expired": None, "why": "the daemon ended without handing it back"}
        return await self._requeue(
            (Statement("event_interrupted", params), Statement("requeue_interrupted", params)),
        )

    async def _requeue(self, unit: Unit) -> int:
        answer = await self._write(unit)
        count = sum(len(rows) for rows in answer)
        if count:
            self._queued.set()
        return count

    async def next_due(self, now: float) -> float | None:
        """See the port. Leases are not counted: they are prolonged while their worker lives."""
        row = await self._row("next_due", {"now": now})
        due: float | None = row[0] if row else None
        return due

    # --- reading -----------------------------------------------------------------------------------------------------

    async def find(self, prefix: str) -> Task | Refused:
        """See the port."""
        wanted = plain(prefix.strip().lower())
        rows = await self._rows("ids_by_prefix", {"prefix": wanted, "beyond": wanted + BEYOND}) if wanted else []
        ids = [row[0] for row in rows]
        if not ids:
            return Refused("not_found", f"There is no task {prefix!r}.", "`harnessctl list` shows the tasks there are.")
        if len(ids) > 1 and ids[0] != wanted:
            shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
            return Refused("ambiguous", f"{prefix!r} may mean {shown}.", "Write one more character of the id.")
        return await self._task(ids[0])

    async def list(self, wanted: TaskFilter) -> Sequence[Task]:
        """See the port."""
        params = {
            "states": encode([state.value for state in wanted.states]) if wanted.states else None,
            "reasons": encode(list(wanted.reasons)) if wanted.reasons else None,
            "error_class": wanted.error_class,
            "agent": wanted.agent,
            "labels": encode(dict(wanted.labels)),
            "since": wanted.since,
            "until": wanted.until,
            "limit": wanted.limit,
        }
        return [task_from(row) for row in await self._rows("list_tasks", params)]

    async def counts(self) -> Mapping[str, int]:
        """See the port."""
        return {state.value: 0 for state in TaskState} | dict(await self._rows("counts", {}))

    async def waits_for(self, task: str) -> str | None:
        """See the port."""
        for name in ("first_unfinished", "workspace_holder"):
            row = await self._row(name, {"task": task})
            if row is not None:
                other: str = row[0]
                return other
        return None

    async def questions(self, task: str | None = None) -> Sequence[Question]:
        """See the port."""
        return [question_from(row) for row in await self._rows("open_questions", {"task": task})]

    async def _task(self, task: str) -> Task:
        row = await self._row("task_by_id", {"task": task})
        if row is None:
            raise HarnessError(f"There is no task {task}.")
        return task_from(row)


def submission(task: Task) -> Unit:
    """The unit that makes a task; it ends at the first statement where the key is known already."""
    draft = task.draft
    params = {
        "id": task.id,
        "key": key_of(draft),
        "identity": identity_of(draft) if draft.key is not None else "",
        "draft": encode(draft_to_json(draft)),
        "agent": plain(draft.agent),
        "labels": encode(dict(draft.labels)) if draft.labels else "{}",
        "priority": draft.priority,
        "not_before": draft.not_before,
        "after": encode(list(draft.after)) if draft.after else "[]",
        "workspace": plain(folder(draft.workspace)),
        "now": task.submitted_at,
    }
    shown = {"agent": draft.agent, "workspace": draft.workspace, "prompt": draft.prompt[:200]}
    return (
        Statement("insert_task", params, or_stop=True),
        Statement("insert_session", {"task": task.id, "chain": CHAIN_START}),
        event(EventType.SUBMITTED, task.submitted_at, task.id, shown),
    )


def key_of(draft: TaskDraft) -> str | None:
    """The client's key as it is stored."""
    return plain(draft.key) if draft.key is not None else None


def identity_of(draft: TaskDraft) -> str:
    """A digest of what must be equal for the same key to mean the same task."""
    return sha256(canonical_json(draft.identity()).encode("utf-8")).hexdigest()


def id_text(number: int) -> str:
    """A task's id: its second of submission in Crockford's base 32, six digits; it sorts as it was submitted.

    A second that is taken gives the next one: ids of a burst run ahead of the clock and stay in order.
    """
    digits = ""
    while number:
        number, digit = divmod(number, len(DIGITS))
        digits = DIGITS[digit] + digits
    return digits.rjust(ID_DIGITS, DIGITS[0])


def id_number(text: str) -> int:
    """The number behind an id."""
    number = 0
    for digit in text:
        number = number * len(DIGITS) + DIGITS.index(digit)
    return number


def _trace(owner: str, claim: str, now: float) -> str:
    """The trace id of one claim, as W3C trace context has it: 16 bytes that no other claim of any store has."""
    return sha256(f"{owner} {claim} {now!r}".encode()).hexdigest()[:32]


def _traced(task: Task, trace: str) -> Task:
    return replace(task, lease=replace(task.lease, trace=trace)) if task.lease is not None else task
