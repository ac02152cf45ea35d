"""Words of an alert: title, sentence and next step of every event that people can be told of; pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from harnessd.domain.durable.outbox import Alert
from harnessd.policy.notify import PLACEHOLDERS

_TITLES: Mapping[str, str] = {
    "needs_human": "task {task} needs a person",
    "approval_wanted": "task {task} wants approval",
    "unanswered": "task {task}: nobody answered in time",
    "answered": "task {task} was answered",
    "task_stopped": "task {task} stopped: {reason}",
    "task_completed": "task {task} completed",
    "resumed": "task {task} goes on",
    "retried": "task {task} goes on in a new branch",
    "budget_warning": "task {task} has used much of a budget",
    "ceiling_reached": "{dependency} reached its limit of the day",
    "breaker_opened": "{dependency} is not called any more: its breaker is open",
    "breaker_closed": "{dependency} is well again: its breaker is closed",
    "outage_started": "{dependency} is out: tasks wait for it",
    "outage_ended": "{dependency} answers again",
    "degraded": "another one answers for {dependency}",
    "recovered": "{dependency} answers again for itself",
    "credential_dead": "the key of {dependency} is not accepted",
    "policy_applied": "policies r{revision} are in force",
    "policy_invalid": "policy files are not valid",
    "policy_held": "changed policies are held",
    "internal_error": "harnessd itself failed",
    "disk_low": "the disk is getting full",
    "storage_full": "the disk is full",
    "notify_failed": "{dependency}: nobody could be told",
    "recovery_stopped": "task {task} was interrupted too often",
    "drained": "the daemon drained",
    "node_lost": "a node was lost",
    "policy_missing": "a policy that a task names is gone",
    "access_refused": "a request was refused",
    "test": "a test of channel {channel}",
}
_SENTENCES: Mapping[str, str] = {
    "answered": '{by} chose "{choice}".',
    "breaker_opened": "{why}; it is tried again by itself.",
    "outage_started": "Tasks wait for it and go on by themselves once it answers.",
    "outage_ended": "What waited for it goes on.",
    "credential_dead": "Put a new key where the old one lies; it is read again at each use.",
    "policy_applied": "Brought by {source}: {files}.",
    "policy_invalid": "Problems: {count}; r{stays} stays in force. The first: {first}",
    "policy_held": "r{revision} {what}.",
    "internal_error": "{fault}",
    "access_refused": "{who}: {why}",
}
_NEXT: Mapping[str, str] = {
    "needs_human": "harnessctl inbox --task {task}",
    "approval_wanted": "harnessctl inbox --task {task}",
    "policy_invalid": "harnessctl policy check",
    "policy_held": "harnessctl policy diff",
    "policy_applied": "harnessctl policy history",
}


def alert_of(key: str, state: str, facts: Mapping[str, Any], count: int, lasting_s: float) -> dict[str, Any]:
    """The whole message as JSON; what bodies and templates are made of."""
    data, event = facts["data"], facts["event"]
    names = _Names({**data, **{name: value for name, value in facts.items() if value not in ("", None)}})
    if event.startswith("policy_"):
        names["revision"] = data.get("revision", facts["revision"])
    title = _TITLES.get(event, event.replace("_", " ")).format_map(names)
    if event == "recovery_stopped" and not facts["task"]:
        title = "the daemon ended uncleanly too often: what was interrupted is held"
    prefix = {"still": "still: ", "ended": "over: "}.get(state, "")
    return {
        "key": key,
        "event": event,
        "state": state,
        "title": f"harnessd: {prefix}{title}",
        "sentence": _sentence(event, data, names),
        "next": _next(event, facts, names),
        **{name: facts[name] for name in ("task", "agent", "dependency", "class", "reason", "revision", "at")},
        "count": count,
        "lasting": round(lasting_s, 3),
        "labels": dict(facts["labels"]),
        "data": dict(data),
    }


class _Names(dict[str, Any]):
    """A name that an event does not carry is left out of the sentence."""

    def __missing__(self, key: str) -> str:
        del key
        return ""


def _sentence(event: str, data: Mapping[str, Any], names: _Names) -> str:
    said = data.get("sentence")
    text = str(said) if said else _SENTENCES.get(event, "{why}").format_map(names).strip()
    return text if text.strip(" .;:") else ""


def _next(event: str, facts: Mapping[str, Any], names: _Names) -> str:
    for step in facts["data"].get("next_steps") or ():
        return " ".join(shlex.quote(str(word)) for word in step)
    default = "harnessctl status {task}" if facts["task"] else "harnessctl status"
    return _NEXT.get(event, default).format_map(names)


def placeholders(alert: Alert) -> dict[str, str]:
    """What stands for `{title}` and the others in a template."""
    words = {name: str(alert.get(name, "")) for name in PLACEHOLDERS}
    words["at"] = datetime.fromtimestamp(float(alert["at"]), UTC).isoformat(timespec="seconds")
    words["lasting"] = duration(float(alert["lasting"]))
    words["labels"] = ", ".join(f"{key}={value}" for key, value in alert["labels"].items())
    return words


def duration(seconds: float) -> str:
    """`4h 5m`, for people; the two largest units."""
    left, parts = round(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, left = divmod(left, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return " ".join(parts[:2]) or "0s"
