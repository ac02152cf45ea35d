"""Tools: what a tool does to the world, how long it may take, who may use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.domain.effect import EffectClass
from harnessd.policy.command import Part, split
from harnessd.policy.conditions import ALWAYS, NEVER, Conditions, Lookup, When
from harnessd.policy.facts import EFFECTS
from harnessd.policy.figures import Count, Duration, Size
from harnessd.policy.freeform import Json
from harnessd.policy.names import ANYTHING, Name, Names
from harnessd.policy.shape import UNSTATED, Entry, Policy, Shape, stated
from harnessd.policy.source import Problem
from harnessd.policy.values import Flag, ListOf, Template, Text, Word, fill

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
class CallFacts:
    """What is known of a call before it is made. `effect` is filled in by `settings`; `declared` is the tool's own."""

    tool: str  # tool/bash, mcp/SERVER/TOOL
    arguments: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    model: str = ""
    path: str | None = None
    effect: EffectClass | None = None
    declared: EffectClass = EffectClass.IRREVERSIBLE


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
    """May this call be made, and what is the model told if not."""

    do: Literal["allow", "ask", "deny"]
    say: str
    rule: RuleRef


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
    parts = command_parts(facts)
    fitting = [index for index, rule in enumerate(policy.shape.rules) if _any_part(rule, facts, parts)]
    for path, default in _LEAVES.items():
        key = ".".join(path)
        values[key] = default
        for index in fitting:
            value = stated(policy.shape.rules[index], *path)
            if value is not UNSTATED:
                values[key] = value
                refs[key] = policy.ref("rules", index, *path)
                break
    effect, refs["effect"] = _effect(policy, facts, parts)
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
    if facts.effect is None:
        effect, _ = _effect(policy, facts, command_parts(facts))
        facts = replace(facts, effect=effect)
    parts = command_parts(facts)
    inseparable = facts_line(facts) is not None and parts is None
    for index, rule in enumerate(policy.shape.permissions):
        if rule.do == "deny" and _any_part(rule, facts, parts):
            return _permission(policy, index, facts)
    if inseparable:
        place = policy.ref("permissions", rule="a line that cannot be taken apart is asked about")
        return Permission("ask", "", place)
    for index, rule in enumerate(policy.shape.permissions):
        fits = _every_part if rule.do == "allow" else _any_part
        if fits(rule, facts, parts):
            return _permission(policy, index, facts)
    return Permission("allow", "", policy.ref("permissions", rule="nothing fits"))


def _permission(policy: ToolsPolicy, index: int, facts: CallFacts) -> Permission:
    rule = policy.shape.permissions[index]
    ref = policy.ref("permissions", index)
    say = ""
    if rule.do == "deny":
        say = fill(rule.say or "Not allowed here.", {"tool": facts.tool, "rule": ref.rule})
    verdict: Literal["allow", "ask", "deny"] = rule.do  # type: ignore[assignment]
    return Permission(verdict, say, ref)


def _effect(policy: ToolsPolicy, facts: CallFacts, parts: tuple[Part, ...] | None) -> tuple[EffectClass, RuleRef]:
    """The strictest effect of the line's commands; of a line that cannot be taken apart: irreversible."""
    if facts_line(facts) is not None and parts is None:
        ref = policy.ref("rules", rule="a line that cannot be taken apart is irreversible")
        return EffectClass.IRREVERSIBLE, ref
    found = [_effect_of(policy, facts, part) for part in (parts or (None,))]
    return max(found, key=lambda pair: EFFECTS.index(pair[0].value))


def _effect_of(policy: ToolsPolicy, facts: CallFacts, part: Part | None) -> tuple[EffectClass, RuleRef]:
    for index, rule in enumerate(policy.shape.rules):
        effect = stated(rule, "effect")
        if effect is UNSTATED or effect is None:
            continue
        strict = effect == EffectClass.IRREVERSIBLE.value
        fits = _fits_any_form if strict else _fits_written
        if fits(rule, facts, part):
            return EffectClass(effect), policy.ref("rules", index, "effect")
    return facts.declared, policy.ref("rules", rule=f"{facts.tool} declares it")


# --- facts of a call --------------------------------------------------------------------------------------------------


def facts_line(facts: CallFacts) -> str | None:
    """The shell line of the call, where the tool runs a shell."""
    line = facts.arguments.get("command")
    return line if facts.tool == "tool/bash" and isinstance(line, str) else None


def command_parts(facts: CallFacts) -> tuple[Part, ...] | None:
    """The simple commands of the call's shell line; None where there is no line or it cannot be taken apart."""
    line = facts_line(facts)
    return None if line is None else split(line)


def _lookup(facts: CallFacts, command: str | None) -> Lookup:
    def look(name: str) -> Any:
        if name == "command":
            return command
        if name.startswith("label."):
            return facts.labels.get(name[len("label.") :])
        if name.startswith("arg."):
            return _argument(facts.arguments, name[len("arg.") :])
        if name == "effect":
            return facts.effect.value if facts.effect is not None else None
        value = getattr(facts, name, None)
        return value if value != "" else None

    return look


def _argument(arguments: Any, path: str) -> Any:
    for step in path.split("."):
        if isinstance(arguments, Mapping) and step in arguments:
            arguments = arguments[step]
        elif isinstance(arguments, list | tuple) and step.isdigit() and int(step) < len(arguments):
            arguments = arguments[int(step)]
        else:
            return None
    return arguments


def _fits_form(rule: Entry, facts: CallFacts, command: str | None) -> bool:
    return rule.fits((facts.tool,), _lookup(facts, command))


def _fits_any_form(rule: Entry, facts: CallFacts, part: Part | None) -> bool:
    forms: tuple[str | None, ...] = part.forms if part is not None else (facts_line(facts),)
    return any(_fits_form(rule, facts, form) for form in forms)


def _fits_written(rule: Entry, facts: CallFacts, part: Part | None) -> bool:
    return _fits_form(rule, facts, part.written if part is not None else facts_line(facts))


def _any_part(rule: Entry, facts: CallFacts, parts: tuple[Part, ...] | None) -> bool:
    return any(_fits_any_form(rule, facts, part) for part in (parts or (None,)))


def _every_part(rule: Entry, facts: CallFacts, parts: tuple[Part, ...] | None) -> bool:
    return all(_fits_written(rule, facts, part) for part in (parts or (None,)))


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
