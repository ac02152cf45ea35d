"""Policy test steps: one entry of `given` or `expect`, read strictly; all its problems, each with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harnessd.defence.trial.expected import Expected, Pattern
from harnessd.defence.trial.judging import LOADS
from harnessd.defence.trial.step import ACTIONS, VERDICTS, Step
from harnessd.domain.task import StopReason
from harnessd.policy.assembly.kinds import KINDS
from harnessd.policy.budget import TIMES
from harnessd.policy.conditions import AnyOf, read_test
from harnessd.policy.language.facts import BUDGETS, CLASSES, FACTS, MODEL_CLASSES, TOOL_CLASSES, Fact, FactType
from harnessd.policy.language.figures import Bounded, Count, Duration, Ratio, Usd
from harnessd.policy.language.names import glob
from harnessd.policy.language.source import (
    Collected,
    ListNode,
    MapNode,
    Misread,
    Problem,
    Scalar,
    did_you_mean,
    misread,
    place_of,
    quoted,
)
from harnessd.policy.values import Text, Word, require_scalar

_RETENTION = ("sessions", "artifacts", "checkpoints", "revisions", "idempotency")
_RATIOS: Mapping[str, Bounded] = {"context": Ratio(high=None), "gained": Ratio(), "disk_free": Ratio()}
_JUDGED = ("used", "kept", *_RATIOS)  # what a step can be about instead of a call or a failure
_SPECIAL = ("used", "kept", *_RATIOS, "result", "after", "times")
_ABOUT_TASK = ("agent", "workspace", "label.", "priority", "share")
_NAMES = {"model": r"model/[\w.-]+", "tool": r"tool/[\w.-]+|mcp/[\w.-]+/[\w./-]+"}
_EXPECTED = ("class", "do", "to", "rule", "waited", "says", "reason", "policy")


def read_step(node: Any) -> Step:
    """One entry of `given`. Raises Misread with all its problems."""
    if not isinstance(node, MapNode) or not node:
        raise misread(node, f"{quoted(node)} is not a step", "write facts, as {model: model/primary, status: 529}")
    collected = Collected()
    values: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for key, value in node.items():
        try:
            if key in _SPECIAL:
                values["after_s" if key == "after" else key] = _special(key, value)
            else:
                facts[key] = _fact(node, key, value)
        except Misread as error:
            collected.add(error)
    collected.raise_if_any()
    step = Step(facts=facts, **values)
    _relations(node, step, collected)
    collected.raise_if_any()
    return step


def _special(key: str, node: Any) -> Any:
    if key in _RATIOS:
        return _RATIOS[key].read(node)
    if key == "after":
        return Duration().read(node)
    if key == "times":
        return Count(low="1", high="1000").read(node)
    if key == "result":
        return require_scalar(node, "a text").text
    readers = _used_readers() if key == "used" else dict.fromkeys(_RETENTION, Duration())
    return _amounts(key, node, readers)


def _used_readers() -> dict[str, Bounded]:
    readers: dict[str, Bounded] = {}
    for name in (*BUDGETS, *LOADS):
        readers[name] = Usd() if name.startswith("cost_usd") else Duration() if name in TIMES else Count()
    return readers


def _amounts(key: str, node: Any, readers: Mapping[str, Bounded]) -> dict[str, float]:
    if not isinstance(node, MapNode) or not node:
        example = next(iter(readers))
        raise misread(node, f"{quoted(node)} stands where a map is wanted", f"write {key}: {{{example}: ...}}")
    collected = Collected()
    found: dict[str, float] = {}
    for name, value in node.items():
        if name not in readers:
            collected.problems.append(
                Problem.at(node.keys_at[name], f'unknown {key} "{name}"', did_you_mean(name, readers))
            )
            continue
        try:
            found[name] = readers[name].read(value)
        except Misread as error:
            collected.add(error)
    collected.raise_if_any()
    return found


def _root(key: str) -> str:
    """The name under which a fact stands in the closed list."""
    head, dot, rest = key.partition(".")
    return head + dot if dot and rest else key


def _fact(node: MapNode, key: str, value: Any) -> Any:
    root = _root(key)
    fact = FACTS.get(root)
    if fact is None or root == "result." or key.endswith("."):
        shown = [name + "NAME" if name.endswith(".") else name for name in FACTS if name != "result."]
        remedy = did_you_mean(key, (*_SPECIAL, *shown))
        raise Misread((Problem.at(node.keys_at[key], f'unknown key or fact "{key}"', remedy),))
    if not isinstance(value, Scalar):
        raise misread(value, f"{quoted(value)} stands where one value of {key} is wanted", "write the value itself")
    read = read_test(key, fact, value)
    if not isinstance(read, AnyOf):  # a scalar is never anything else
        raise misread(value, f"{quoted(value)} is not a value of {key}")
    return _value(key, fact, value, read)


def _value(key: str, fact: Fact, node: Scalar, read: AnyOf) -> Any:
    """The value that a condition would be compared with."""
    number = read.values[0].number
    if fact.type.numeric:
        if number is None:
            raise misread(node, f"{node.text} is many values", "write one, as 529")
        return number
    if fact.type is FactType.BOOL:
        return node.text == "true"
    if fact.type is FactType.WORD:
        return Word(words=fact.words).read(node)
    if key in _NAMES:
        remedy = "write model/ALIAS" if key == "model" else "write tool/NAME or mcp/SERVER/TOOL"
        if re.fullmatch(_NAMES[key], node.text) is None:
            raise misread(node, f"{quoted(node)} is not the full name of a {key}", remedy)
    return node.text


# --- what goes together -----------------------------------------------------------------------------------------------


def _relations(node: MapNode, step: Step, collected: Collected) -> None:
    judged = [key for key in node if key in _JUDGED]
    for key in judged[1:]:
        message = f"{key} and {judged[0]} in one step"
        collected.problems.append(Problem.at(node.keys_at[key], message, "write two steps"))
    if judged:
        _only(node, judged[0], (*_ABOUT_TASK, "model", "tool"), collected)
    elif "event" in node:
        allowed = (*_ABOUT_TASK, *(name for name, fact in FACTS.items() if "notify" in fact.scopes))
        _only(node, "event", allowed, collected)
    else:
        _who(node, step, collected)
    if step.used and len({name in LOADS for name in step.used}) == 2:
        message = "budgets of the task and limits of a name in one step"
        collected.problems.append(Problem.at(node.keys_at["used"], message, "write two steps"))
    _nested(node, collected)


def _only(node: MapNode, what: str, allowed: tuple[str, ...], collected: Collected) -> None:
    """Facts that say nothing beside `what` are refused: they would be passed over in silence."""
    for key in node:
        if key not in (*_SPECIAL, *allowed) and _root(key) not in allowed:
            message = f"{key} says nothing beside {what}"
            collected.problems.append(Problem.at(node.keys_at[key], message, "remove it, or write another step"))


def _who(node: MapNode, step: Step, collected: Collected) -> None:
    """A failure is somebody's, and its class one of theirs."""
    facts = step.facts
    if step.about_agent:
        return
    if "model" not in facts and "tool" not in facts:
        loose = [key for key in facts if _root(key) not in _ABOUT_TASK]
        if loose:
            message = f"whose is {loose[0]}?"
            remedy = "write model: model/ALIAS or tool: tool/NAME too, or event: for who is told"
            collected.problems.append(Problem.at(node.keys_at[loose[0]], message, remedy))
        return
    known = TOOL_CLASSES if "tool" in facts else MODEL_CLASSES
    if "class" in facts and facts["class"] not in known:
        of = "tool" if "tool" in facts else "model"
        message = f"{facts['class']} is no class of a {of}"
        collected.problems.append(Problem.at(place_of(node["class"]), message, f"write one of {', '.join(known)}"))


def _nested(node: MapNode, collected: Collected) -> None:
    """`body.error: x` and `body.error.code: y` cannot both be."""
    for key in node:
        for longer in node:
            if key.startswith(("body.", "arg.")) and longer.startswith(f"{key}."):
                message = f"{key} is a value, and {longer} stands below it"
                collected.problems.append(Problem.at(node.keys_at[longer], message, "keep one of them"))


# --- what must come out -----------------------------------------------------------------------------------------------


def read_expected(node: Any) -> Expected:
    """One entry of `expect`. Raises Misread with all its problems."""
    if not isinstance(node, MapNode):
        raise misread(node, f"{quoted(node)} is not an expectation", "write {do: park}, or {} for anything")
    collected = Collected()
    texts: dict[str, Pattern] = {}
    values: dict[str, Any] = {}
    for key, value in node.items():
        try:
            if key not in _EXPECTED:
                unknown = Problem.at(node.keys_at[key], f'unknown key "{key}"', did_you_mean(key, _EXPECTED))
                collected.problems.append(unknown)
            elif key == "waited":
                values["waited_s"] = Duration().read(value)
            elif key == "rule":
                values["rule"] = _pattern(value, ())
            elif key == "policy":
                values["policies"] = _policies(value)
            else:
                texts[key] = _pattern(value, _words(key))
        except Misread as error:
            collected.add(error)
    collected.raise_if_any()
    return Expected(texts, **values)


def _words(key: str) -> tuple[str, ...]:
    """The closed list of a key's words; empty: any text."""
    if key == "class":
        return ("ok", *CLASSES)
    if key == "do":
        return (*ACTIONS, *VERDICTS)
    return tuple(reason.value for reason in StopReason) if key == "reason" else ()


def _pattern(node: Any, words: tuple[str, ...]) -> Pattern:
    if isinstance(node, ListNode) and node and not words:  # `to` names several channels
        parts = [require_scalar(item, "a name").text for item in node]
        return _compiled(", ".join(parts))
    scalar = require_scalar(node, "a text")
    if words and "*" not in scalar.text:
        Word(words=words).value(scalar)  # `none` is a word here, not the lack of a limit
    elif not words and scalar.plain and scalar.text != "none":
        Text().read(scalar)
    return _compiled(scalar.text)


def _compiled(text: str) -> Pattern:
    return Pattern(text, glob(text, question=False))


def _policies(node: Any) -> dict[str, Pattern]:
    """`strict` (who decided), `retry/strict`, or a map of kinds."""
    if not isinstance(node, MapNode):
        scalar = require_scalar(node, "a name of a policy")
        kind, slash, name = scalar.text.rpartition("/")
        if slash and kind not in KINDS:
            raise misread(scalar, f'no kind "{kind}"', did_you_mean(kind, KINDS))
        return {kind: _compiled(name)}
    collected = Collected()
    found: dict[str, Pattern] = {}
    for kind, value in node.items():
        if kind not in KINDS:
            collected.problems.append(Problem.at(node.keys_at[kind], f'no kind "{kind}"', did_you_mean(kind, KINDS)))
            continue
        try:
            found[kind] = _compiled(require_scalar(value, "a name of a policy").text)
        except Misread as error:
            collected.add(error)
    collected.raise_if_any()
    return found
