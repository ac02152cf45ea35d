"""Documents of the control API: tasks, nodes, effects, decisions, questions and events as JSON with stable keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harnessd.domain.effect import Effect
from harnessd.domain.jobs import KeptJob
from harnessd.domain.record import Question, StoredDecision, StoredEvent
from harnessd.domain.session import Node
from harnessd.domain.task import StopReason, Task, TaskState
from harnessd.runtime.drafts import write_amount

TITLE_MAX = 80
_TEXT_MAX = 240

# Budget -> what the counters say of it. `age` and `silence` run by the clock.
_USED: Mapping[str, str] = {
    "turns": "turns",
    "tool_calls": "tool_calls",
    "tokens": "tokens",
    "cost_usd": "cost_usd",
    "working_time": "working_s",
    "wall_time": "wall_s",
}


def title(prompt: str) -> str:
    """The first line of a prompt that says something, cut."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_MAX else f"{line[: TITLE_MAX - 1]}…"


def show_task(task: Task) -> dict[str, Any]:
    """A task in lists: what was asked and where it stands. Times are seconds since the Unix epoch."""
    draft, counters = task.draft, task.counters
    return {
        "task": task.id,
        "title": title(draft.prompt),
        "agent": draft.agent,
        "workspace": draft.workspace,
        "state": task.state.value,
        "reason": task.reason.value if task.reason else None,
        "class": task.error_class,
        "sentence": task.sentence,
        "priority": draft.priority,
        "labels": dict(draft.labels),
        "key": draft.key,
        "model": draft.model,
        "after": list(draft.after),
        "not_before": draft.not_before,
        "keep_s": draft.keep_s,
        "submitted_at": task.submitted_at,
        "started_at": task.started_at,
        "ended_at": task.ended_at,
        "until": task.until,
        "why": task.why,
        "waits_for": task.waits_for,
        "doing": task.doing,
        "node": task.pointer,
        "turns": counters.turns,
        "tool_calls": counters.tool_calls,
        "tokens": counters.tokens,
        "cost_usd": counters.cost_usd,
        "tries": counters.tries,
        "recoveries": task.recoveries,
        "feature": draft.feature,
        "degraded": dict(counters.degraded),
        "pause_asked": task.pause_asked,
        "cancel_asked": task.cancel_asked,
        "next": [list(step) for step in next_steps(task)],
    }


def show_window(task: Task) -> dict[str, Any] | None:
    """How full the window was at the last look: tokens, of which window, part; None before the first call."""
    now = task.counters.context.get("now")
    return None if now is None else {"tokens": now[0], "effective": now[1], "used": round(now[0] / max(1, now[1]), 4)}


def show_budgets(task: Task, limits: Mapping[str, Any], now: float, life_s: float | None) -> list[dict[str, Any]]:
    """Each budget that has a limit or was used: used, limit, left, and the levels already warned of.

    `life_s` is how long the running call has given no sign of life.
    """
    counters = task.counters
    by_clock = {"age": (task.ended_at or now) - task.submitted_at, "silence": life_s}
    rows = []
    for name in (*_USED, *(name for name in limits if name not in _USED)):
        used = getattr(counters, _USED[name]) if name in _USED else by_clock.get(name)
        limit = limits.get(name)
        if limit is None and not used:
            continue
        left = max(0, limit - used) if limit is not None and used is not None else None
        warned = [mark.partition(":")[2] for mark in counters.warned if mark.partition(":")[0] == name]
        row = {"budget": name, "used": used, "limit": limit, "left": left, "warned": warned}
        rows.append(row | ({"reserved": counters.reserved_usd} if name == "cost_usd" and counters.reserved_usd else {}))
    return rows


def exhausted(task: Task, limits: Mapping[str, Any], now: float) -> list[tuple[str, float, float]]:
    """The budgets that are used up: name, used, limit."""
    used = {name: float(getattr(task.counters, field)) for name, field in _USED.items()}
    used["age"] = now - task.submitted_at
    return [
        (name, used[name], float(limit))
        for name, limit in limits.items()
        if limit is not None and name in used and used[name] >= float(limit)
    ]


# A task grows older while a person thinks about its end.
_AGE_ROOM_S = 3600.0


def raised(budget: str, used: float, limit: float) -> str:
    """What to add to a limit that is used up, so that going on is worth it: the overrun, and a third of it again."""
    room = max(limit / 3, _AGE_ROOM_S) if budget == "age" else limit / 3
    return f"{budget}=+{write_amount(budget, used - limit + room)}"


def show_failure(decisions: Sequence[StoredDecision]) -> dict[str, Any]:
    """The last failure in one record: whose it was, its own words, what was tried, and the rule that decided."""
    last = next((one for one in reversed(decisions) if one.decision.get("error_class")), None)
    if last is None:
        return {}
    evidence: Mapping[str, Any] = last.decision.get("evidence", {})
    names = {
        "dependency": "dependency",
        "provider_message": "message",
        "status": "status",
        "request": "request_id",
        "tries": "tries",
    }
    found = {ours: evidence[theirs] for ours, theirs in names.items() if evidence.get(theirs) not in (None, "")}
    return found | {
        "class": last.decision.get("error_class"),
        "rule": last.decision.get("rule"),
        "tried": last.decision.get("tried", []),
        "at": last.at,
        "decided_at_node": last.node,
    }


def show_node(node: Node, *, whole: bool = False) -> dict[str, Any]:
    """A node for the tree: a line of what it says; `whole` adds the payload."""
    blocks: list[Mapping[str, Any]] = list(node.payload.get("blocks", ()))
    facts: Mapping[str, Any] = node.payload.get("facts", {})
    text = "\n".join(str(block["text"]) for block in blocks if block.get("text"))
    shown = {
        "node": node.id,
        "parent": node.parent,
        "kind": node.kind.value,
        "at": node.at,
        "text": text[:_TEXT_MAX],
        "calls": [
            {"id": block["id"], "tool": block["name"], "arguments": block.get("arguments")}
            for block in blocks
            if block.get("type") == "tool_use"
        ],
        "tool": facts.get("tool"),
        "is_error": any(block.get("is_error") for block in blocks),
        "checkpoint": facts.get("checkpoint"),
        **({"safe": True} if facts.get("safe") else {}),
    }
    return shown | ({"payload": dict(node.payload)} if whole else {})


def show_effect(effect: Effect) -> dict[str, Any]:
    """A row of the journal."""
    return {
        "effect": effect.id,
        "kind": effect.kind,
        "node": effect.node,
        "call": effect.call_id,
        "name": effect.name,
        "class": effect.effect_class.value,
        "state": effect.state.value,
        "key": effect.key,
        "arguments": effect.arguments,
        "result": effect.result,
        "attempt": effect.attempt,
        "at": effect.at,
    }


def show_decision(decision: StoredDecision) -> dict[str, Any]:
    """A decision with the place where the task stood."""
    return {
        "at": decision.at,
        "task": decision.task,
        "node": decision.node,
        "call": decision.call_id,
        **decision.decision,
    }


def show_event(event: StoredEvent) -> dict[str, Any]:
    """`{seq, at, task, node, type, data, revision, trace}`."""
    return {
        "seq": event.seq,
        "at": event.at,
        "task": event.task,
        "node": event.node,
        "type": event.type,
        "data": dict(event.data),
        "revision": event.revision,
        "trace": event.trace,
    }


def show_job(job: KeptJob) -> dict[str, Any]:
    """A background command that still runs."""
    return {"job": job.id, "kind": job.kind, "command": job.command, "since": job.began_at, "life_s": job.life_s}


def show_question(question: Question, task: Task | None) -> dict[str, Any]:
    """A row of the inbox."""
    return {
        "id": question.id,
        "kind": question.kind,
        "task": question.task,
        "agent": task.draft.agent if task else None,
        "labels": dict(task.draft.labels) if task else {},
        "node": question.node,
        "call": question.call_id,
        "sentence": question.sentence,
        "choices": list(question.choices),
        "asked_at": question.asked_at,
        "until": question.until,
        "class": question.data.get("class") or (task.error_class if task else None),
        "data": dict(question.data),
    }


def next_steps(task: Task) -> tuple[Sequence[str], ...]:
    """What a person can do now: the task's own words where it has some, else what its state allows."""
    if task.next_steps:
        return tuple(task.next_steps)
    verbs: Mapping[TaskState, tuple[str, ...]] = {
        TaskState.QUEUED: ("pause", "cancel"),
        TaskState.RUNNING: ("attach", "send", "pause", "cancel"),
        TaskState.PARKED: ("resume", "pause", "cancel"),
        TaskState.WAITING: ("inbox", "cancel"),
        TaskState.PAUSED: ("resume", "cancel"),
        TaskState.ROLLING_BACK: ("attach",),
        TaskState.STOPPED: ("resume", "retry", "logs"),
        TaskState.COMPLETED: ("show",),
    }
    return tuple(_command(verb, task.id) for verb in verbs[task.state])


# Ends after which another model may do better, and classes that a person can put right at the service.
_OTHER_MODEL = frozenset(
    {
        StopReason.SERVICE_UNAVAILABLE,
        StopReason.QUOTA_EXHAUSTED,
        StopReason.CONTEXT_EXHAUSTED,
        StopReason.REFUSED,
        StopReason.ERROR,
    }
)
_AT_THE_SERVICE = frozenset({"auth", "quota_exhausted"})


def steps_now(
    task: Task, failure: Mapping[str, Any], models: Sequence[str], used_up: Sequence[tuple[str, float, float]]
) -> list[list[str]]:
    """The next steps as they work at this moment.

    `failure` is the last one, `models` are all aliases, `used_up` the budgets that hold nothing more: name, used and
    limit. What was enough at the end may be too little now, or the limit may have been raised meanwhile.
    """
    steps = [list(step) for step in next_steps(task)]
    if task.reason is StopReason.BUDGET_EXHAUSTED:
        more = [word for one in used_up for word in ("--budget", raised(*one))]
        steps = [step[:3] + more if step[1] == "resume" else step for step in steps]
    name = str(failure.get("dependency") or "")
    failed = name.removeprefix("model/")
    if not name.startswith("model/") or failed not in models:
        return steps
    if failure.get("class") in _AT_THE_SERVICE and task.state in (TaskState.PARKED, TaskState.STOPPED):
        steps.insert(0, ["harnessctl", "model", "check", failed])
    other = next((alias for alias in models if alias != failed), None)
    if other is not None and task.state is TaskState.STOPPED and task.reason in _OTHER_MODEL:
        steps.insert(1, ["harnessctl", "retry", task.id, "--model", other])
    return steps


def _command(verb: str, task: str) -> tuple[str, ...]:
    if verb == "inbox":
        return ("harnessctl", "inbox", "--task", task)
    return ("harnessctl", verb, task, "TEXT") if verb == "send" else ("harnessctl", verb, task)
