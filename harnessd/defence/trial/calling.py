"""Calling: a tool is about to be called, or has run for a while: permission, clock, breaker, loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from harnessd.defence.trial.climb import climb
from harnessd.defence.trial.state import Asked, State
from harnessd.defence.trial.step import Answer, Step
from harnessd.domain.decision import RuleRef
from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass
from harnessd.domain.task import StopReason
from harnessd.policy import escalation as escalation_policy
from harnessd.policy import loop as loop_policy
from harnessd.policy import tools as tools_policy
from harnessd.policy.budget import shown_duration


def called(s: State, step: Step) -> Answer:
    """What becomes of a call that nothing is known against."""
    facts, settings = call_facts(s, step), settings_of(s, step)
    if "lasting" in step.facts:
        return _running(settings, facts.tool, step.facts["lasting"])
    if settings.max_calls is not None and s.calls_of[facts.tool] >= settings.max_calls:
        says = f"all {settings.max_calls} calls of it are used. Go on without it."
        return Answer("deny", (settings.refs["max_calls"],), says=says)
    permission = tools_policy.permission(s.rules.tools, replace(facts, effect=settings.effect))
    rules = (permission.rule, settings.refs["effect"])
    if permission.do == "deny":
        return Answer("deny", rules, ErrorClass.PERMISSION_DENIED.value, says=permission.say)
    if permission.do == "ask":
        s.asked = Asked("approval", s.at)
        return Answer("ask", rules, says=about(settings))
    s.call = None
    s.calls_of[facts.tool] += 1
    closed = s.attempt(facts.tool, "ok")
    answer = Answer("allow", rules, says=f"{about(settings)} {closed}".strip())
    call = loop_policy.Call(facts.tool, facts.arguments, step.result, polling=settings.polling)
    return looped(s, step, call) or answer


def call_facts(s: State, step: Step) -> tools_policy.CallFacts:
    """The facts of a call as the rules of tools see them. What the tool itself declares is not known here."""
    facts = step.facts
    arguments: dict[str, Any] = step.below("arg.")
    for name in ("command", "path"):
        if name in facts:
            arguments[name] = facts[name]
    # A stated effect is taken as the tool's own word, and as what policy makes of it.
    stated = facts.get("effect")
    return tools_policy.CallFacts(
        tool=facts["tool"],
        arguments=arguments,
        agent=s.agent_of(step),
        workspace=facts.get("workspace", ""),
        labels=s.labels_of(step),
        priority=facts.get("priority", 0),
        model=facts.get("model", ""),
        path=facts.get("path"),
        effect=EffectClass(stated) if stated else None,
    )


def settings_of(s: State, step: Step) -> tools_policy.ToolSettings:
    """What policy says of a tool's call; a stated effect stands."""
    facts = call_facts(s, step)
    settings = tools_policy.settings(s.rules.tools, facts)
    return settings if facts.effect is None else replace(settings, effect=facts.effect)


def about(settings: tools_policy.ToolSettings) -> str:
    """A call's effect and clock in words: `irreversible, 2m then background`."""
    return f"{settings.effect.value}, {shown_duration(settings.timeout_s)} then {settings.on_timeout}"


def _running(settings: tools_policy.ToolSettings, tool: str, lasting_s: float) -> Answer:
    after, life = shown_duration(settings.timeout_s), settings.life_s
    if lasting_s < settings.timeout_s:
        return Answer("none", (_ref(settings, "timeout.after", tool),), says=f"{tool} may run for {after}")
    rules: tuple[RuleRef, ...] = (_ref(settings, "timeout.do", tool), _ref(settings, "timeout.after", tool))
    if settings.on_timeout == "background" and (life is None or lasting_s < life):
        until = "without end" if life is None else f"for at most {shown_duration(life)}"
        return Answer("background", rules, says=f"{tool} goes on in the background {until}")
    if settings.on_timeout == "background" and life is not None:
        rules, after = (_ref(settings, "timeout.life", tool),), shown_duration(life)
    return Answer("kill", rules, ErrorClass.TIMEOUT.value, says=f"{tool} timed out after {after}: exit code 124")


def _ref(settings: tools_policy.ToolSettings, leaf: str, tool: str) -> RuleRef:
    return settings.refs.get(leaf, RuleRef("tools", "default", f"default of {leaf} for {tool}", "harnessd", 0))


def looped(s: State, step: Step, call: loop_policy.Call) -> Answer | None:
    """What is done about the loop that a finished call completes, or None."""
    looping = s.end_turn(call)
    if looping is None:
        return None
    no_news = looping.detector == "no_progress"
    error_class = ErrorClass.NO_PROGRESS if no_news else ErrorClass.LOOP_DETECTED
    return looping_answer(s, step, error_class, looping.rule, looping.nudge)


def looping_answer(s: State, step: Step, error_class: ErrorClass, rule: RuleRef, nudge: str) -> Answer:
    """The next step against a loop: an escalation rule's, else the ladder of kind loop."""
    facts = escalation_facts(s, step, error_class.value)
    escalated = escalation_policy.escalate(s.rules.escalation, facts)
    ladder = s.rules.loop.ref("do") if escalated is None else escalated.rule
    back_to = "before_loop" if escalated is None else escalated.to
    do = s.rules.loop.shape.do if escalated is None else escalated.do
    rules = (rule, ladder) if escalated is None else (ladder, rule)
    made = Answer("stop", rules, error_class.value)
    taken = s.taken.setdefault(f"{ladder.file}:{ladder.line}:{ladder.rule}", Counter())
    reason = StopReason.LOOP_DETECTED.value
    steps = {
        "nudge": lambda: replace(made, do="nudge", says=nudge),
        "rollback": lambda: replace(made, do="rollback", to=back_to),
        "needs_human": lambda: ask_person(s, replace(made, do="needs_human", says=nudge)),
        "stop": lambda: replace(made, reason=reason, says=nudge),
    }
    found = climb(do, steps, taken)
    return found if isinstance(found, Answer) else replace(made, reason=reason, passed=found)


def ask_person(s: State, answer: Answer) -> Answer:
    """A person is asked; with the answer, every episode is over."""
    s.asked = Asked("question", s.at)
    s.person_acts()
    return answer


def escalation_facts(s: State, step: Step, error_class: str, consecutive: int = 1) -> escalation_policy.FailureFacts:
    """The facts of a failure as escalation rules see them."""
    facts = step.facts
    model, tool = facts.get("model", ""), facts.get("tool", "")
    return escalation_policy.FailureFacts(
        error_class=error_class,
        dependency=facts.get("dependency", tool or model),
        agent=s.agent_of(step),
        workspace=facts.get("workspace", ""),
        labels=s.labels_of(step),
        priority=facts.get("priority", 0),
        model=model,
        tool=tool,
        effect=facts.get("effect") or (settings_of(s, step).effect.value if tool else None),
        window_used=facts.get("window_used"),
        consecutive=int(facts.get("consecutive", consecutive)),
        failed_corrections=int(facts.get("failed_corrections", 0)),
        recoveries=int(facts.get("recoveries", 0)),
    )
