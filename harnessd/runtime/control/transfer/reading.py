"""Reading: the lines of a session as they come in, judged one by one; the first thing that is wrong ends it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from harnessd.domain.effect import Effect
from harnessd.domain.record import StoredDecision
from harnessd.domain.transfer import StoredNode
from harnessd.domain.transfer.lines import FORMAT, TYPES, VERSION
from harnessd.runtime.control.answers import Bad
from harnessd.runtime.control.transfer import rows
from harnessd.runtime.control.transfer.nodes import Nodes

LINE_MAX = 16 * 1024 * 1024
FILE_MAX = 256 * 1024 * 1024
DEPTH_MAX = 200
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HINT = "Give a file that `harnessctl export` wrote, or a transcript that `harnessctl session lint` reads."
_AGAIN = "Export it again, and copy the file whole."


@dataclass(slots=True)
class Session:
    """What was read: every line checked, and the file whole."""

    task: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    nodes: list[StoredNode] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    decisions: list[StoredDecision] = field(default_factory=list)


class Reader:
    """Takes bytes as they come. Each method raises Bad with one sentence for a file that is refused."""

    def __init__(self) -> None:
        """Nothing was read."""
        self.session = Session()
        self._rest = bytearray()
        self._number = self._size = 0
        self._counts: Counter[str] = Counter()
        self._sum = sha256()
        self._ended = False
        self._nodes = Nodes()
        self._effects: set[str] = set()

    def feed(self, data: bytes) -> None:
        """More of the file."""
        self._size += len(data)
        if self._size > FILE_MAX:
            raise Bad("too_large", f"The file is larger than {FILE_MAX} bytes.", "Export a shorter session.")
        start = len(self._rest)
        self._rest += data
        if (end := self._rest.find(b"\n", start)) < 0:
            self._bound(len(self._rest))
            return
        begin = 0
        while end >= 0:
            self._bound(end - begin)
            self._line(bytes(self._rest[begin : end + 1]))
            begin = end + 1
            end = self._rest.find(b"\n", begin)
        del self._rest[:begin]
        self._bound(len(self._rest))

    def end(self) -> Session:
        """The whole session, after the last byte."""
        if self._rest.strip() and not self._ended and self._number == 0:
            self._line(bytes(self._rest) + b"\n")
        if self._rest or not self._ended:
            at = f"in line {self._number + 1}" if self._rest else f"after line {self._number}"
            if not self._number and not self._rest:
                raise _invalid("The file is empty.", _HINT)
            raise _invalid(f"The file is torn: it breaks off {at}, before its last line.", _AGAIN)
        try:
            self.session.nodes = self._nodes.whole(self.session.task)
        except rows.Odd as odd:
            raise _invalid(f"The session is not whole: {odd}.", _AGAIN) from None
        return self.session

    def _bound(self, size: int) -> None:
        if size > LINE_MAX:
            raise Bad("too_large", f"Line {self._number + 1} is longer than {LINE_MAX} bytes.", _HINT)

    def _line(self, line: bytes) -> None:
        self._number += 1
        if self._ended:
            raise _invalid(f"Line {self._number} stands behind the last line.", _AGAIN)
        row = self._object(line)
        type_ = self._typed(row)
        if type_ == "end":
            self._judge_end(row)
            return
        self._sum.update(line)
        self._counts[type_] += 1
        try:
            self._take(type_, row, line)
        except rows.Odd as odd:
            raise _invalid(f"Line {self._number}: {odd}.", _AGAIN) from None

    def _object(self, line: bytes) -> dict[str, Any]:
        if b"\0" in line:
            raise _invalid(f"Line {self._number} holds a NUL byte.", _AGAIN)
        try:
            text = line.decode("utf-8")
            row = json.loads(text, parse_constant=_no_number, parse_float=_finite)
        except UnicodeDecodeError:
            raise _invalid(f"Line {self._number} is not UTF-8.", _AGAIN) from None
        except (ValueError, RecursionError):
            raise _invalid(f"Line {self._number} is not JSON.", _HINT) from None
        if not isinstance(row, dict):
            raise _invalid(f"Line {self._number} is no JSON object.", _HINT)
        if line.count(b"{") + line.count(b"[") > DEPTH_MAX and _deep(row):
            raise _invalid(f"Line {self._number} is nested deeper than {DEPTH_MAX} levels.", _AGAIN)
        if _SURROGATE.search(line):
            try:
                json.dumps(row, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise _invalid(f"Line {self._number} holds half of a character.", _AGAIN) from None
        return row

    def _typed(self, row: Mapping[str, Any]) -> str:
        """The type of the line, which must be possible at this place."""
        type_ = row.get("type")
        if self._number == 1:
            if type_ != "header" or row.get("format") != FORMAT:
                raise _invalid("The file is no exported session of harnessd.", _HINT)
            _judge_version(row.get("version"))
            origin = row.get("origin", "")
            self.session.origin = origin if isinstance(origin, str) else ""
            return "header"
        wanted = ("task",) if self._number == 2 else TYPES[2:]
        if type_ not in wanted:
            named = repr(type_)[:40] if isinstance(type_, str) else "none"
            raise _invalid(f"Line {self._number} has the type {named}, and is to be: {', '.join(wanted)}.", _AGAIN)
        return str(type_)

    def _take(self, type_: str, row: Mapping[str, Any], line: bytes) -> None:
        match type_:
            case "task":
                self.session.task = rows.task_row(row)
            case "node":
                self._nodes.add(row, line.decode("utf-8"))
            case "effect":
                effect = rows.effect_from(row)
                if effect.id in self._effects:
                    raise rows.Odd(f"effect {effect.id} is there twice")
                self._effects.add(effect.id)
                self.session.effects.append(effect)
            case "decision":
                self.session.decisions.append(rows.decision_from(row))
            case _:
                pass  # events, questions and checkpoints tell people what was; nothing goes on from them

    def _judge_end(self, row: Mapping[str, Any]) -> None:
        if row.get("sha256") != self._sum.hexdigest():
            raise _invalid("The file is not what was written: its SHA-256 is not the one in its last line.", _AGAIN)
        if row.get("counts") != dict(self._counts):
            raise _invalid("The file is not what was written: it has other lines than its last line counts.", _AGAIN)
        self._ended = True


def _judge_version(version: Any) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise _invalid("The first line names no version of the format.", _AGAIN)
    if version > VERSION:
        said = f"The file is of a newer harnessd: format {version}, and this one reads up to {VERSION}."
        raise Bad("refused", said, "Update harnessd, then import it.")


def _invalid(message: str, hint: str) -> Bad:
    return Bad("invalid", message, hint)


def _no_number(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    """`1e999` is a number to a parser, and nothing that JSON can write."""
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _deep(row: Any) -> bool:
    """Nested deeper than every reader of the store takes."""
    level: list[Any] = [row]
    for _ in range(DEPTH_MAX):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
        level = [one for one in level if isinstance(one, (dict, list))]
        if not level:
            return False
    return True
