"""Permitting: may a call run now? Refused ones get a result that says why; where a person must decide, one is asked."""

from __future__ import annotations

import difflib
from dataclasses import replace

from harnessd.defence.incident import rule_json
from harnessd.domain.decision import Decision, NeedsHuman
from harnessd.domain.effect import EffectClass, canonical_json
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.record import AskPerson, Question
from harnessd.engine import ending
from harnessd.engine.situation import PendingCall, Situation
from harnessd.engine.tool_calls import keys, outcomes, results
from harnessd.engine.tool_calls.callfacts import facts_of, tool_of
from harnessd.policy import budget as budget_policy
from harnessd.policy import tools as tools_policy


def may_run(s: Situation, call: PendingCall, settings: tools_policy.ToolSettings) -> bool:
    """False when the call does not run now: it has its result, or a person is asked and it stays open."""
    failure = _not_callable(s, call)
    if failure is not None:
        results.decide(s, call, results.incident(s, call, failure, settings.effect))
        return False
    why = _no_more_calls(s, call, settings)
    if why:
        results.give(s, call, f"{call.use.name} was not started: {why}", is_error=True, state="not_started")
        return False
    if settings.effect in keys.KEYED and not _first_of_its_kind(s, call):
        return False
    return _permitted(s, call, settings)


def _not_callable(s: Situation, call: PendingCall) -> Failure | None:
    if tool_of(s, call) is None:
        names = [tool.spec.name for tool in s.brief.tools]
        near = difflib.get_close_matches(call.use.name, names, n=1)
        meant = f", did you mean {near[0]!r}?" if near else ";"
        message = f"there is no tool {call.use.name!r}{meant} the tools are: {', '.join(names) or 'none'}"
        return Failure("tool", call.name, message, hint=ErrorClass.UNKNOWN_TOOL)
    if call.use.arguments is None:
        message = f"the arguments are not a JSON object: {(call.use.raw or '')[:200]!r}"
        return Failure("tool", call.name, message, hint=ErrorClass.INVALID_ARGUMENTS)
    return None


def _no_more_calls(s: Situation, call: PendingCall, settings: tools_policy.ToolSettings) -> str | None:
    if call.tries:
        return None  # counted when it first started
    if s.counters.last_turn:
        return "this is the last turn, without tools."
    exhausted = budget_policy.judge(s.rules.budget, s.used(), s.counters.warned).exhausted
    if exhausted is not None:
        return exhausted.sentence
    if settings.max_calls is not None and s.counters.calls_of.get(call.use.name, 0) >= settings.max_calls:
        return f"all {settings.max_calls} calls of it are used. Go on without it."
    return None


def _permitted(s: Situation, call: PendingCall, settings: tools_policy.ToolSettings) -> bool:
    permission = _in_doubt(s, settings, _permission(s, call, settings))
    if permission.do == "allow" or (call.allowed and permission.do == "ask"):
        return True
    message = permission.say
    if permission.do == "ask":
        question = s.questions.get(_question_id(s, call))
        if question is None or (question.choice is None and not _out_of_time(question, s.at)):
            wanted = _approval(s, call, permission)
            if question is None and not s.in_flight:  # asked now, and once
                s.decide(_why_asked(wanted, permission), call.use.id)
            ending.ask(s, wanted)
            return False
        if question.choice == "allow":
            return True
        if question.choice is None and s.rules.tools.shape.ask.do == "stop":
            ending.end(s, ending.unanswered(question.sentence))
            return False
        said = f" They say: {question.say}" if question.say else ""
        message = f"a person did not allow it.{said}" if question.choice else "nobody answered the question in time"
    failure = Failure("tool", call.name, message, hint=ErrorClass.PERMISSION_DENIED)
    it = results.incident(s, call, failure, settings.effect)
    results.decide(s, call, replace(it, classified_by=permission.rule))
    return False


def _permission(s: Situation, call: PendingCall, settings: tools_policy.ToolSettings) -> tools_policy.Permission:
    facts = facts_of(s, call, settings.effect)
    for others in s.rules.denies:
        # No pin outlives a deny of the set in force, and no stand-in may do what the task's own agent may not.
        denied = tools_policy.permission(others, replace(facts, agent=s.brief.agent))
        if denied.do == "deny":
            return denied
    return tools_policy.permission(s.rules.tools, facts)


def _in_doubt(
    s: Situation, settings: tools_policy.ToolSettings, permission: tools_policy.Permission
) -> tools_policy.Permission:
    """After a restore nobody knows whether this was done between the backup and now: a person says (R3.13)."""
    if not s.counters.doubt or settings.effect is not EffectClass.IRREVERSIBLE or permission.do == "deny":
        return permission
    note = "the store was restored from a backup: whether this was done in between is not known"
    return replace(permission, do="ask", note="; ".join(filter(None, (note, permission.note))))


def _question_id(s: Situation, call: PendingCall) -> str:
    return f"{s.brief.task}-{s.asked_node}.{call.place + 1}"


def _out_of_time(question: Question, at: float) -> bool:
    return question.until is not None and question.until <= at


def _approval(s: Situation, call: PendingCall, permission: tools_policy.Permission) -> AskPerson:
    arguments = canonical_json(dict(call.use.arguments or {}))
    after_s = s.rules.tools.shape.ask.after
    return AskPerson(
        id=_question_id(s, call),
        kind="approval",
        node=s.asked_node,
        call_id=call.use.id,
        sentence=f"{call.use.name} {arguments[:400]} needs approval{_why_doubted(s)}",
        choices=("allow", "deny"),
        until=None if after_s is None else s.at + after_s,
        data={"tool": call.name, "arguments": arguments, "then": s.rules.tools.shape.ask.do}
        | rule_json(permission.rule)
        | ({"note": permission.note} if permission.note else {}),
    )


def _why_doubted(s: Situation) -> str:
    return ": the store was restored, and whether it was done before that is not known" if s.counters.doubt else ""


def _why_asked(wanted: AskPerson, permission: tools_policy.Permission) -> Decision:
    """What `why` tells of an approval: nothing failed, a rule wants a person's word first."""
    evidence = {"question": wanted.id, "dependency": wanted.data["tool"], "message": wanted.sentence}
    if permission.note:
        evidence["note"] = permission.note
    return Decision(NeedsHuman(wanted.sentence), "", permission.rule, evidence)


def _first_of_its_kind(s: Situation, call: PendingCall) -> bool:
    """Whether this act was not begun before, or may be begun again (R3.13)."""
    begun = call.effect if call.effect is not None else keys.twin_of(s, call)
    return begun is None or outcomes.begun_before(s, call, begun)
