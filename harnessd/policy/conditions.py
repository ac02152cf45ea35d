"""Conditions: the one grammar of `when` and `unless`, for every kind; checked when read.

A condition is data: a list of clauses, any of which holds when all of its tests do. There are no expressions, so a
condition can be listed, compared and explained.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from harnessd.policy.language.facts import Fact, FactType, fact_named, facts_of
from harnessd.policy.language.figures import Bounded, Count, Duration, Number, Ratio
from harnessd.policy.language.names import glob
from harnessd.policy.language.source import (
    Collected,
    ListNode,
    MapNode,
    Misread,
    Place,
    Problem,
    Scalar,
    did_you_mean,
    misread,
    quoted,
)
from harnessd.policy.values import Reader, Word, yaml_11_reads

Lookup = Callable[[str], Any]  # a fact's value, or None where it is not there

LONGEST_MATCHED = 2_000  # characters of a text that a regular expression is tried on


def text_of(value: Any) -> str:
    """A fact's value as text, spelt as YAML and JSON spell it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


# --- tests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a test: the text as written, its pattern, its number where the fact has one."""

    text: str
    place: Place = field(compare=False)
    pattern: re.Pattern[str] | None = None
    number: float | None = None

    def fits(self, fact: Fact, value: Any) -> bool:
        """Whether a fact's value is this one."""
        if fact.type.numeric:
            return _number_fits(self, fact.type, value)
        if fact.type is FactType.BOOL:
            return text_of(value) == self.text
        assert self.pattern is not None  # noqa: S101 - every text fact's value has one, made when it was read
        return self.pattern.fullmatch(text_of(value)) is not None


def _number_fits(wanted: Value, type_: FactType, value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    if wanted.number is None:
        return str(int(value))[0] == wanted.text[0] and 100 <= value <= 599
    if type_ in (FactType.TALLY, FactType.LASTING):
        return value >= wanted.number
    if type_ is FactType.SHARE:
        return value < wanted.number
    return value == wanted.number


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Any of the values."""

    values: tuple[Value, ...]

    def holds(self, fact: Fact, value: Any) -> bool:
        """One of the values fits."""
        return value is not None and any(wanted.fits(fact, value) for wanted in self.values)


@dataclass(frozen=True, slots=True)
class Within:
    """Numeric bounds; a bound that is None does not test."""

    above: float | None = None
    below: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    def holds(self, fact: Fact, value: Any) -> bool:
        """All bounds hold; a value that is no number fails."""
        del fact
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return (
            (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
        )


@dataclass(frozen=True, slots=True)
class Matches:
    """A regular expression, anywhere in the first 2,000 characters."""

    pattern: re.Pattern[str]

    def holds(self, fact: Fact, value: Any) -> bool:
        """The expression is found."""
        del fact
        return value is not None and self.pattern.search(text_of(value)[:LONGEST_MATCHED]) is not None


@dataclass(frozen=True, slots=True)
class Present:
    """The fact is there, or is not."""

    wanted: bool

    def holds(self, fact: Fact, value: Any) -> bool:
        """The only test that a missing fact can pass."""
        del fact
        return (value is not None) is self.wanted


Test = AnyOf | Within | Matches | Present


@dataclass(frozen=True, slots=True)
class Asked:
    """One test of one fact."""

    name: str
    fact: Fact
    test: Test


@dataclass(frozen=True, slots=True)
class When:
    """Any of the clauses; a clause is all of its tests. No clause: never. One empty clause: always."""

    clauses: tuple[tuple[Asked, ...], ...]
    asks: frozenset[str] = field(init=False, compare=False, repr=False)  # the names of all facts looked at

    def __post_init__(self) -> None:
        """Gather the names once: a condition is asked far more often than it is read."""
        names = frozenset(asked.name for clause in self.clauses for asked in clause)
        object.__setattr__(self, "asks", names)

    def holds(self, lookup: Lookup) -> bool:
        """Whether the facts fit."""
        return any(all(asked.test.holds(asked.fact, lookup(asked.name)) for asked in clause) for clause in self.clauses)

    @property
    def always(self) -> bool:
        """A clause without tests: holds whatever the facts are."""
        return any(not clause for clause in self.clauses)


ALWAYS = When(((),))
NEVER = When(())


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions(Reader):
    """`when` and `unless`; `scope` says which facts exist."""

    type_name: ClassVar[str] = "when"
    scope: str = "retry"

    def read(self, node: Any) -> When:
        collected = Collected()
        clauses = []
        if isinstance(node, ListNode) and not node:
            raise misread(node, "an empty list of conditions never holds", "write {} for always, or remove the key")
        for part in node if isinstance(node, ListNode) else [node]:
            try:
                clauses.append(self._clause(part))
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        return When(tuple(clauses))

    def _clause(self, node: Any) -> tuple[Asked, ...]:
        if not isinstance(node, MapNode):
            raise misread(node, f"{quoted(node)} is not a condition", "write {FACT: value}, or a list of such maps")
        collected = Collected()
        asked = []
        for name, test in node.items():
            fact = fact_named(name, self.scope)
            if fact is None:
                known = facts_of(self.scope)
                remedy = did_you_mean(name, known) if known else "no facts exist here: use `for`"
                collected.problems.append(Problem.at(node.keys_at[name], f'unknown fact "{name}"', remedy))
                continue
            try:
                asked.append(Asked(name, fact, read_test(name, fact, test)))
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        return tuple(asked)

    @property
    def bounds(self) -> str:
        return "facts " + " ".join(facts_of(self.scope))


_OPERATORS = ("above", "below", "at_least", "at_most", "matches", "present")


def read_test(name: str, fact: Fact, node: Any) -> Test:
    """What stands after a fact's name."""
    if not isinstance(node, MapNode):
        items = node if isinstance(node, ListNode) else [node]
        if not items:
            raise misread(node, f"an empty list never fits {name}", "write one value or more")
        collected, values = Collected(), []
        for item in items:
            try:
                values.append(_value(name, fact, item))
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        return AnyOf(tuple(values))
    for key in node:
        if key not in _OPERATORS:
            place = node.keys_at[key]
            raise Misread((Problem.at(place, f'unknown test "{key}"', did_you_mean(key, _OPERATORS)),))
    if "matches" in node or "present" in node:
        return _text_test(name, fact, node)
    return _bounds_test(name, fact, node)


def _text_test(name: str, fact: Fact, node: MapNode) -> Test:
    if len(node) > 1:
        raise misread(node, "matches and present stand alone", "write a second condition")
    if "present" in node:
        return Present(Word(words=("true", "false")).read(node["present"]) == "true")
    source = node["matches"]
    if fact.type not in (FactType.TEXT, FactType.FOLDED, FactType.NAME):
        raise misread(node, f"{name} is {fact.type.value}: matches is for texts", "write a value")
    if not isinstance(source, Scalar) or not source.text:
        raise misread(source, f"{quoted(source)} is not a regular expression")
    if explodes(source.text):
        message = "a repeat of a repeat can take for ever on the wrong text"
        raise misread(source, message, "write one of them without * and +, or bounded as {0,100}")
    try:
        return Matches(re.compile(source.text, re.DOTALL | (re.IGNORECASE if fact.type is FactType.FOLDED else 0)))
    except (re.error, OverflowError, RecursionError) as error:
        raise misread(
            source, f"this is not a regular expression: {error}", "put it right, or write a pattern with *"
        ) from None


_REPEAT = re.compile(r"[*+]|\{[0-9]*,\}")


def explodes(source: str) -> bool:
    """Whether an unbounded repeat stands inside another, as in `(a+)+`: such a search can take exponential time."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", source)  # escapes and sets are one character each
    repeats = [False]
    place = 0
    while place < len(bare):
        if bare[place] == "(":
            repeats.append(False)
        elif bare[place] == ")" and len(repeats) > 1:
            inside = repeats.pop()
            if inside and _REPEAT.match(bare, place + 1) and bare[place + 2 : place + 3] != "+":
                return True
            repeats[-1] = repeats[-1] or inside
        elif _REPEAT.match(bare, place):
            repeats[-1] = True
        place += 1
    return False


def _bounds_test(name: str, fact: Fact, node: MapNode) -> Test:
    if not fact.type.numeric:
        raise misread(node, f"{name} is {fact.type.value}: it has no bounds", "write a value, or {matches: REGEX}")
    if not 1 <= len(node) <= 2:
        raise misread(node, "one or two bounds may stand together", "write {above: V} or {at_least: V, below: V}")
    reader = _reader(fact)
    return Within(**{key: reader.read(value) for key, value in node.items()})


def _reader(fact: Fact) -> Bounded:
    match fact.type:
        case FactType.RATIO | FactType.SHARE:
            return Ratio(high=None if fact.type is FactType.RATIO else "100%")
        case FactType.LASTING:
            return Duration()
        case FactType.NUMBER | FactType.STATUS:
            return Number()
        case _:
            return Count()


def _value(name: str, fact: Fact, node: Any) -> Value:
    if not isinstance(node, Scalar) or (node.plain and node.text == ""):
        raise misread(node, f"{quoted(node)} is not a value of {name}", "write a text, a number or true/false")
    if fact.type is FactType.WORD and not set(node.text) & set("*?"):
        Word(words=fact.words).read(node)
    if fact.type is FactType.BOOL:
        return Value(Word(words=("true", "false")).read(node), node.place)
    if fact.type.numeric:
        if fact.type is FactType.STATUS and re.fullmatch(r"[1-5]xx", node.text):
            return Value(node.text, node.place)
        if fact.type is FactType.STATUS and node.plain and not re.fullmatch(r"[0-9]{1,9}", node.text):
            raise misread(node, f"{quoted(node)} is not a status", "write one such as 429, or 4xx, 5xx")
        negative = fact.type is FactType.NUMBER and re.fullmatch(r"-[1-9][0-9]{0,9}", node.text)
        return Value(node.text, node.place, number=float(node.text) if negative else _reader(fact).read(node))
    if node.plain and not re.fullmatch(r"true|false|-?(?:0|[1-9][0-9]{0,15})(?:\.[0-9]+)?", node.text):
        other = yaml_11_reads(node.text)
        if other:
            raise misread(node, f"{node.text} is {other} to other YAML readers", f'write "{node.text}" in quotes')
    return Value(node.text, node.place, pattern=glob(node.text, fold=fact.type is FactType.FOLDED))
