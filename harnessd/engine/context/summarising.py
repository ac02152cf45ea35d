"""Summarising: who writes the summary, within which budget, and what becomes of a call that fails (R4.5)."""

from __future__ import annotations

from collections.abc import Mapping

from harnessd.defence.line3_repair.compaction import summary
from harnessd.defence.line3_repair.compaction.plan import Plan, Scene, longest_summary, shares
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import Message, ModelRequest, TextBlock, Usage
from harnessd.engine import links, reserving
from harnessd.engine.context import measuring
from harnessd.engine.protocol import CallModel, ModelFacts, RunState
from harnessd.engine.situation import Situation
from harnessd.policy import budget as budget_policy
from harnessd.policy import fallback as fallback_policy
from harnessd.policy import retry as retry_policy

PURPOSE = "summary"
# Attempts on one link, and in all: the work must go on, and without a summary the history can be cut all the same.
TRIES_A_LINK = 2
_TRIES_MAX = 6
_WAIT_MAX_S = 10.0
# What a second attempt on the same link may help against.
_FLEETING = frozenset({
    *(ErrorClass.TIMEOUT, ErrorClass.NETWORK, ErrorClass.RATE_LIMITED, ErrorClass.OVERLOADED, ErrorClass.SERVER_ERROR),
    *(ErrorClass.STREAM_INTERRUPTED, ErrorClass.MALFORMED_OUTPUT, ErrorClass.CONTEXT_OVERFLOW),
})  # fmt: skip
_MARGIN = 400
# A summary of less says nothing, and so does one of so little on top of the last.
_LEAST_TOKENS = 200
_LEAST_ANSWERS = 3


def of(s: Situation, call: str) -> bool:
    """A model call that was made for a summary."""
    return (s.effects[call].arguments or {}).get("purpose") == PURPOSE


def writers(s: Situation, model: ModelFacts) -> tuple[ModelFacts, ...]:
    """Who may write it: the policy's own choice, else the model in use; then the chain of the task's own model."""
    named = s.rules.compaction.shape.summary.model
    known: Mapping[str, ModelFacts] = links.models(s)
    chain, _ = fallback_policy.chain(s.rules.fallback, f"model/{s.brief.model.alias}")
    names = ([named.text] if named is not None else []) + [f"model/{model.alias}", *chain]
    aliases = dict.fromkeys(name.removeprefix("model/") for name in names if name.startswith("model/"))
    return tuple(known[alias] for alias in aliases if alias in known)


def ask(s: Situation, model: ModelFacts, scene: Scene, plan: Plan, tries: int) -> str:
    """Start attempt number `tries` (from 0). Empty where it is under way; else why no summary can be had."""
    candidates = writers(s, model)
    if tries >= min(_TRIES_MAX, TRIES_A_LINK * len(candidates)):
        return str(s.counters.context.get("making", {}).get("why") or "no summariser is left")
    writer = candidates[tries // TRIES_A_LINK]
    tokens = min(longest_summary(scene, plan.level, plan.dropped), writer.max_output)
    factor = measuring.ratio(s, writer.alias)
    room = int((measuring.window(s, writer) - tokens) * 0.9 / (1 + tries % TRIES_A_LINK)) - _MARGIN
    sections = s.rules.compaction.shape.summary.sections
    ours = measuring.estimate
    text = summary.asked(
        scene.before.summary, plan.dropped, sections, tokens, room, lambda part: round(ours(part) * factor) + 1
    )
    estimated = ours(text) + ours(summary.SYSTEM)
    reserved = reserving.cost_usd(writer, estimated * factor, tokens)
    if why := _too_dear(s, reserved, round(estimated * factor) + tokens):
        return why
    request = ModelRequest(writer.alias, summary.SYSTEM, (Message("user", (TextBlock(text),)),), (), tokens)
    about = {"purpose": PURPOSE, "reserved_usd": reserved, "max_tokens": tokens, "estimated": estimated}
    effect = s.plan_model_call(writer.alias, tries + 1, about)
    if s.counters.episode_at is None:
        s.count(episode_at=s.at)
    s.count(reserved_usd=reserved, wait_until=None)
    s.doing = f"making the history smaller: waiting for a summary of model/{writer.alias}, try {tries + 1}"
    s.in_flight[effect.id] = None
    s.acts.append(CallModel(effect.id, request, effect.attempt))
    s.state = RunState.MODEL
    return ""


def not_worth_it(scene: Scene, plan: Plan, answers: int) -> str:
    """Why no summary is asked for; empty where one is. Where there is hardly room, each turn would ask for one."""
    if shares(scene, plan.level)["summary"] < _LEAST_TOKENS:
        return "There is no room for a summary."
    if scene.compacted and answers < _LEAST_ANSWERS:
        return "So few answers are not worth a summary."
    return ""


def charge(s: Situation, usage: Usage | None, cost_usd: float) -> None:
    """A summary's call counts in the task's budgets like any other, but is no turn."""
    s.count(reserved_usd=0.0)
    if usage is not None:
        s.count(tokens=s.counters.tokens + usage.total, cost_usd=s.counters.cost_usd + cost_usd)


def next_try(s: Situation, failure: Failure, tries: int, luck: float) -> tuple[int, float]:
    """The number of the next attempt after one that failed, and the wait before it in seconds."""
    classified = retry_policy.classify(s.rules.retry, failure)
    error_class = classified.error_class or ErrorClass.SERVER_ERROR
    last = tries % TRIES_A_LINK == TRIES_A_LINK - 1
    if last or error_class not in _FLEETING or failure.code == "breaker_open":
        return (tries // TRIES_A_LINK + 1) * TRIES_A_LINK, 0.0
    settings = retry_policy.for_class(s.rules.retry, "model", error_class)
    wait_s = max(retry_policy.backoff_s(settings, tries % TRIES_A_LINK, luck), failure.retry_after_s or 0.0)
    if error_class in (ErrorClass.CONTEXT_OVERFLOW, ErrorClass.MALFORMED_OUTPUT):
        wait_s = 0.0
    return (tries + 1, wait_s) if wait_s <= _WAIT_MAX_S else ((tries // TRIES_A_LINK + 1) * TRIES_A_LINK, 0.0)


def _too_dear(s: Situation, cost_usd: float, tokens: int) -> str:
    """Why the budgets do not hold one more call beside the turn that is to follow; empty where they do."""
    used = s.used()
    for budget, more in (("cost_usd", cost_usd), ("tokens", float(tokens))):
        limit = budget_policy.limit_of(s.rules.budget, budget)
        if limit is not None and used[budget] + more >= limit:
            return f"the budget {budget} does not hold a summary"
    return ""
