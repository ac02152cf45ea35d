"""Source: what a YAML text says, every word with its place; problems that name that place and the remedy.

`config.strict_yaml` builds these nodes; everything above reads them. A node keeps the *written* text: what it means
(a count, a duration, a text) is decided where it is wanted, in `values`, so that no parser guesses.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

BUILTIN = "builtin "  # file names of what is shipped: `builtin retry.yaml`


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in a file, counted from 1 as editors do. Line 0: a place without lines (an option, a variable)."""

    file: str
    line: int = 0
    column: int = 0

    @property
    def builtin(self) -> bool:
        """The place is in a shipped file."""
        return self.file.startswith(BUILTIN)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """What is wrong at a place, and what to write instead."""

    file: str
    line: int
    column: int
    message: str
    remedy: str = ""

    @classmethod
    def at(cls, place: Place, message: str, remedy: str = "") -> Problem:
        """A problem at `place`."""
        return cls(place.file, place.line, place.column, message, remedy)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        what = f"{where}: {self.message}"
        return f"{what}: {self.remedy}" if self.remedy else what


@dataclass(frozen=True, slots=True)
class Scalar:
    """One word or text. `plain`: written without quotes and not as a block."""

    text: str
    plain: bool
    place: Place

    def __str__(self) -> str:
        return self.text if self.plain else f'"{self.text}"'


class MapNode(dict[str, Any]):
    """A map, keys as written, in order."""

    __slots__ = ("keys_at", "place")

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, Place] = {}

    def put(self, key: str, value: Node, at: Place) -> None:
        """Set a key and remember where it was written."""
        self[key] = value
        self.keys_at[key] = at

    def copy(self) -> MapNode:
        """The same map; its values are shared."""
        twin = MapNode(self.place)
        twin.update(self)
        twin.keys_at.update(self.keys_at)
        return twin


class ListNode(list[Any]):
    """A list."""

    __slots__ = ("place",)

    def __init__(self, place: Place, items: Iterable[Node] = ()) -> None:
        super().__init__(items)
        self.place = place


Node = Scalar | MapNode | ListNode


class Misread(ValueError):  # noqa: N818 - named as what happened; it becomes one or more problems
    """What stands here cannot be read as what is wanted."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def misread(node: Any, message: str, remedy: str = "") -> Misread:
    """The error of one node."""
    return Misread((Problem.at(place_of(node), message, remedy),))


@dataclass(slots=True)
class Collected:
    """Several misreads of one value, raised together."""

    problems: list[Problem] = field(default_factory=list)

    def add(self, error: Misread) -> None:
        """Keep the problems of `error`."""
        self.problems.extend(error.problems)

    def raise_if_any(self) -> None:
        """Raise all that was kept."""
        if self.problems:
            raise Misread(self.problems)


def place_of(node: Any) -> Place:
    """Where a node stands."""
    place = getattr(node, "place", None)
    return place if isinstance(place, Place) else Place("?")


def quoted(node: Any) -> str:
    """A node's text as a message shows it: short, on one line."""
    if isinstance(node, Scalar):
        if node.plain and not node.text:
            return "nothing"
        text = node.text if len(node.text) <= 60 else node.text[:57] + "..."
        text = text.replace("\n", "\\n")
        return text if node.plain else f'"{text}"'
    return "a map" if isinstance(node, MapNode) else "a list"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A near miss as a remedy, else the list of what is known (shortened)."""
    candidates = sorted(set(known))
    near = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    if not candidates:
        return ""
    shown = ", ".join(candidates[:14])
    return f"write one of {shown}" + (" ..." if len(candidates) > 14 else "")


def plain_data(node: Any) -> Any:
    """The node as JSON data: texts as written; unquoted and quoted texts look alike."""
    if isinstance(node, MapNode):
        return {key: plain_data(value) for key, value in node.items()}
    if isinstance(node, ListNode):
        return [plain_data(item) for item in node]
    return node.text if isinstance(node, Scalar) else node


def find(node: Any, path: Iterable[str | int]) -> Any:
    """The node at `path` below `node`, or None where nothing is written."""
    for step in path:
        if isinstance(node, ListNode) and isinstance(step, int):
            node = node[step] if 0 <= step < len(node) else None
        elif isinstance(node, MapNode) and isinstance(step, str):
            node = node.get(step)
        else:
            return None
    return node


def leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Scalar]]:
    """Every scalar below `node` with its path, in order."""
    if isinstance(node, MapNode):
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    elif isinstance(node, ListNode):
        for index, value in enumerate(node):
            yield from leaves(value, (*path, index))
    elif isinstance(node, Scalar):
        yield path, node
