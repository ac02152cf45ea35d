"""Facts: what a condition may ask, of which type, and where it exists. A closed list; another fact is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from harnessd.domain.failure import ErrorClass
from harnessd.domain.task import StopReason

MODEL_CLASSES = (
    "timeout",
    "network",
    "rate_limited",
    "overloaded",
    "server_error",
    "stream_interrupted",
    "quota_exhausted",
    "auth",
    "refused",
    "context_overflow",
    "invalid_request",
    "malformed_output",
)
TOOL_CLASSES = (
    "invalid_arguments",
    "unknown_tool",
    "permission_denied",
    "execution_failed",
    "timeout",
    "unavailable",
    "rate_limited",
    "outcome_unknown",
)
EFFECTS = ("read_only", "reversible", "idempotent", "irreversible")
CLASSES = tuple(error_class.value for error_class in ErrorClass)
BUDGETS = ("tool_calls", "turns", "tokens", "cost_usd", "working_time", "wall_time", "age", "silence")
EVENTS = (
    "needs_human",
    "approval_wanted",
    "unanswered",
    "task_stopped",
    "budget_warning",
    "ceiling_reached",
    "breaker_opened",
    "breaker_closed",
    "outage_started",
    "outage_ended",
    "degraded",
    "recovered",
    "credential_dead",
    "policy_applied",
    "policy_invalid",
    "policy_held",
    "internal_error",
    "disk_low",
    "storage_full",
    "notify_failed",
    "recovery_stopped",
    "drained",
    "node_lost",
    "policy_missing",
    "access_refused",
)


class FactType(StrEnum):
    """How a fact is compared."""

    TEXT = "text"
    FOLDED = "text, letter case does not count"
    NAME = "name"
    WORD = "word"
    BOOL = "true or false"
    NUMBER = "number"
    STATUS = "number, 4xx, 5xx"
    COUNT = "count"
    RATIO = "ratio"
    SHARE = "ratio, the first part"
    TALLY = "tally: a plain number means at least"
    LASTING = "duration: a plain one means at least"

    @property
    def numeric(self) -> bool:
        """`above`, `below`, `at_least`, `at_most` make sense."""
        return self in _NUMERIC


_NUMERIC = frozenset(
    {
        FactType.NUMBER,
        FactType.STATUS,
        FactType.COUNT,
        FactType.RATIO,
        FactType.SHARE,
        FactType.TALLY,
        FactType.LASTING,
    }
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact: its type, the scopes it exists in, and its words where the list is closed."""

    type: FactType
    scopes: frozenset[str]
    meaning: str
    words: tuple[str, ...] = ()


def _fact(type_: FactType, scopes: str, meaning: str, words: tuple[str, ...] = ()) -> Fact:
    return Fact(type_, frozenset(scopes.split()), meaning, words)


_ABOUT_TASK = "assign tools permissions escalation notify chaos"

# A name that ends in a dot stands for all facts that begin with it: `label.KEY`, `body.PATH`.
FACTS: Mapping[str, Fact] = {
    "agent": _fact(FactType.TEXT, _ABOUT_TASK, "the task's agent, as named in harness.yaml"),
    "workspace": _fact(FactType.TEXT, _ABOUT_TASK, "the task's workspace folder"),
    "label.": _fact(FactType.TEXT, _ABOUT_TASK, "a label of the task"),
    "priority": _fact(FactType.COUNT, _ABOUT_TASK, "the task's priority"),
    "share": _fact(FactType.SHARE, "assign", "a fixed part of all tasks, by task id, contained in any larger part"),
    "protocol": _fact(FactType.TEXT, "retry", "the wire protocol: anthropic, openai-chat, openai-responses, ..."),
    "code": _fact(FactType.FOLDED, "retry", "the answer's error code"),
    "type": _fact(FactType.FOLDED, "retry", "the answer's error type"),
    "message": _fact(FactType.FOLDED, "retry", "the answer's own words"),
    "transport": _fact(FactType.FOLDED, "retry", "what happened instead of an answer: reset, dns, read_timeout, ..."),
    "body.": _fact(FactType.FOLDED, "retry accept", "a value in the answer's JSON body"),
    "header.": _fact(FactType.FOLDED, "retry", "a header of the answer"),
    "status": _fact(FactType.STATUS, "retry accept", "the HTTP status"),
    "ended": _fact(FactType.WORD, "retry", "how the stream ended", ("complete", "cut", "error", "none")),
    "finish": _fact(
        FactType.WORD,
        "retry",
        "the finish reason of the answer",
        ("stop", "tool_use", "length", "content_filter", "refusal"),
    ),
    "call_cut": _fact(FactType.BOOL, "retry", "the arguments of a tool call are not whole"),
    "window_used": _fact(FactType.RATIO, "retry escalation notify", "reported or estimated size / window"),
    "exit_code": _fact(FactType.NUMBER, "retry", "the exit code of a tool's process"),
    "rpc_code": _fact(FactType.NUMBER, "retry", "the code of a JSON-RPC error"),
    "model": _fact(FactType.NAME, "tools permissions escalation notify chaos", "the model, as model/ALIAS"),
    "tool": _fact(FactType.NAME, "tools permissions escalation notify chaos", "the tool, as tool/NAME"),
    "effect": _fact(FactType.WORD, "permissions escalation notify", "what the call does to the world", EFFECTS),
    "command": _fact(FactType.TEXT, "tools permissions", "each simple command of a shell line by itself"),
    "path": _fact(FactType.TEXT, "tools permissions", "the resolved path inside the workspace"),
    "arg.": _fact(FactType.TEXT, "tools permissions", "an argument of the call"),
    "class": _fact(FactType.WORD, "escalation notify", "the error class", CLASSES),
    "dependency": _fact(FactType.NAME, "escalation notify", "what failed: model/ALIAS, tool/NAME, mcp/SERVER"),
    "consecutive": _fact(FactType.TALLY, "escalation", "equal failures in a row"),
    "failed_corrections": _fact(FactType.TALLY, "escalation", "corrections in a row that did not help"),
    "recoveries": _fact(FactType.TALLY, "escalation", "starts again after crashes"),
    "event": _fact(FactType.WORD, "notify", "what happened", EVENTS),
    "reason": _fact(FactType.WORD, "notify", "why the task stopped", tuple(reason.value for reason in StopReason)),
    "budget": _fact(FactType.WORD, "notify", "which budget", BUDGETS),
    "lasting": _fact(FactType.LASTING, "notify", "how long it has been so"),
    "result.": _fact(FactType.TEXT, "probe", "a value in the probe's JSON result"),
}


def fact_named(name: str, scope: str) -> Fact | None:
    """The fact of that name in that scope, or None."""
    fact = None if name.endswith(".") else FACTS.get(name)
    if fact is None:
        head, dot, rest = name.partition(".")
        fact = FACTS.get(head + dot) if dot and rest else None
    return fact if fact is not None and scope in fact.scopes else None


def facts_of(scope: str) -> tuple[str, ...]:
    """The names that exist in a scope; `label.KEY` for all labels."""
    rest = {"label.": "label.KEY", "body.": "body.PATH", "header.": "header.NAME", "arg.": "arg.PATH"}
    return tuple(
        rest.get(name, name + "PATH" if name.endswith(".") else name)
        for name, fact in FACTS.items()
        if scope in fact.scopes
    )
