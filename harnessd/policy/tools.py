"""Tools: what a tool does to the world, how long it may take, who may use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.domain.effect import EffectClass
from harnessd.policy.calls.command import Part
from harnessd.policy.calls.seen import CallFacts, SeenCall
from harnessd.policy.conditions import ALWAYS, NEVER, Conditions, When
from harnessd.policy.language.facts import EFFECTS
from harnessd.policy.language.figures import Count, Duration, Size
from harnessd.policy.language.freeform import Json
from harnessd.policy.language.names import ANYTHING, Name, Names
from harnessd.policy.language.shape import UNSTATED, Entry, Policy, Shape, stated
from harnessd.policy.language.source import Problem
from harnessd.policy.values import Flag, ListOf, Template, Text, Word, fill

__all__ = ["CallFacts", "Permission", "ToolSettings", "ToolsPolicy", "ToolsShape", "permission", "settings"]

_ToolNames = Annotated[tuple[Name, ...], Names(sorts=("tool", "mcp"))]
_ToolWhen = Annotated[When, Conditions(scope="tools")]
_PermissionWhen = Annotated[When, Conditions(scope="permissions")]


class Timeout(Shape):
    """The clock of one call."""

    after: Annotated[float, Duration(low="1s", high="24h")] | None = Field(None, description="Then `do`.")
    max: Annotated[float, Duration(low="1s", high="24h")] | None = Field(
        None, description="The most that the model may ask for as `after`."
    )
    do: Annotated[str, Word(words=("kill", "background"))] | None = Field(
        None, description="kill: whole tree, 124, output kept. background: id and output file, woken at the end."
    )
    life: Annotated[float | None, Duration(low="1s", high="30d", none=True)] = Field(
        None, description="Of a background job; then killed, 124."
    )


class Probe(Shape):
    """Settles an unknown outcome by asking the world; neither `done` nor `not_done` = still unknown."""

    tool: Annotated[Name, Names(sorts=("tool", "mcp"), star=False, patterns=False, single=True)] = Field(
        description="The tool that asks."
    )
    arguments: Annotated[dict[str, Any], Json()] = Field(
        {}, description="Its arguments; texts may hold {key} and {arg.PATH}."
    )
    done: Annotated[When, Conditions(scope="probe")] = Field(description="Facts that say it was done.")
    not_done: Annotated[When, Conditions(scope="probe")] = Field(description="Facts that say it was not.")


class Undo(Shape):
    """Compensation that is offered at rollback."""

    tool: Annotated[Name, Names(sorts=("tool", "mcp"), star=False, patterns=False, single=True)] = Field(
        description="The tool that undoes it."
    )
    arguments: Annotated[dict[str, Any], Json()] = Field(
        {}, description="Its arguments; texts may hold {result.PATH} and {arg.PATH}."
    )


class ToolRule(Entry):
    """Settings of tools; each leaf comes from the first entry that fits and states it."""

    reserved: ClassVar[tuple[str, ...]] = ("sandbox",)
    for_: _ToolNames = Field(ANYTHING, alias="for", description="Which tools: tool/NAME, mcp/SERVER/TOOL.")
    when: _ToolWhen = Field(ALWAYS, description="Facts of the call.")
    unless: _ToolWhen = Field(NEVER, description="Facts that speak against it.")
    effect: Annotated[str, Word(words=EFFECTS)] | None = Field(None, description="What a repeat or a crash may do.")
    timeout: Timeout | None = Field(None, description="The clock of one call.")
    silence: Annotated[float | None, Duration(low="5s", high="7d", none=True)] = Field(
        None, description="No output, no CPU time in its whole process tree, no progress."
    )
    output_max: Annotated[int, Size(low="1KiB", high="8MiB")] | None = Field(
        None, description="Head and tail to the model; the whole is an artefact."
    )
    max_calls: Annotated[int | None, Count(high="1M", none=True)] = Field(
        None, description="Calls of this tool a task may make."
    )
    polling: Annotated[bool, Flag()] | None = Field(
        None, description="Repeats are not a loop; they still count as tool calls."
    )
    key_life: Annotated[float, Duration(low="24h", high="365d")] | None = Field(
        None, description="How long the receiver honours an idempotency key; older = never sent again."
    )
    probe: Probe | None = Field(None, description="Settles an unknown outcome.")
    undo: Undo | None = Field(None, description="Compensation offered at rollback.")


class PermissionRule(Entry):
    """Who may call what; the first that fits decides, but a deny anywhere wins."""

    for_: _ToolNames = Field(ANYTHING, alias="for", description="Which tools: tool/NAME, mcp/SERVER/TOOL.")
    when: _PermissionWhen = Field(ALWAYS, description="Facts of the call.")
    unless: _PermissionWhen = Field(NEVER, description="Facts that speak against it.")
    do: Annotated[str, Word(words=("allow", "ask", "deny"))] = Field(description="allow, ask a person, or deny.")
    say: Annotated[str, Template(names=("tool", "rule"))] | None = Field(
        None, description='What the model is told on deny ("Not allowed here." by itself).'
    )


class ShimRule(Entry):
    """Known, unambiguous repairs of arguments; a shim never guesses meaning."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("model",))] = Field(
        ANYTHING, alias="for", description="Which models: model/ALIAS."
    )
    when: _ToolWhen = Field(ALWAYS, description="Facts of the call.")
    unless: _ToolWhen = Field(NEVER, description="Facts that speak against it.")
    json_string_to: Annotated[tuple[str, ...], ListOf(each=Word(words=("array", "object")), most=2)] | None = Field(
        None, description="A JSON string where the schema wants one of these is read."
    )
    unnest: dict[str, Annotated[tuple[str, ...], ListOf(each=Text(), least=1)]] | None = Field(
        None, description="Optional fields that this model nests one level too deep, by tool."
    )


class AskPolicy(Shape):
    """What happens to an approval that nobody answers."""

    after: Annotated[float | None, Duration(low="1m", high="90d", none=True)] = Field(
        description="How long an approval may wait."
    )
    do: Annotated[str, Word(words=("deny", "stop"))] = Field(description="Then: deny the call, or stop the task.")


class ToolsShape(Shape):
    """What a tool does to the world, how long it may take, who may use it."""

    rules: tuple[ToolRule, ...] = Field(description="Settings; the first entry that fits and states a leaf gives it.")
    permissions: tuple[PermissionRule, ...] = Field(description="Who may call what; nothing fits: allow.")
    ask: AskPolicy = Field(description="Approvals that nobody answers.")
    shims: tuple[ShimRule, ...] = Field((), description="Known repairs of arguments, by model.")


ToolsPolicy = Policy[ToolsShape]


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What policy says of one call. Times are seconds, None = no such limit; `refs` gives the line of each leaf."""

    effect: EffectClass
    timeout_s: float
    timeout_max_s: float
    on_timeout: Literal["kill", "background"]
    life_s: float | None
    silence_s: float | None
    output_max: int
    max_calls: int | None
    polling: bool
    key_life_s: float
    refs: Mapping[str, RuleRef]
    probe: Probe | None = None
    undo: Undo | None = None


@dataclass(frozen=True, slots=True)
class Permission:
    """May this call be made, and what is the model told if not. `note` is the operator's own, for people."""

    do: Literal["allow", "ask", "deny"]
    say: str
    rule: RuleRef
    note: str = ""


@dataclass(frozen=True, slots=True)
class Shim:
    """Repairs of one call's arguments: JSON kinds that may come as a string, and fields to lift one level."""

    json_string_to: tuple[str, ...] = ()
    unnest: tuple[str, ...] = ()


# What holds where no entry of no document states a leaf: the table of policies.md.
_LEAVES: Mapping[tuple[str, ...], Any] = {
    ("timeout", "after"): 120.0,
    ("timeout", "max"): 600.0,
    ("timeout", "do"): "background",
    ("timeout", "life"): 7200.0,
    ("silence",): 600.0,
    ("output_max",): 65536,
    ("max_calls",): None,
    ("polling",): False,
    ("key_life",): 86400.0,
    ("probe",): None,
    ("undo",): None,
}


def settings(policy: ToolsPolicy, facts: CallFacts) -> ToolSettings:
    """The settings of one call, each leaf from the first entry that fits and states it."""
    values: dict[str, Any] = {}
    refs: dict[str, RuleRef] = {}
    call = SeenCall.of(facts)
    fitting = [index for index, rule in enumerate(policy.shape.rules) if call.any_part(rule)]
    for path, default in _LEAVES.items():
        key = ".".join(path)
        values[key] = default
        for index in fitting:
            value = stated(policy.shape.rules[index], *path)
            if value is not UNSTATED:
                values[key] = value
                refs[key] = policy.ref("rules", index, *path)
                break
    effect, refs["effect"] = _effect(policy, call)
    longest = max(values["timeout.max"], values["timeout.after"])
    return ToolSettings(
        effect=effect,
        timeout_s=values["timeout.after"],
        timeout_max_s=longest,
        on_timeout=values["timeout.do"],
        life_s=None if values["timeout.life"] is None else max(values["timeout.life"], longest),
        silence_s=values["silence"],
        output_max=values["output_max"],
        max_calls=values["max_calls"],
        polling=values["polling"],
        key_life_s=values["key_life"],
        refs=refs,
        probe=values["probe"],
        undo=values["undo"],
    )


def permission(policy: ToolsPolicy, facts: CallFacts) -> Permission:
    """May the call be made. A deny that fits wins; else the first entry that fits; nothing fits: allow.

    A shell line that cannot be taken apart is asked about, unless something denies it.
    """
    call = SeenCall.of(facts)
    if facts.effect is None:
        call = replace(call, facts=replace(facts, effect=_effect(policy, call)[0]))
    rules = policy.shape.permissions
    for index, rule in enumerate(rules):
        if rule.do == "deny" and call.any_part(rule):
            return _permission(policy, index, facts)
    if call.inseparable:
        place = policy.ref("permissions", rule="a line that cannot be taken apart is asked about")
        return Permission("ask", "", place)
    for index, rule in enumerate(rules):
        if call.every_part(rule) if rule.do == "allow" else call.any_part(rule):
            return _permission(policy, index, facts)
    return Permission("allow", "", policy.ref("permissions", rule="nothing fits"))


def shim(policy: ToolsPolicy, facts: CallFacts, model: str) -> Shim:
    """The repairs of a call that `model` asks for, each from the first entry that fits and states it."""
    line = facts.arguments.get("command")
    look = SeenCall.of(facts).lookup(line if isinstance(line, str) else None)
    fitting = [rule for rule in policy.shape.shims if rule.fits((model,), look)]
    kinds = next((rule.json_string_to for rule in fitting if rule.json_string_to is not None), ())
    unnest = next((rule.unnest for rule in fitting if rule.unnest is not None), {})
    return Shim(kinds, unnest.get(facts.tool, ()))


def _permission(policy: ToolsPolicy, index: int, facts: CallFacts) -> Permission:
    rule = policy.shape.permissions[index]
    ref = policy.ref("permissions", index)
    say = ""
    if rule.do == "deny":
        say = fill(rule.say or "Not allowed here.", {"tool": facts.tool, "rule": ref.rule})
    verdict: Literal["allow", "ask", "deny"] = rule.do  # type: ignore[assignment]
    return Permission(verdict, say, ref, rule.note or "")


def _effect(policy: ToolsPolicy, call: SeenCall) -> tuple[EffectClass, RuleRef]:
    """The strictest effect of the line's commands; of a line that cannot be taken apart: irreversible."""
    if call.inseparable:
        ref = policy.ref("rules", rule="a line that cannot be taken apart is irreversible")
        return EffectClass.IRREVERSIBLE, ref
    tool = (call.facts.tool,)
    rules = [(i, rule) for i, rule in enumerate(policy.shape.rules) if rule.effect is not None and rule.about(tool)]
    found = [_effect_of(policy, rules, call, part) for part in call.parts]
    return max(found, key=lambda pair: EFFECTS.index(pair[0].value))


def _effect_of(
    policy: ToolsPolicy, rules: list[tuple[int, ToolRule]], call: SeenCall, part: Part | None
) -> tuple[EffectClass, RuleRef]:
    """The effect of one command: irreversible in any of its forms, anything weaker only as it is written."""
    for index, rule in rules:
        strictest = rule.effect == EffectClass.IRREVERSIBLE.value
        if call.any_form(rule, part) if strictest else call.as_written(rule, part):
            return EffectClass(str(rule.effect)), policy.ref("rules", index, "effect")
    return call.facts.declared, policy.ref("rules", rule=f"{call.facts.tool} declares it")


def relations(policy: ToolsPolicy) -> Iterator[Problem]:
    """After <= max <= life, within one entry."""
    for index, rule in enumerate(policy.shape.rules):
        if rule.timeout is None:
            continue
        pairs = (("after", "max"), ("max", "life"), ("after", "life"))
        for low, high in pairs:
            first, second = stated(rule.timeout, low), stated(rule.timeout, high)
            if not first or not second or first <= second:
                continue
            path = ("rules", index, "timeout")
            message = f"timeout.{low} {policy.written(*path, low)} is above {high} {policy.written(*path, high)}"
            yield Problem.at(policy.place(*path, low), message, "write after <= max <= life")
            break
