"""Names: what `for` and `do` may hold: full names with `*`, and the closed list of actions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from harnessd.policy.language.source import Collected, ListNode, Misread, Place, Scalar, did_you_mean, misread, quoted
from harnessd.policy.values import Reader


def glob(pattern: str, *, fold: bool = False, question: bool = True) -> re.Pattern[str]:
    r"""`*` any run, `?` one character, `\*` a star. Atomic groups keep the time linear in stars times length."""
    out: list[str] = []
    for piece in re.findall(r"\\[*?\\]|\*+|\?|[^*?\\]+|\\", pattern):
        if piece[0] == "*":
            out.append("*")
        elif piece == "?" and question:
            out.append(".")
        else:
            out.append(re.escape(piece[1:] if len(piece) == 2 and piece[0] == "\\" else piece))
    runs = "".join(out_piece if out_piece != "*" else "\0" for out_piece in out).split("\0")
    if len(runs) == 1:
        return re.compile(runs[0], re.DOTALL | (re.IGNORECASE if fold else 0))
    middle = "".join(f"(?>.*?{run})" for run in runs[1:-1] if run)
    return re.compile(f"{runs[0]}{middle}.*{runs[-1]}", re.DOTALL | (re.IGNORECASE if fold else 0))


SORTS = ("model", "tool", "mcp", "agent", "label", "feature", "daemon")


@dataclass(frozen=True, slots=True)
class Name:
    """One name or pattern of names, with its place for messages."""

    text: str
    place: Place = field(compare=False)
    pattern: re.Pattern[str] = field(compare=False, repr=False)

    @property
    def exact(self) -> bool:
        """No star: it names one thing, which must exist."""
        return "*" not in self.text

    def fits(self, name: str) -> bool:
        """Whether a concrete name is meant."""
        return self.pattern.fullmatch(name) is not None


def make_name(text: str, place: Place) -> Name:
    """The name of a text that is known to be well formed."""
    return Name(text, place, glob(text, question=False))


ANYTHING = (make_name("*", Place("?")),)


def any_fits(names: Iterable[Name], touched: Collection[str]) -> bool:
    """Whether one of the names means one of the touched things; a bare `*` means all."""
    return any(name.text == "*" or any(name.fits(thing) for thing in touched) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names(Reader):
    """`for`: one name or a list. `sorts`: which sorts have a meaning here; `star`: a bare `*` is allowed."""

    type_name: ClassVar[str] = "name"
    sorts: tuple[str, ...] = SORTS
    star: bool = True
    patterns: bool = True
    single: bool = False
    least: int = 1
    most: int = 100

    def read(self, node: Any) -> Any:
        if self.single:
            return Reader.read(self, node)
        collected, names = Collected(), []
        items = node if isinstance(node, ListNode) else [node]
        if not self.least <= len(items) <= self.most:
            raise misread(node, f"{len(items)} names are out of bounds", f"write {self.least} to {self.most}")
        for item in items:
            try:
                names.append(self.value(item))
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        return tuple(names)

    def value(self, scalar: Any) -> Name:
        if not isinstance(scalar, Scalar) or not scalar.text:
            raise misread(scalar, f"{quoted(scalar)} is not a name", self._example())
        text = scalar.text
        if text == "*":
            if not self.star:
                raise misread(
                    scalar, 'for "*" would cap models, agents and daemon alike', 'write "model/*" or "agent/*"'
                )
            return make_name(text, scalar.place)
        if "*" in text and not self.patterns:
            raise misread(scalar, f"{quoted(scalar)} is a pattern", "write one concrete name")
        sort, slash, rest = text.partition("/")
        if "*" not in sort:
            self._check_sort(scalar, sort, slash, rest)
        if len(text) > 200 or re.search(r"[\s\x00-\x1f\x7f]", text):
            raise misread(scalar, f"{quoted(scalar)} is not a name", self._example())
        return make_name(text, scalar.place)

    def _check_sort(self, scalar: Scalar, sort: str, slash: str, rest: str) -> None:
        if sort not in SORTS or (sort == "daemon") == bool(slash) or (slash and not rest):
            fallback = self._example() if sort in SORTS else did_you_mean(sort, self.sorts)
            if not slash and sort not in SORTS and sort != "daemon":
                fallback = f"write its sort too, as {self.sorts[0]}/{sort}"
            raise misread(scalar, f"{quoted(scalar)} is not a name", fallback)
        if sort not in self.sorts:
            raise misread(scalar, f"{sort} has no meaning here", self._example())
        if sort == "label" and "=" not in rest and "*" not in rest:
            raise misread(scalar, f"{quoted(scalar)} names no value", "write label/KEY=VALUE")

    def _example(self) -> str:
        shown = {"model": "model/ALIAS", "tool": "tool/NAME", "mcp": "mcp/SERVER", "agent": "agent/NAME"}
        return "write " + ", ".join(
            shown.get(sort, {"label": "label/KEY=VALUE", "feature": "feature/NAME"}.get(sort, sort))
            for sort in self.sorts
        )

    @property
    def bounds(self) -> str:
        return self._example().removeprefix("write ")


# --- ladders ----------------------------------------------------------------------------------------------------------

ACTIONS = (
    "observe",
    "nudge",
    "retry",
    "fallback",
    "park",
    "compact",
    "repair",
    "probe",
    "rollback",
    "needs_human",
    "stop",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder(Reader):
    """`do`: one action or a list; each time the rule fires, the first step that can act is taken."""

    type_name: ClassVar[str] = "do"
    actions: tuple[str, ...] = ACTIONS

    def read(self, node: Any) -> tuple[str, ...]:
        items = node if isinstance(node, ListNode) else [node]
        collected, steps = Collected(), []
        if not 1 <= len(items) <= 20:
            raise misread(node, f"{len(items)} actions are out of bounds", "write one action or a list of up to 20")
        for item in items:
            try:
                steps.append(self._step(item))
            except Misread as error:
                collected.add(error)
        collected.raise_if_any()
        return tuple(steps)

    def _step(self, node: Any) -> str:
        if not isinstance(node, Scalar):
            raise misread(node, f"{quoted(node)} is not an action", f"write one of {', '.join(self.actions)}")
        if node.text == "race":
            raise misread(node, "race is not yet possible", "write retry or fallback")
        if node.text in self.actions:
            return node.text
        if node.text in ACTIONS:
            raise misread(node, f"{node.text} cannot be done here", f"write one of {', '.join(self.actions)}")
        raise misread(node, f'unknown action "{node.text}"', did_you_mean(node.text, self.actions))

    @property
    def bounds(self) -> str:
        return " ".join(self.actions)
