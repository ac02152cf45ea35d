"""Notify: who is told of what, by which channel, and how often again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from harnessd.domain.decision import RuleRef
from harnessd.policy.conditions import ALWAYS, NEVER, AnyOf, Conditions, Lookup, Test, When, Within
from harnessd.policy.language.figures import Duration
from harnessd.policy.language.freeform import Json
from harnessd.policy.language.names import ANYTHING, Name, Names
from harnessd.policy.language.shape import NAME_PATTERN, UNSTATED, Entry, Policy, Shape, stated
from harnessd.policy.language.source import ListNode, MapNode, Misread, Problem, Scalar, did_you_mean, misread, quoted
from harnessd.policy.values import ListOf, Reader, Secret, SecretRef, Template, Text, Word, fill

PLACEHOLDERS = (
    "title",
    "sentence",
    "next",
    "event",
    "task",
    "agent",
    "dependency",
    "class",
    "reason",
    "revision",
    "at",
    "count",
    "lasting",
    "labels",
)
_When = Annotated[When, Conditions(scope="notify")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateMap(Reader):
    """Any JSON shape whose texts are templates."""

    type_name: ClassVar[str] = "map of templates"

    def read(self, node: Any) -> Any:
        value = Json().read(node)
        _check_templates(node)
        return value

    @property
    def bounds(self) -> str:
        return Template(names=PLACEHOLDERS).bounds


def _check_templates(node: Any) -> None:
    if isinstance(node, MapNode | ListNode):
        for item in node.values() if isinstance(node, MapNode) else node:
            _check_templates(item)
    elif isinstance(node, Scalar) and "{" in node.text + "}":
        Template(names=PLACEHOLDERS).value(Scalar(node.text, plain=False, place=node.place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers(Reader):
    """A map of texts or secrets."""

    type_name: ClassVar[str] = "map of texts or secrets"

    def read(self, node: Any) -> Mapping[str, str | SecretRef]:
        if not isinstance(node, MapNode):
            raise misread(node, f"{quoted(node)} stands where a map is wanted", "write {NAME: value}")
        for name in node:
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", name):
                raise Misread((Problem.at(node.keys_at[name], f'"{name}" is not a name of a header', "mend it"),))
        return {name: Secret(text_too=True).read(value) for name, value in node.items()}


class Webhook(Shape):
    """A POST of JSON."""

    url: Annotated[SecretRef, Secret()] = Field(description="Where to; http or https.")
    headers: Annotated[Mapping[str, str | SecretRef], Headers()] = Field({}, description="Beside content-type.")
    body: Annotated[dict[str, Any], TemplateMap()] | None = Field(
        None, description="What the receiver wants; its texts are templates; absent: the whole event."
    )
    accept: Annotated[When, Conditions(scope="accept")] | None = Field(
        None, description="What counts as delivered; absent: status 2xx. Some services answer 200 with an error inside."
    )


class Channel(Shape):
    """One way to tell people: exactly one of webhook, command, log, apprise."""

    webhook: Webhook | None = Field(None, description="POST, JSON.")
    command: Annotated[tuple[str, ...], ListOf(each=Text(), least=1)] | None = Field(
        None, description="Absolute path first; no shell; the event as JSON on standard input; 30 s."
    )
    log: Annotated[str, Word(words=("info", "warning", "error"))] | None = Field(
        None, description="The daemon's log, at this level."
    )
    apprise: Annotated[SecretRef, Secret()] | None = Field(None, description="An apprise address; extra `notify`.")


class NotifyRule(Entry):
    """One line: these events go there. Each leaf comes from the first entry that fits and states it."""

    for_: Annotated[tuple[Name, ...], Names(sorts=("model", "tool", "mcp", "agent", "label", "daemon"))] = Field(
        ANYTHING, alias="for", description="Whose events."
    )
    when: _When = Field(ALWAYS, description="Which events.")
    unless: _When = Field(NEVER, description="Which not.")
    to: Annotated[tuple[str, ...], ListOf(each=Text(pattern=NAME_PATTERN, wanted="a channel"), most=20)] | None = Field(
        None, description="Channels; [] = nobody."
    )
    again_after: Annotated[float | None, Duration(low="1m", high="30d", none=True)] = Field(
        None, description="As long as it lasts; the end is told to the same channels."
    )


class NotifyShape(Shape):
    """Who is told of what."""

    channels: dict[str, Channel] = Field(description="Ways to tell people, by name.")
    rules: tuple[NotifyRule, ...] = Field(description="Which event goes where.")


NotifyPolicy = Policy[NotifyShape]


@dataclass(frozen=True, slots=True)
class EventFacts:
    """An event as rules see it; `lasting` is how long it has been so, in seconds. Names are full names."""

    event: str
    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    error_class: str = ""
    dependency: str = ""
    model: str = ""
    tool: str = ""
    effect: str = ""
    reason: str = ""
    budget: str = ""
    window_used: float | None = None
    lasting: float | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Where an event goes; `again_after_s` None: told once."""

    to: tuple[str, ...]
    again_after_s: float | None
    rule: RuleRef


def route(policy: NotifyPolicy, facts: EventFacts) -> Route:
    """The channels of an event. Nothing fits: nobody."""
    lookup = _lookup(facts)
    touched = [name for name in (facts.dependency, facts.model, facts.tool) if name]
    touched += [f"agent/{facts.agent}"] if facts.agent else ["daemon"]
    touched += [f"label/{key}={value}" for key, value in facts.labels.items()]
    to: tuple[str, ...] = ()
    rule = policy.ref("rules", rule="nothing fits")
    again: float | None = 3600.0
    fitting = [(i, entry) for i, entry in enumerate(policy.shape.rules) if entry.fits(touched, lookup)]
    for index, entry in fitting:
        if stated(entry, "to") is not UNSTATED:
            to, rule = entry.to or (), policy.ref("rules", index)
            break
    for _index, entry in fitting:
        value = stated(entry, "again_after")
        if value is not UNSTATED:
            again = value
            break
    return Route(to, again, rule)


def turning_points_s(policy: NotifyPolicy) -> tuple[float, ...]:
    """After how many seconds a rule may begin or cease to fit: when something that lasts is looked at again."""
    found: set[float] = set()
    for entry in policy.shape.rules:
        for clause in (*entry.when.clauses, *entry.unless.clauses):
            for asked in clause:
                if asked.name == "lasting":
                    found |= set(_figures(asked.test))
    return tuple(sorted(found))


def _figures(test: Test) -> Iterator[float]:
    match test:
        case AnyOf(values):
            yield from (value.number for value in values if value.number is not None)
        case Within(above, below, at_least, at_most):
            yield from (figure for figure in (above, below, at_least, at_most) if figure is not None)
        case _:
            return


def _lookup(facts: EventFacts) -> Lookup:
    def look(name: str) -> Any:
        if name == "class":
            return facts.error_class or None
        if name.startswith("label."):
            return facts.labels.get(name[len("label.") :])
        value = getattr(facts, name, None)
        return value if value != "" else None

    return look


def body_of(template: Any, values: Mapping[str, Any]) -> Any:
    """A webhook's body with its placeholders filled in; anything but texts stays as it is."""
    if isinstance(template, str):
        return fill(template, values)
    if isinstance(template, Mapping):
        return {key: body_of(value, values) for key, value in template.items()}
    return [body_of(value, values) for value in template] if isinstance(template, list) else template


def accepted(webhook: Webhook, status: int, body: Any) -> bool:
    """Whether an answer counts as delivered."""
    if webhook.accept is None:
        return 200 <= status <= 299

    def look(name: str) -> Any:
        if name == "status":
            return status
        value = body
        for step in name.removeprefix("body.").split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value

    return webhook.accept.holds(look)


def relations(policy: NotifyPolicy) -> Iterator[Problem]:
    """Channels that rules name exist; each is of exactly one sort; a command is an absolute path."""
    for name, channel in policy.shape.channels.items():
        at = policy.tree["channels"].keys_at[name]
        if not re.fullmatch(NAME_PATTERN, name):
            yield Problem.at(at, f'"{name}" is not a name of a channel', "write lower-case letters, digits, - and _")
        if len(channel.model_fields_set) != 1:
            yield Problem.at(
                at,
                f"channel {name} is of {len(channel.model_fields_set)} sorts",
                "write one of webhook, command, log, apprise",
            )
        if channel.command is not None and not channel.command[0].startswith("/"):
            place = policy.place("channels", name, "command")
            yield Problem.at(place, f"{channel.command[0]} is not an absolute path", "write the whole path")
    for index, rule in enumerate(policy.shape.rules):
        for number, name in enumerate(rule.to or ()):
            if name not in policy.shape.channels:
                place = policy.place("rules", index, "to", number)
                yield Problem.at(place, f'no channel "{name}"', did_you_mean(name, policy.shape.channels))
