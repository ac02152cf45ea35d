"""The model side of a turn: budgets, the request, the reply, a failed attempt."""

from __future__ import annotations

from typing import assert_never

from harnessd.defence import face
from harnessd.defence.endings import next_steps
from harnessd.defence.incident import Episode, incident_of
from harnessd.domain.decision import Decision, NeedsHuman, Observe, Park, Retry, Stop
from harnessd.domain.effect import Effect, EffectClass, EffectState
from harnessd.domain.failure import ErrorClass
from harnessd.domain.messages import (
    Block,
    FinishReason,
    ModelRequest,
    OpaqueBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
)
from harnessd.domain.record import AskPerson, TakeMessage
from harnessd.domain.session import NodeKind, assistant_message, assistant_payload, user_payload, view
from harnessd.domain.task import StopReason
from harnessd.engine import ending, results
from harnessd.engine.protocol import CallModel, ModelFailed, ModelReplied, RunState, Wait
from harnessd.engine.situation import Ending, PendingCall, Situation
from harnessd.policy import budget as budget_policy

GO_ON = "Go on with the task."
CUT_OFF = "Your last answer was cut off at its token limit. Go on from where it stopped, more briefly."
LAST_TURN = (
    "{sentence} This is the last turn, without tools: sum up what is done, what is missing, and what comes next."
)
# Rough, and only for the reservation: JSON and code need about 3 characters a token, prose 4.
_CHARACTERS_PER_TOKEN = 3


def turn(s: Situation) -> None:
    """Begin the next model call, or end where a budget says so."""
    for message in s.mail:
        node = s.append(NodeKind.USER, user_payload(message.text))
        s.records.append(TakeMessage(message.id, node.id))
    s.mail.clear()
    verdict = budget_policy.judge(s.rules.budget, s.used(), s.counters.warned)
    if verdict.exhausted is None:
        s.count(last_turn=False)
    elif _summing_up_is_owed(s):
        pass  # its call failed, or was cut off by a restart, and is made again
    elif s.counters.last_turn or not s.rules.budget.shape.last_turn:
        end_exhausted(s, verdict.exhausted)
        return
    else:
        s.count(last_turn=True)
        s.decide(_exhausted_decision(verdict.exhausted))
        notice = user_payload(LAST_TURN.format(sentence=verdict.exhausted.sentence))
        s.append(NodeKind.NOTICE, notice | {"facts": {"last_turn": True}})
    if s.path[-1].kind is NodeKind.ASSISTANT:
        s.append(NodeKind.NOTICE, user_payload(GO_ON))
    call_model(s)


def _summing_up_is_owed(s: Situation) -> bool:
    """The last turn was announced, and no answer stands behind the announcement yet."""
    if not s.counters.last_turn:
        return False
    for node in reversed(s.path):
        if node.kind is NodeKind.ASSISTANT:
            return False
        if node.payload.get("facts", {}).get("last_turn"):
            return True
    return False


def call_model(s: Situation) -> None:
    """One attempt, its intent and its reservation recorded first."""
    model = s.brief.model
    request = ModelRequest(
        model=model.alias,
        system=s.brief.system,
        messages=view(s.path),
        tools=tuple(tool.spec for tool in s.brief.tools),
        max_tokens=model.max_output,
        tool_choice="none" if s.counters.last_turn else "auto",
    )
    reserved = _reservation_usd(s, request)
    if s.counters.episode_at is None:
        s.count(episode_at=s.at)
    effect = s.plan(
        Effect(
            id="",
            kind="model",
            node=s.head or "",
            call_id="",
            name=f"model/{model.alias}",
            effect_class=EffectClass.READ_ONLY,
            state=EffectState.INTENT,
            arguments={"reserved_usd": reserved, "max_tokens": request.max_tokens},
            attempt=s.counters.tries + 1,
            at=s.at,
        )
    )
    s.count(reserved_usd=reserved, wait_until=None)
    s.doing = f"waiting for model/{model.alias}, try {effect.attempt}"
    s.in_flight[effect.id] = None
    s.acts.append(CallModel(effect.id, request, effect.attempt))
    s.state = RunState.MODEL


def replied(s: Situation, event: ModelReplied) -> bool:
    """Record a whole answer. True when it is the task's last word: no calls, not cut off, no person's word waiting."""
    reply, counters = event.reply, s.counters
    usage = reply.usage
    s.settle(event.call, EffectState.DONE, tokens=usage.total, cost_usd=reply.cost_usd, request_id=reply.request_id)
    s.count(
        turns=counters.turns + 1,
        tokens=counters.tokens + usage.total,
        cost_usd=counters.cost_usd + reply.cost_usd,
        reserved_usd=0.0,
        tries=0,
        episode_at=None,
        episode_parked_s=0.0,
    )
    facts = {
        "served_by": reply.served_by,
        "model": s.brief.model.alias,
        "finish": reply.finish.value,
        "request_id": reply.request_id,
        "cost_usd": reply.cost_usd,
        "usage": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_read": usage.cache_read_tokens,
            "cache_write": usage.cache_write_tokens,
        },
    }
    s.append(NodeKind.ASSISTANT, assistant_payload(reply.message, **facts))
    s.pending = [PendingCall(use, place) for place, use in enumerate(reply.message.tool_uses)]
    if s.pending:
        return False
    if reply.finish is FinishReason.LENGTH and not s.counters.last_turn:
        s.append(NodeKind.NOTICE, user_payload(CUT_OFF))
        return False
    return not s.mail or s.counters.last_turn


def failed(s: Situation, event: ModelFailed) -> None:
    """Decide about a failed attempt."""
    counters, failure = s.counters, event.failure
    s.settle(event.call, EffectState.FAILED, message=failure.message[:500], status=failure.status)
    spend(s, failure.usage)
    s.count(tries=counters.tries + 1)
    incident = incident_of(
        failure,
        Episode(
            task=s.brief.task,
            tries=s.counters.tries,
            elapsed_s=max(0.0, s.at - _begun_at(s) - counters.episode_parked_s),
            parked_s=counters.episode_parked_s,
            luck=event.luck,
        ),
        s.rules,
    )
    decision = face(incident)
    s.decide(decision)
    match decision.remedy:
        case Retry(after_s, attempt, of):
            until = s.at + after_s
            s.count(wait_until=until)
            s.doing = f"waiting {after_s:.1f}s before try {attempt} of {of}: {incident.error_class.value}"
            s.acts.append(Wait(until))
            s.state = RunState.BACKOFF
        case Park(for_s):
            s.count(episode_parked_s=s.counters.episode_parked_s + for_s)
            why = f"{failure.dependency}: {incident.error_class.value}: {failure.message[:200]}"
            ending.park(s, s.at + for_s, why)
        case NeedsHuman(question):
            ask_person(s, question)
        case Stop(reason):
            ending.end(s, results.stopped(s, reason, failure, incident.error_class))
        case Observe():
            # line 2 has no `observe` for model calls: this would be our bug.
            ending.end(s, results.stopped(s, StopReason.INTERNAL_ERROR, failure, incident.error_class))
        case _ as never:
            assert_never(never)


def _begun_at(s: Situation) -> float:
    return s.counters.episode_at if s.counters.episode_at is not None else s.at


def ask_person(s: Situation, sentence: str) -> None:
    """Ask how to go on; the answer is heard by whoever goes on (`question_id`)."""
    ending.ask(s, AskPerson(question_id(s), "question", s.head or "", None, sentence, ("go-on", "stop")))


def question_id(s: Situation) -> str:
    """Id of a question about the task as a whole, asked where it stands."""
    return f"{s.brief.task}-{s.head}"


def spend(s: Situation, usage: Usage | None) -> None:
    """What a call that gave no answer has used all the same; its reservation is given back."""
    s.count(reserved_usd=0.0)
    if usage is None:
        return
    model = s.brief.model
    sent = usage.total - usage.output_tokens
    cost = (sent * (model.input_usd or 0.0) + usage.output_tokens * (model.output_usd or 0.0)) / 1_000_000
    s.count(tokens=s.counters.tokens + usage.total, cost_usd=s.counters.cost_usd + round(cost, 6))


def end_exhausted(s: Situation, exhausted: budget_policy.Exhausted) -> None:
    """A budget's end, after the last turn."""
    more = max(1, int(exhausted.limit / 2))
    steps = next_steps(s.brief.task, StopReason.BUDGET_EXHAUSTED, budget=f"{exhausted.budget}=+{more}")
    s.decide(_exhausted_decision(exhausted))
    ending.end(
        s,
        Ending(
            StopReason.BUDGET_EXHAUSTED,
            exhausted.sentence,
            error_class=ErrorClass.BUDGET_EXHAUSTED.value,
            next_steps=steps,
            not_started=exhausted.sentence.rstrip("."),
        ),
    )


def end_last_turn(s: Situation) -> None:
    """The summing-up came. Where a limit was raised meanwhile, the task goes on; else it ends as its budget says."""
    exhausted = budget_policy.judge(s.rules.budget, s.used(), s.counters.warned).exhausted
    if exhausted is None:
        s.count(last_turn=False)
        turn(s)
        return
    end_exhausted(s, exhausted)


def last_words(s: Situation) -> str:
    """The first line of the model's last answer, for the task's row."""
    text = assistant_message(s.path[-1]).text.strip() if s.path else ""
    return text.splitlines()[0][:500] if text else "The agent ended its work without words."


def _exhausted_decision(exhausted: budget_policy.Exhausted) -> Decision:
    return Decision(
        remedy=Stop(StopReason.BUDGET_EXHAUSTED),
        error_class=ErrorClass.BUDGET_EXHAUSTED.value,
        rule=exhausted.rule,
        evidence={"budget": exhausted.budget, "used": exhausted.used, "limit": exhausted.limit},
    )


def _reservation_usd(s: Situation, request: ModelRequest) -> float:
    """What the call may cost at most, roughly; an unknown price is settled by the gateway, not here."""
    model = s.brief.model
    characters = len(request.system) + sum(_length(block) for message in request.messages for block in message.blocks)
    spent = characters / _CHARACTERS_PER_TOKEN * (model.input_usd or 0.0) + request.max_tokens * (
        model.output_usd or 0.0
    )
    return round(spent / 1_000_000, 6)


def _length(block: Block) -> int:
    match block:
        case TextBlock(text) | ToolResultBlock(_, text, _):
            return len(text)
        case ToolUseBlock(_, _, arguments, raw):
            return len(raw or "") + len(str(arguments))
        case OpaqueBlock(_, wire):
            return len(str(wire))
