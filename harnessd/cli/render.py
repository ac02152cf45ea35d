"""What people see: safe text, aligned tables, times and sizes in words, JSON. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

WIDTH = 96
# C0 but tab and newline, DEL, C1, the controls of writing direction, line separators, lone surrogates: whatever could
# drive a terminal, hide text or forge a line.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINE = re.compile(f"[\t\n]|{_UNSAFE.pattern}")
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
_STATE_COLOURS = {
    "completed": "green",
    "stopped": "red",
    "waiting": "yellow",
    "parked": "yellow",
    "paused": "yellow",
}


def visible(text: str) -> str:
    """The text with every control character as a visible escape; tabs and line breaks stay."""
    return _UNSAFE.sub(_escape, text)


def one_line(text: object) -> str:
    """The text as one safe line: line breaks and tabs are shown as escapes too."""
    return _UNSAFE_IN_LINE.sub(_escape, str(text))


def _escape(found: re.Match[str]) -> str:
    letter = found.group()
    if "\ud800" <= letter <= "\udfff":
        return "\ufffd"
    names = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
    code = ord(letter)
    return names.get(letter) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    columns = wcswidth(text)
    return columns if columns >= 0 else len(text)


def cut(text: str, columns: int) -> str:
    """The text in at most so many columns, with `…` where something was left out."""
    if width(text) <= columns:
        return text
    kept = text[:columns]
    while kept and width(kept) > columns - 1:
        kept = kept[:-1]
    return f"{kept}…"


def pad(text: str, columns: int) -> str:
    """The text with blanks up to so many columns."""
    return text + " " * (columns - width(text))


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = (), right: Iterable[int] = ()) -> list[str]:
    """Aligned lines, two blanks between columns. On a terminal the last column is cut to what fits.

    `right` holds the places of the columns that stand right-aligned.
    """
    cells = [[one_line(cell) for cell in row] for row in ([head, *rows] if head else rows)]
    if not cells:
        return []
    columns = max(len(row) for row in cells)
    cells = [row + [""] * (columns - len(row)) for row in cells]
    widths = [max(width(row[place]) for row in cells) for place in range(columns)]
    numbers = frozenset(right)
    room = terminal_width()
    lines = []
    for row in cells:
        parts = [
            " " * (widths[place] - width(cell)) + cell if place in numbers else pad(cell, widths[place])
            for place, cell in enumerate(row[:-1])
        ]
        before = sum(width(part) + 2 for part in parts)
        last = row[-1] if room is None else cut(row[-1], max(8, room - before))
        lines.append("  ".join([*parts, last]).rstrip())
    return lines


def terminal_width() -> int | None:
    """Columns of the terminal, or None where the output goes elsewhere and nothing shall be cut."""
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except OSError:
        return WIDTH


def terminal_height() -> int:
    """Lines of the terminal; many where the output goes elsewhere."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except OSError:
        return 1_000_000


def clear_screen() -> None:
    """Begin anew at the top on a terminal; elsewhere an empty line."""
    out("\x1b[H\x1b[2J" if sys.stdout.isatty() else "")


def paint(text: str, colour: str) -> str:
    """The text in colour, on a terminal whose user did not ask for none (NO_COLOR, TERM=dumb)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def paint_state(state: str) -> str:
    """The name of a state in its colour."""
    return paint(state, _STATE_COLOURS[state]) if state in _STATE_COLOURS else state


def out(text: str = "") -> None:
    """A line for people on standard output. `text` must be safe already, as every function here leaves it."""
    write(sys.stdout, f"{text}\n")


def out_lines(lines: Iterable[str]) -> None:
    """Several lines."""
    for line in lines:
        out(line)


def note(text: str) -> None:
    """A remark on standard error: progress, hints, what was understood."""
    write(sys.stderr, f"{visible(text)}\n")


def out_json(document: Any, *, line: bool = False) -> None:
    """One JSON document on standard output (`line`: on one line, for streams)."""
    write(sys.stdout, f"{to_json(document, line=line)}\n")


def to_json(document: Any, *, line: bool = False) -> str:
    """JSON whose strings are true, and safe to look at: what could drive a terminal is escaped as JSON has it."""
    text = json.dumps(document, ensure_ascii=False, indent=None if line else 2, default=str)
    # Outside of strings JSON has no such character but the line breaks of its own layout.
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def write(stream: TextIO, text: str) -> None:
    """Write and flush. A letter that the terminal's encoding lacks is replaced."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        coding = stream.encoding or "ascii"
        stream.write(text.encode(coding, "replace").decode(coding))
    stream.flush()


def command(words: Sequence[str]) -> str:
    """A command line to copy, quoted where the shell needs it."""
    if all(re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII) for word in words):
        return " ".join(words)
    from shlex import quote

    return one_line(" ".join(quote(word) for word in words))


def duration(seconds: float | None) -> str:
    """`0.4s`, `28m37s`, `6d 2h`: two units at most."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds % 1 >= 0.1 else f"{int(seconds)}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days}d {hours_left}h" if hours_left else f"{days}d"
    if hours:
        return f"{hours}h{minutes_left:02d}m" if minutes_left else f"{hours}h"
    return f"{minutes}m{rest:02d}s" if minutes and rest else f"{minutes}m" if minutes else f"{rest}s"


def clock_time(at: float | None, now: float | None = None) -> str:
    """`03:12:08`, with the date in front if it was not within the last half day."""
    if at is None:
        return "-"
    now = time.time() if now is None else now
    form = "%H:%M:%S" if abs(now - at) < 43200 else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, time.localtime(at))


def full_time(at: float) -> str:
    """`2026-11-30 03:12:08 +0800`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(at))


def count(number: float | None) -> str:
    """`66`, `690k`, `1.31M`."""
    if number is None:
        return "-"
    if number >= 1_000_000:
        return f"{number / 1_000_000:.2f}".rstrip("0").rstrip(".") + "M"
    if number >= 10_000:
        return f"{number / 1000:.0f}k"
    return f"{number:g}" if number != int(number) else str(int(number))


def size(number: float) -> str:
    """Bytes as people read them: `412B`, `1.2GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f}{unit}" if unit == "B" or number >= 100 else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}TiB"


def amount(budget: str, number: float | None) -> str:
    """A limit or its use in the words of its budget: a time, USD or a count."""
    if number is None:
        return "-"
    if budget in ("working_time", "wall_time", "age", "silence"):
        return duration(number)
    return f"{number:.2f}" if budget == "cost_usd" else count(number)


def doing(text: str | None) -> str:
    """What a task does now; of a call with one argument, that argument: `bash: make all`."""
    tool, _, given = (text or "").partition(": ")
    if not given.startswith("{"):
        return text or ""
    try:
        arguments = json.loads(given)
    except ValueError:  # cut short
        return text or ""
    only = next(iter(arguments.values())) if len(arguments) == 1 else None
    return f"{tool}: {only}" if isinstance(only, str) else text or ""


def labels(pairs: Mapping[str, str]) -> str:
    """`team=web batch=port-7`."""
    return " ".join(f"{name}={value}" for name, value in pairs.items())


def place(rule: Mapping[str, Any]) -> str:
    """`policies/budget.yaml:3  r6`; what was said on a command line has no line number."""
    line = f":{rule['line']}" if rule.get("line") else ""
    revision = f"  r{rule['revision']}" if rule.get("revision") else ""
    return one_line(f"{rule['file']}{line}{revision}")
