"""What a run meets in these tests: an agent with one tool of each effect class, policies, replies, failures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from harnessd.config.load import builtin_roots
from harnessd.config.strict_yaml import parse
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import (
    FinishReason,
    Message,
    ModelReply,
    TextBlock,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
    Usage,
)
from harnessd.engine.protocol import ModelFacts, RunBrief, ToolFacts
from harnessd.policy import PolicySet, TaskFacts, TaskPolicies
from harnessd.policy.assembly.assemble import assemble

EFFECTS = {
    "look": EffectClass.READ_ONLY,
    "note": EffectClass.REVERSIBLE,
    "put": EffectClass.IDEMPOTENT,
    "pay": EffectClass.IRREVERSIBLE,
}
BRIEF = RunBrief(
    task="t1",
    prompt="Do it.",
    agent="coder",
    workspace="/w",
    system="You work.",
    model=ModelFacts("primary", 200_000, 8_192, input_usd=3.0, output_usd=15.0),
    models={
        "second": ModelFacts("second", 200_000, 8_192, input_usd=1.0, output_usd=5.0),
        "third": ModelFacts("third", 100_000, 4_096),
        "long": ModelFacts("long", 1_000_000, 8_192),
        "tiny": ModelFacts("tiny", 10, 1_024),
        "mute": ModelFacts("mute", 200_000, 8_192, tools=False),
        "unpriced": ModelFacts("unpriced", 200_000, 8_192, 3.0, 15.0, priced=False),
    },
    tools=tuple(
        ToolFacts(ToolSpec(name, f"The tool {name}.", {"type": "object"}), effect) for name, effect in EFFECTS.items()
    ),
)
_DECLARED = ", ".join(f"{{for: tool/{name}, effect: {effect}}}" for name, effect in EFFECTS.items())
TOOLS = f"kind: tools\nrules: [{_DECLARED}]\n"
FREE = f"{TOOLS}permissions: [{{name: irreversible, do: allow}}]\n"  # nobody is asked
NO_LIMITS: Mapping[str, float] = {"tool_calls": 10_000, "turns": 10_000, "tokens": 1e9, "cost_usd": 9_000.0}


@lru_cache(maxsize=64)
def policy_set(text: str) -> PolicySet:
    """The shipped policies under those of `text`."""
    parsed = parse(text.encode(), "policies/own.yaml")
    assert not parsed.problems, parsed.problems
    assembled = assemble(parsed.documents, builtin_roots())
    assert not assembled.problems, assembled.problems
    return PolicySet.of(assembled.policies).at(7)


def policies(text: str = TOOLS, **budget: float) -> TaskPolicies:
    """The policies of a task with limits of its own."""
    return policy_set(text).for_task(TaskFacts("t1", "coder"), {}, {}, budget)


def reply(
    *blocks: TextBlock | ToolUseBlock, finish: FinishReason | None = None, tokens: int = 10, cost: float = 0.01
) -> ModelReply:
    """An answer of the model."""
    calls = any(isinstance(block, ToolUseBlock) for block in blocks)
    ended = finish or (FinishReason.TOOL_USE if calls else FinishReason.STOP)
    return ModelReply(Message("assistant", blocks), ended, Usage(tokens, tokens), "model-1", "req", cost)


def says(text: str) -> ModelReply:
    """Words and nothing more: the task's last ones."""
    return reply(TextBlock(text))


def calls(*wanted: tuple[str, Mapping[str, Any] | None], turn: str = "") -> ModelReply:
    """Calls of tools; arguments None = unreadable."""
    return reply(*(use(f"c{turn}{place}", name, arguments) for place, (name, arguments) in enumerate(wanted)))


def use(id_: str, name: str, arguments: Mapping[str, Any] | None) -> ToolUseBlock:
    """One call."""
    return ToolUseBlock(id_, name, arguments, None if arguments is not None else "{not json")


CHAINS = """---
kind: fallback
chains:
  model/primary: [model/tiny, model/second, model/third]
  tool/look: [tool/gone, tool/note]
  tool/put: [tool/look]
by_class: {context_overflow: [model/third, model/long], refused: [model/second]}
return_after: 5m
"""


IMPATIENT = "---\nkind: retry\nmodel: {retries: 1, classes: {auth: {do: needs_human}}}\npark: {max: 2m}\n"
_STRICT_CLASSES = "execution_failed: {do: stop}, permission_denied: {do: needs_human}"
STRICT = f"---\nkind: retry\ntool: {{retries: 1, classes: {{{_STRICT_CLASSES}}}}}\n"
_SOON = "kind: retry\nmodel: {retries: 2, switch_after: 1}\ntool: {retries: 1}\n"
LINKED = f"{CHAINS}---\n{_SOON}"
_CLIMBS = """
  - {name: full, when: {class: overloaded, consecutive: 2}, do: [needs_human, park]}
  - {name: failing, when: {class: execution_failed, consecutive: 2}, do: [needs_human, needs_human]}
  - {name: again, when: {class: server_error, recoveries: 1}, do: [rollback, fallback, retry]}
"""
CIRCLING = (
    "---\nkind: loop\nrepeat_call: 2\nno_progress: 3\ndo: [nudge, rollback, needs_human]\n"
    f"---\nkind: escalation\nask: {{after: 1h, do: stop}}\nrecoveries: 1\nrules:{_CLIMBS}"
)
RULES = (
    *(TOOLS, FREE, FREE + IMPATIENT, TOOLS + "ask: {after: 1h, do: stop}\n" + STRICT),
    *(FREE + LINKED, TOOLS + LINKED + CIRCLING, FREE + CIRCLING),
)
LIMITS: tuple[dict[str, float], ...] = (
    *({}, {}, {"tool_calls": 3.0}, {"tool_calls": 8.0}, {"turns": 4.0}, {"cost_usd": 0.6}, {"tokens": 150.0}),
    {"wall_time": 2_000.0},
)


def model_failure(kind: str, alias: str = "primary") -> Failure:
    """One failed attempt of a model call, as the gateway tells it."""
    about: dict[str, dict[str, Any]] = {
        "rate limited": {"status": 429, "message": "Too many requests"},
        "wait a little": {"status": 429, "message": "Slow down", "retry_after_s": 5.0},
        "wait an hour": {"status": 429, "message": "Slow down", "retry_after_s": 3600.0},
        "overloaded": {"status": 529, "type": "overloaded_error", "message": "Overloaded"},
        "server": {"status": 500, "message": "Internal error"},
        "key": {"status": 401, "message": "invalid api key"},
        "quota": {"status": 429, "code": "insufficient_quota", "message": "You exceeded your current quota"},
        "overflow": {"status": 400, "code": "context_length_exceeded", "message": "prompt is too long"},
        "wrong": {"status": 400, "message": "unknown field"},
        "refused": {"ended": "complete", "finish": "content_filter", "message": "filtered"},
        "reset": {"transport": "reset", "message": "connection reset"},
        "silent": {"transport": "read_timeout", "message": "no event for 55 s"},
        "cut": {"ended": "cut", "message": "the stream ended early", "usage": Usage(20, 5)},
        "unreadable": {"hint": ErrorClass.MALFORMED_OUTPUT, "message": "neither words nor a call"},
        "passed on": {"status": 500, "message": "Internal error", "output_passed": True},
        "cut call": {"finish": "length", "call_cut": True, "ended": "complete", "message": "arguments end at column 9"},
        "breaker": {"code": "breaker_open", "message": "10 failures in a row", "retry_after_s": 45.0},
        "cancelled": {"message": "cancelled", "cancelled": True},
    }
    return Failure("model", f"model/{alias}", **about[kind])


MODEL_FAILURES = (
    *("rate limited", "wait a little", "wait an hour", "overloaded", "server", "key", "quota", "overflow", "wrong"),
    *("refused", "reset", "silent", "cut", "unreadable", "passed on", "cut call", "breaker", "breaker"),
)
FLEETING = ("rate limited", "wait a little", "overloaded", "server", "reset", "silent", "cut")


def tool_failure(tool: str, kind: str, *, begun: bool = False) -> Failure:
    """One call that a tool could not do."""
    about: dict[str, dict[str, Any]] = {
        "arguments": {"hint": ErrorClass.INVALID_ARGUMENTS, "message": "path: expected string, got number 42"},
        "denied": {"hint": ErrorClass.PERMISSION_DENIED, "message": "outside of the workspace"},
        "failed": {"hint": ErrorClass.EXECUTION_FAILED, "message": "no such file", "output": "partial"},
        "slow": {"hint": ErrorClass.TIMEOUT, "message": "timed out after 10000 ms", "exit_code": 124},
        "down": {"hint": ErrorClass.UNAVAILABLE, "message": "connection refused"},
        "busy": {"hint": ErrorClass.RATE_LIMITED, "message": "too many", "retry_after_s": 60.0},
        "lost": {"hint": ErrorClass.OUTCOME_UNKNOWN, "message": "the answer was lost"},
        "cancelled": {"message": "a person cancelled it", "cancelled": True},
    }
    return Failure("tool", f"tool/{tool}", effect_begun=begun or kind == "lost", **about[kind])


TOOL_FAILURES = ("arguments", "denied", "failed", "slow", "down", "busy", "lost")


def illegal(messages: tuple[Message, ...]) -> str:
    """What a strict service of either protocol would refuse in these messages; empty where nothing is wrong."""
    if not messages or messages[0].role != "user" or messages[-1].role != "user":
        return "it must begin and end with the user"
    open_ids: tuple[str, ...] = ()
    for place, message in enumerate(messages):
        if place and message.role == messages[place - 1].role:
            return f"two neighbours are {message.role}"
        if not message.blocks:
            return f"message {place} is empty"
        answered = tuple(block.tool_use_id for block in message.blocks if isinstance(block, ToolResultBlock))
        if answered != open_ids:
            return f"message {place} answers {answered}, asked were {open_ids}"
        first = message.blocks[: len(answered)]
        if not all(isinstance(block, ToolResultBlock) for block in first):
            return f"message {place} does not begin with its results"
        open_ids = tuple(call.id for call in message.tool_uses)
        if len(set(open_ids)) != len(open_ids):
            return f"message {place} asks twice under one id"
    return "" if not open_ids else "calls without results at the end"
