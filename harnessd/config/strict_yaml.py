"""Strict YAML: bytes to nodes with file:line:column; the meaning is YAML 1.2 whatever the parser's default.

libyaml's events are read, never a constructor's values: words stay as written, and what they mean is decided where
they are wanted. Refused with a remedy: anchors, aliases, `<<`, tags, directives, tabs, duplicate keys, keys that are
not words, depth over 32, files over 1 MiB, anything but UTF-8, a BOM, control characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from harnessd.policy.language.source import ListNode, MapNode, Node, Place, Problem, Scalar

LARGEST_BYTES = 1 << 20
DEEPEST = 32
MOST_NODES = 20_000  # a file of this many values is a mistake; reading more would hold up a reload

_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"  # NEL, LS, PS are line breaks in 1.1 only
)


@dataclass(slots=True)
class Parsed:
    """The documents of one text, and all problems with it. A text with problems may still have documents."""

    documents: list[Node] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse(data: bytes, file: str) -> Parsed:
    """Read one file's bytes. Never raises for what they hold."""
    parsed = Parsed()
    text = _decoded(data, file, parsed.problems)
    if text is None:
        return parsed
    builder = _Builder(file, parsed)
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            builder.take(event)
    except _Refused:
        pass
    except yaml.YAMLError as error:
        parsed.problems.append(_syntax_problem(error, text, file))
    if not parsed.documents and not parsed.problems:
        parsed.problems.append(
            Problem(file, 1, 1, "empty: nothing but comments", "write a document, or delete the file")
        )
    return parsed


def _decoded(data: bytes, file: str, problems: list[Problem]) -> str | None:
    """The text of the bytes, or None and a problem."""
    if len(data) > LARGEST_BYTES:
        problems.append(Problem(file, 1, 1, "the file is larger than 1 MiB", "split it"))
        return None
    if data[:3] == b"\xef\xbb\xbf":
        problems.append(Problem(file, 1, 1, "the file begins with a byte order mark", "save it as UTF-8 without BOM"))
        return None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        problems.append(Problem(file, 1, 1, "the file is UTF-16", "save it as UTF-8"))
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        problems.append(Problem(file, before.count(b"\n") + 1, column, message, "save the file as UTF-8"))
        return None
    text = text.replace("\r\n", "\n")
    strange = _INVISIBLE.search(text)
    if strange is not None:
        where = _place(file, text, strange.start())
        problems.append(Problem.at(where, f"invisible character U+{ord(strange[0]):04X}", "remove it"))
        return None
    tab = text.find("\t")
    if tab >= 0:
        problems.append(Problem.at(_place(file, text, tab), "a tab", "write spaces"))
        return None
    return text


def _place(file: str, text: str, index: int) -> Place:
    line_start = text.rfind("\n", 0, index) + 1
    return Place(file, text.count("\n", 0, index) + 1, index - line_start + 1)


class _Refused(Exception):  # noqa: N818 - ends the reading of a file whose problem is already noted
    """What follows cannot be read sensibly."""


@dataclass(slots=True)
class _Open:
    """A map or list that is being read; `key` waits for its value."""

    node: MapNode | ListNode
    key: str | None = None
    key_at: Place | None = None


class _Builder:
    """Builds nodes from events, without recursion."""

    def __init__(self, file: str, parsed: Parsed) -> None:
        self.file = file
        self.parsed = parsed
        self.open: list[_Open] = []
        self.nodes = 0

    def take(self, event: Any) -> None:
        """One event of libyaml."""
        match event:
            case yaml.DocumentStartEvent():
                if event.version or event.tags:
                    self.refuse(event, "a directive", "remove the line: the meaning is YAML 1.2")
            case yaml.AliasEvent():
                self.refuse(event, f"an alias (*{event.anchor})", "write it out, or quote a name that starts with *")
            case yaml.ScalarEvent():
                self.check(event)
                self.value(self.scalar(event))
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self.check(event)
                self.start(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self.value(self.open.pop().node)
            case _:
                pass  # stream and document borders

    def refuse(self, event: Any, message: str, remedy: str) -> None:
        """Note a problem that ends the reading of the file."""
        self.parsed.problems.append(Problem.at(self.place(event), message, remedy))
        raise _Refused

    def place(self, event: Any) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def check(self, event: Any) -> None:
        """What no node may have."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            self.refuse(event, f"over {MOST_NODES} values", "split the file")
        if event.anchor is not None:
            self.refuse(event, f"an anchor (&{event.anchor})", "write it out; `extends` is the way to share")
        if event.tag is not None:
            self.refuse(event, f"a tag ({event.tag})", "remove it")

    def scalar(self, event: Any) -> Scalar:
        plain = event.style is None or event.style == ""
        place = self.place(event)
        strange = _INVISIBLE.search(event.value)
        if strange is not None:
            message = f"the text holds the invisible character U+{ord(strange[0]):04X}"
            self.parsed.problems.append(Problem.at(place, message, "remove it"))
        return Scalar(event.value, plain, place)

    def start(self, event: Any) -> None:
        place = self.place(event)
        if len(self.open) >= DEEPEST:
            self.refuse(event, f"deeper than {DEEPEST} levels", "flatten it")
        self.expect_value(event)
        is_map = isinstance(event, yaml.MappingStartEvent)
        self.open.append(_Open(MapNode(place) if is_map else ListNode(place)))

    def expect_value(self, event: Any) -> None:
        """A map or list cannot stand as a key."""
        if self.open and isinstance(self.open[-1].node, MapNode) and self.open[-1].key is None:
            self.refuse(event, "a map or list stands where a key is wanted", "write a word, or quote {placeholders}")

    def value(self, node: Node) -> None:
        """A finished node goes where it belongs: a key, a value, an item, a document."""
        if not self.open:
            self.parsed.documents.append(node)
            return
        owner = self.open[-1]
        if isinstance(owner.node, ListNode):
            owner.node.append(node)
        elif owner.key is None:
            self.key(owner, node)
        else:
            self.put(owner, node)

    def key(self, owner: _Open, node: Node) -> None:
        if not isinstance(node, Scalar):
            return
        if node.plain and node.text == "<<":
            self.parsed.problems.append(Problem.at(node.place, "a merge key (<<)", "`extends` is the way to share"))
            raise _Refused
        owner.key, owner.key_at = node.text, node.place

    def put(self, owner: _Open, node: Node) -> None:
        key, place = owner.key, owner.key_at
        owner.key = owner.key_at = None
        if key is None or place is None or not isinstance(owner.node, MapNode):
            return
        if key in owner.node:
            first = owner.node.keys_at[key].line
            message = f'the key "{key}" stands twice, first in line {first}'
            self.parsed.problems.append(Problem.at(place, message, "keep one of them"))
            return
        owner.node.put(key, node, place)


_REMEDIES = (
    ("alphabetic or numeric", "quote a text that begins with * or &"),
    ("found character", "quote a text that begins with this character"),
    ("mapping values are not allowed", "quote a text that holds a colon and a space, or check the indentation"),
    ("could not find expected ':'", "write KEY: VALUE; check the lines above too"),
    ("did not find expected key", "check indentation and quotes"),
    ("expected ',' or", "close the bracket, or put a comma between"),
    ("expected '-' indicator", "check the indentation of the list"),
    ("unexpected end of stream", "close the quote"),
    ("document start", "separate documents by a line ---"),
)


def _syntax_problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    """One sentence of libyaml's complaint."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = str(getattr(error, "problem", None) or "this is not YAML")
    context = getattr(error, "context", None)
    remedy = next((remedy for words, remedy in _REMEDIES if words in what), "check the line")
    message = f"not YAML: {what}" + (f" {context}" if context else "")
    if mark is None:
        return Problem(file, 1, 1, message, remedy)
    last = text.count("\n") + 1
    return Problem(file, min(mark.line + 1, last), mark.column + 1, message, remedy)
