"""The model side of a turn: budgets, the request, the reply, a failed attempt."""

from __future__ import annotations

import json
import math
from typing import Any, assert_never

from harnessd.defence import face
from harnessd.defence.endings import budget_sentence, next_steps, session_sentence, session_steps
from harnessd.defence.incident import DAY_LIMIT_REACHED, NOT_MADE, Episode, Incident, Tallies, incident_of
from harnessd.domain.decision import (
    Compact,
    Decision,
    Fallback,
    NeedsHuman,
    Nudge,
    Observe,
    Park,
    Probe,
    Repair,
    Retry,
    Rollback,
    Stop,
)
from harnessd.domain.effect import EffectState
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import FinishReason, ModelRequest, Usage
from harnessd.domain.record import AskPerson, TakeMessage
from harnessd.domain.session import NodeKind, assistant_message, assistant_payload, user_payload
from harnessd.domain.task import StopReason
from harnessd.engine import ending, forms, links, recovering, reserving, roles, streaks
from harnessd.engine.context import compacting, diagnosing, measuring, summarising, viewing
from harnessd.engine.protocol import CallModel, ModelFacts, ModelFailed, ModelReplied, RunState, Wait
from harnessd.engine.situation import Ending, PendingCall, Situation, asked_calls
from harnessd.engine.tool_calls import background, callfacts, results
from harnessd.policy import budget as budget_policy

SAFE = "safe"  # what answers for an agent that was given up on: its declared answer
GO_ON = "Go on with the task."
CUT_OFF = "Your last answer was cut off at its token limit. Go on from where it stopped, more briefly."
LAST_TURN = (
    "{sentence}. This is the last turn, without tools: sum up what is done, what is missing, and what comes next."
)


def turn(s: Situation) -> None:
    """Begin the next model call, or end where a budget says so."""
    for message in s.mail:
        ours = message.kind != "person"
        done = background.told(s) if ours else {}
        said = user_payload(message.text) | ({"facts": done} if done else {})
        node = s.append(NodeKind.NOTICE if ours else NodeKind.USER, said)
        s.records.append(TakeMessage(message.id, node.id))
    if any(message.kind == "person" for message in s.mail):
        s.person_acts()
    s.mail.clear()
    roles.at_border(s)
    model = links.choose(s)
    exhausted = reserving.exhausted(s, model)
    if exhausted is None:
        s.count(last_turn=False)
    elif _summing_up_is_owed(s):
        pass  # its call failed, or was cut off by a restart, and is made again
    elif s.counters.last_turn or not s.rules.budget.shape.last_turn or not reserving.may_call(s, model):
        end_exhausted(s, exhausted)
        return
    else:
        s.count(last_turn=True)
        s.decide(_exhausted_decision(exhausted))
        notice = user_payload(LAST_TURN.format(sentence=exhausted.sentence.rstrip(".")))
        s.append(NodeKind.NOTICE, notice | {"facts": {"last_turn": True, "budget": exhausted.budget}})
    if s.path[-1].kind is NodeKind.ASSISTANT:
        s.append(NodeKind.NOTICE, user_payload(GO_ON))
    made = compacting.before_call(s, model)
    if isinstance(made, Failure):
        _cannot_fit(s, made, model.alias)
    elif made:
        call_model(s, model)
    elif s.asking is not None and s.state is not RunState.OVER:
        ask_person(s, s.asking)


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


def call_model(s: Situation, model: ModelFacts) -> None:
    """One attempt, its intent and its reservation recorded first."""
    most = min(reserving.most_tokens(s, model), compacting.longest_answer(s, model))
    reserved = reserving.cost_usd(model, reserving.input_tokens(s), most)
    # A history with calls is taken only beside tools: where a role has none, the task's own stand there unused.
    tools = s.brief.tools or s.own.tools
    request = ModelRequest(
        model=model.alias,
        system=s.brief.system,
        messages=viewing.view(s, model),
        tools=tuple(tool.spec for tool in tools),
        max_tokens=most,
        tool_choice="none" if s.counters.last_turn or tools is not s.brief.tools else "auto",
    )
    if s.counters.episode_at is None:
        s.count(episode_at=s.at)
    about = {"reserved_usd": reserved, "max_tokens": most, "estimated": measuring.raw_size(s)}
    effect = s.plan_model_call(model.alias, s.counters.tries + 1, about)
    s.count(reserved_usd=reserved, wait_until=None)
    s.doing = f"waiting for model/{model.alias}, try {effect.attempt}"
    s.in_flight[effect.id] = None
    s.acts.append(CallModel(effect.id, request, effect.attempt, compacting.to_keep(s)))
    s.state = RunState.MODEL


def replied(s: Situation, event: ModelReplied) -> bool:
    """Record a whole answer. True when it is the task's last word: no calls, not cut off, no person's word waiting."""
    reply, counters = event.reply, s.counters
    usage, alias = reply.usage, alias_of(s, event.call)
    if summarising.of(s, event.call):
        compacting.summarised(s, links.choose(s), event)
        return False
    s.settle(event.call, EffectState.DONE, tokens=usage.total, cost_usd=reply.cost_usd, request_id=reply.request_id)
    s.count(
        turns=counters.turns + 1,
        tokens=counters.tokens + usage.total,
        cost_usd=counters.cost_usd + reply.cost_usd,
        reserved_usd=0.0,
        tries=0,
        episode_at=None,
        episode_parked_s=0.0,
        taken={mark: times for mark, times in counters.taken.items() if not mark.startswith("retry/")},
    )
    links.answered(s, alias)
    measuring.learn(s, alias, event.call, usage)
    compacting.judge(s, alias, usage)
    facts: dict[str, Any] = {
        "served_by": reply.served_by,
        "model": alias,
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
    mended = callfacts.mended(s, reply.message.tool_uses, alias)
    if mended:
        facts["mended"] = mended
    if not reply.message.tool_uses:
        facts |= forms.formed(s, reply)
    node = s.append(NodeKind.ASSISTANT, assistant_payload(reply.message, **facts))
    s.pending = [PendingCall(use, place) for place, use in enumerate(asked_calls(node))]
    if s.pending:
        return False
    if reply.finish is FinishReason.LENGTH and not s.counters.last_turn and "misfit" not in facts:
        s.append(NodeKind.NOTICE, user_payload(CUT_OFF))
        return False
    return s.counters.last_turn or all(message.kind == "aside" for message in s.mail)


def failed(s: Situation, event: ModelFailed) -> bool:
    """Decide about a failed attempt. True when the next one follows at once, on another link."""
    failure, alias = event.failure, alias_of(s, event.call)
    if summarising.of(s, event.call):
        return compacting.summary_failed(s, event, links.cost_of(s, failure.usage, alias))
    s.settle(event.call, EffectState.FAILED, message=failure.message[:500], status=failure.status)
    spend(s, failure.usage, alias)
    it = incident_of_call(s, event, alias)
    decision = face(it)
    s.decide(decision)
    results.took(s, decision)
    if isinstance(decision.remedy, Retry) and it.error_class is ErrorClass.MALFORMED_OUTPUT:
        s.append(NodeKind.NOTICE, user_payload(forms.ask_again(failure, s.brief.wanted)))
    if isinstance(decision.remedy, Compact):
        compacting.overflowed(s, links.models(s)[alias], failure, event.call)
        return True
    if isinstance(decision.remedy, Repair):
        viewing.use(s, alias, decision.remedy.rules)
        return True
    return carry_out(s, it, decision)


def _cannot_fit(s: Situation, failure: Failure, alias: str) -> None:
    """By our own count no request fits: none was sent, and the ladder of an overflow decides (R4.2, R4.3)."""
    it = incident_of_call(s, ModelFailed(s.at, "", failure), alias)
    decision = face(it)
    s.decide(decision)
    results.took(s, decision)
    if isinstance(decision.remedy, Compact):
        compacting.overflowed(s, links.models(s)[alias], failure)
        turn(s)
    elif carry_out(s, it, decision):
        turn(s)


def carry_out(s: Situation, it: Incident, decision: Decision) -> bool:
    """Do what was decided about a call. True when the next one follows at once, on another link."""
    match decision.remedy:
        case Retry(after_s, attempt, of):
            until = s.at + after_s
            s.count(wait_until=until)
            s.doing = f"waiting {after_s:.1f}s before try {attempt} of {of}: {it.error_class.value}"
            s.acts.append(Wait(until))
            s.state = RunState.BACKOFF
        case Fallback(to, _):
            links.take_over(s, to, f"{it.failure.dependency}: {it.error_class.value}: {it.failure.message}")
            return True
        case Park(for_s):
            _park(s, it, for_s)
        case NeedsHuman(question):
            ask_person(s, question)
        case Stop(reason):
            _stop(s, it, reason)
        case Observe() | Nudge() | Compact() | Repair() | Probe() | Rollback():
            # line 2 has no `observe` or `probe` for model calls: this would be our bug.
            ending.end(s, results.stopped(s, StopReason.INTERNAL_ERROR, it.failure, it.error_class))
        case _ as never:
            assert_never(never)
    return False


def incident_of_call(s: Situation, event: ModelFailed, alias: str) -> Incident:
    """Count the attempt, and gather what the lines look at. A call that an open breaker let not through spends none."""
    failure, made = event.failure, event.failure.code not in NOT_MADE
    here = s.counters.tries_of.get(alias, 0) + made
    s.count(tries=s.counters.tries + made, tries_of={**s.counters.tries_of, alias: here})
    before = s.counters.streak
    links.may_be_asked_again(s, alias, failure)

    def tallies(error_class: ErrorClass) -> Tallies:
        return Tallies(before.get(error_class.value, 0) + made, recoveries=streaks.recoveries(s))

    counters = s.counters
    it = incident_of(
        failure,
        Episode(
            task=s.brief.task,
            tries=counters.tries,
            elapsed_s=max(0.0, s.at - _begun_at(s) - counters.episode_parked_s),
            parked_s=counters.episode_parked_s,
            luck=event.luck,
            first_event_s=event.first_event_s,
            may_retry=event.may_retry,
            whose=results.whose(s),
            tallies=tallies,
            links=links.of_model(s, alias),
            taken=counters.taken,
            compactions=int(counters.context.get("tries", 0)),
            no_compaction=lambda: compacting.no_compaction(s, links.models(s)[alias], failure, event.call),
            stricter=lambda: viewing.stricter(s, links.models(s)[alias], failure.message),
        ),
        s.rules,
    )
    row = tallies(it.error_class).consecutive
    s.count(streak={it.error_class.value: row})
    if it.error_class is ErrorClass.AUTH and row == 1:
        s.say(
            "credential_dead", dependency=failure.dependency, sentence=f"{failure.dependency} takes the key no longer."
        )
    if counters.episode_parked_s:
        # While an outage lasts, a look at it spends no try: one look each time, however many there are (R3.2a).
        s.count(tries=min(counters.tries, it.settings.retries + 1))
    return it


def _park(s: Situation, it: Incident, for_s: float) -> None:
    until = s.at + for_s
    s.count(episode_parked_s=s.counters.episode_parked_s + for_s)
    reachable = s.counters.reachable
    links.end_round(s)
    if it.failure.code != DAY_LIMIT_REACHED:  # nothing is out of order
        links.begin_outage(s, it, until)
    ending.park(s, until, links.parked_words(s, it, until), links.soonest(reachable, it))


def _stop(s: Situation, it: Incident, reason: StopReason) -> None:
    """The end, or the agent's declared safe answer, marked as degraded, where the model's cannot be read (R3.14)."""
    safe, failure = s.brief.safe, it.failure
    if it.error_class is not ErrorClass.MALFORMED_OUTPUT or not safe:
        full = reason is StopReason.CONTEXT_EXHAUSTED
        failure = diagnosing.diagnosed(s, failure) if full else failure
        ending.end(s, results.stopped(s, reason, failure, it.error_class))
        return
    s.append(NodeKind.NOTICE, user_payload(safe) | {"facts": {"safe": True, "output": json.loads(safe)}})
    why = f"{failure.dependency} gave no answer that can be taken; the agent's safe one was handed out."
    agent = f"agent/{s.brief.agent}"
    s.count(degraded={**s.counters.degraded, agent: SAFE})
    s.say("degraded", dependency=agent, link=SAFE, sentence=why)
    ending.end(s, Ending(StopReason.COMPLETED, safe[:500], error_class=ErrorClass.MALFORMED_OUTPUT.value))


def alias_of(s: Situation, call: str) -> str:
    """Which model a call was made to."""
    return s.effects[call].name.removeprefix("model/")


def _begun_at(s: Situation) -> float:
    return s.counters.episode_at if s.counters.episode_at is not None else s.at


def ask_person(s: Situation, sentence: str) -> None:
    """Ask how to go on; the answer is heard by whoever goes on (`question_id`)."""
    s.count(asking="")
    until = ending.wait_for_person_until(s)
    ending.ask(s, AskPerson(question_id(s), "question", s.head or "", None, sentence, recovering.choices(s), until))


def question_id(s: Situation) -> str:
    """Id of a question about the task as a whole, asked where it stands."""
    return f"{s.brief.task}-{s.head}"


def spend(s: Situation, usage: Usage | None, alias: str) -> None:
    """What a call that gave no answer has used all the same; its reservation is given back."""
    s.count(reserved_usd=0.0)
    if usage is None:
        return
    s.count(tokens=s.counters.tokens + usage.total, cost_usd=s.counters.cost_usd + links.cost_of(s, usage, alias))


def end_exhausted(s: Situation, exhausted: budget_policy.Exhausted) -> None:
    """A budget's end, after the last turn. Where that turn was announced for it, the decision stands already."""
    if _announced(s) != exhausted.budget:
        s.decide(_exhausted_decision(exhausted))
    if exhausted.budget == budget_policy.SESSION_SIZE:  # no limit of it can be raised
        sentence, steps = session_sentence(exhausted.sentence), session_steps(s.brief.task)
    else:
        more = f"{exhausted.budget}=+{_more(exhausted)}"
        sentence = budget_sentence(exhausted.sentence)
        steps = next_steps(s.brief.task, StopReason.BUDGET_EXHAUSTED, budget=more)
    ending.end(
        s,
        Ending(
            StopReason.BUDGET_EXHAUSTED,
            sentence,
            error_class=ErrorClass.BUDGET_EXHAUSTED.value,
            next_steps=steps,
            not_started=exhausted.sentence.rstrip("."),
        ),
    )


def _announced(s: Situation) -> str:
    """The budget for which the last turn was announced, where it is the one that just ended; else empty."""
    if not s.counters.last_turn:
        return ""
    facts = (node.payload.get("facts", {}) for node in reversed(s.path) if node.kind is NodeKind.NOTICE)
    return str(next((its.get("budget", "") for its in facts if its.get("last_turn")), ""))


def _more(exhausted: budget_policy.Exhausted) -> str:
    """What to add to a limit so that the task goes on: what is used above it, and half of it again."""
    more = max(0.0, exhausted.used - exhausted.limit) + exhausted.limit / 2
    if exhausted.budget == "cost_usd":
        return f"{math.ceil(round(more, 6) * 100) / 100:.2f}"
    unit = "s" if exhausted.budget in budget_policy.TIMES else ""
    return f"{max(1, math.ceil(more))}{unit}"


def end_last_turn(s: Situation) -> None:
    """The summing-up came. Where a limit was raised meanwhile, the task goes on; else it ends as its budget says."""
    exhausted = reserving.exhausted(s, links.choose(s))
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
