"""Search: list the workspace's files and find lines in them, bounded in size and time.

Patterns run in the regex engine that jsonschema-rs brings (its `pattern` keyword finds a match anywhere in a string):
linear in the text, so that no pattern of a model can hold the process. Python's `re` could, and it holds the
interpreter lock while it does.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import Confine, Confinement, FileFacts, ToolContext, ToolOutcome
from harnessd.tools.answers import NOTES_ROOM, clip, failed, well_formed
from harnessd.tools.files import SNIFF_BYTES, in_workspace

ENTRIES_MAX = 1000
MATCHES_MAX = 200
LINE_SHOWN = 300
LINE_MAX = 20_000  # characters of a line that are searched
BLOCK = 128 * 1024
BACKTRACKS_MAX = 10_000
FILE_MAX = 10 * 1024 * 1024
SECONDS_MAX = 20.0

IN = {"type": "string", "description": "Folder or file to look in; the whole workspace if left out."}


@dataclass(slots=True)
class Bounds:
    """When to give up: the caller was cancelled, or the time is over."""

    deadline: float
    stop: threading.Event = field(default_factory=threading.Event)

    def over(self) -> bool:
        """No more work."""
        return self.stop.is_set() or time.monotonic() > self.deadline


def walk(confined: Confinement, start: str, bounds: Bounds) -> Iterator[tuple[str, FileFacts]]:
    """All names below a folder, folder by folder from the top; links are not followed, `.git` is not entered."""
    folders = [start]
    for folder in folders:
        if bounds.over():
            return
        try:
            entries = confined.entries(folder)
        except OSError:
            if folder == start:
                raise
            continue  # gone, or closed to us, since it was listed
        for name, facts in entries:
            full = name if folder == "." else f"{folder}/{name}"
            yield full, facts
            if facts.kind == "folder" and name != ".git":
                folders.append(full)


def glob_matches(pattern: str, path: str) -> bool:
    """A glob against a path: `**` is any number of folders; without a slash the pattern is of the last name alone."""
    if "/" not in pattern:
        return fnmatch.fnmatchcase(path.rpartition("/")[2], pattern)
    return _parts_match([part for part in pattern.split("/") if part not in ("", ".")], path.split("/"))


def _parts_match(wanted: list[str], parts: list[str]) -> bool:
    # reachable[i]: the parts so far can be matched by the first i of the pattern. No recursion, so no blow-up.
    reachable = _skip_stars(wanted, {0})
    for part in parts:
        after = {at for at in reachable if at < len(wanted) and wanted[at] == "**"}
        after |= {
            at + 1
            for at in reachable
            if at < len(wanted) and wanted[at] != "**" and fnmatch.fnmatchcase(part, wanted[at])
        }
        reachable = _skip_stars(wanted, after)
    return len(wanted) in reachable


def _skip_stars(wanted: list[str], reachable: set[int]) -> set[int]:
    reached = set(reachable)
    for at in sorted(reachable):
        step = at
        while step < len(wanted) and wanted[step] == "**":
            step += 1
            reached.add(step)
    return reached


async def _bounded(
    tool: str,
    path: str,
    workspace: tuple[Confine, ToolContext],
    act: Callable[[Confinement, Bounds], ToolOutcome | Failure],
) -> ToolOutcome | Failure:
    bounds = Bounds(time.monotonic() + min(SECONDS_MAX, workspace[1].limits.timeout_s))
    return await in_workspace(tool, path, workspace, lambda confined: act(confined, bounds), bounds.stop.set)


class ListFiles:
    """Tool `list_files`."""

    effect = EffectClass.READ_ONLY
    spec = ToolSpec(
        "list_files",
        "List files and folders of the workspace, whole trees, top folders first; folders end in `/`. With a pattern "
        "only what fits is listed.",
        {
            "type": "object",
            "properties": {
                "path": IN,
                "pattern": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Glob: `*.py` fits names in any folder, `src/**/test_*.py` paths below `path`.",
                },
            },
            "additionalProperties": False,
        },
    )

    def __init__(self, confine: Confine) -> None:
        self._confine = confine

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        path: str = arguments.get("path", ".")
        pattern: str | None = arguments.get("pattern")

        def act(confined: Confinement, bounds: Bounds) -> ToolOutcome | Failure:
            start = confined.relative(path)
            if confined.facts(start).kind != "folder":
                return ToolOutcome(start)
            lines: list[str] = []
            room = context.limits.output_max - NOTES_ROOM
            cut = False
            for name, facts in walk(confined, start, bounds):
                below = name if start == "." else name[len(start) + 1 :]
                if pattern is None or glob_matches(pattern, below):
                    line = _entry(name, facts)
                    room -= len(line.encode()) + 1
                    if cut := len(lines) >= ENTRIES_MAX or room < 0:
                        break
                    lines.append(line)
            note = _cut_note(cut, bounds, f"{len(lines)} entries", "a path or pattern")
            return ToolOutcome(("\n".join(lines) or "(nothing)") + note, facts={"entries": len(lines)})

        return await _bounded(self.spec.name, path, (self._confine, context), act)


def _entry(name: str, facts: FileFacts) -> str:
    mark = {"folder": "/", "link": f" -> {facts.link}", "other": " (not a regular file)", "file": ""}[facts.kind]
    return well_formed(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")) + (
        " -> (outside)" if facts.kind == "link" and facts.link.startswith("/") else well_formed(mark)
    )


def _cut_note(cut: bool, bounds: Bounds, reached: str, remedy: str) -> str:
    if cut:
        return f"\n[cut after {reached}: give {remedy} to see the rest]"
    return f"\n[stopped by the time limit after {reached}: give {remedy}]" if bounds.over() else ""


class SearchFiles:
    """Tool `search_files`."""

    effect = EffectClass.READ_ONLY
    spec = ToolSpec(
        "search_files",
        "Find lines in text files of the workspace by a regular expression; gives `path:line: text`. Case matters "
        "unless the pattern begins with (?i). Binary and very large files and `.git` are left out.",
        {
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "minLength": 1, "description": "Regular expression, for one line."},
                "path": IN,
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
    )

    def __init__(self, confine: Confine) -> None:
        self._confine = confine

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        path: str = arguments.get("path", ".")
        fits = matcher(arguments["pattern"])
        if fits is None:
            return failed(
                self.spec.name,
                ErrorClass.INVALID_ARGUMENTS,
                f"pattern: not a regular expression that can be used: {clip(arguments['pattern'], 200)}",
                "Escape brackets and dots that are meant as they are with \\, or search for a simpler piece.",
            )

        def act(confined: Confinement, bounds: Bounds) -> ToolOutcome | Failure:
            search = _Search(fits, confined, bounds, context.limits.output_max - NOTES_ROOM)
            start = confined.relative(path)
            if confined.facts(start).kind == "folder":
                for name, facts in walk(confined, start, bounds):
                    with contextlib.suppress(OSError):  # gone, or closed to us, since it was listed
                        if facts.kind == "file" and not search.look_in(name, facts.size):
                            break
            else:
                search.look_in(start, confined.facts(start).size)
            return search.outcome()

        return await _bounded(self.spec.name, path, (self._confine, context), act)


@dataclass(frozen=True, slots=True)
class Matcher:
    """Tests of a pattern: on one line, and, to skip quickly, whether any line of a block can fit at all."""

    line: Callable[[str], bool]
    block: Callable[[str], bool]


def matcher(pattern: str) -> Matcher | None:
    """The tests of a pattern, or None if it cannot be used.

    Linear time where the pattern allows it; look-around and back-references need the engine with bounded backtracking,
    where a line that goes over the bound does not match.
    """
    with contextlib.suppress(ValueError):
        line = _compiled(pattern, jsonschema_rs.RegexOptions())
        # In a block `^` and `$` must fit at each line; what means the ends of the text cannot be tested on a block.
        whole = any(end in pattern for end in ("\\A", "\\z", "\\Z"))
        return Matcher(line, _any if whole else _compiled(f"(?m:{pattern})", jsonschema_rs.RegexOptions()))
    with contextlib.suppress(ValueError):
        return Matcher(_compiled(pattern, jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX)), _any)
    return None


def _compiled(
    pattern: str, options: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions
) -> Callable[[str], bool]:
    return jsonschema_rs.validator_for({"type": "string", "pattern": pattern}, pattern_options=options).is_valid


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Pieces of whole lines, with the number of the first; small, since each test holds the interpreter lock."""
    number, start = 1, 0
    while start < len(text):
        end = text.find("\n", min(start + BLOCK, len(text)))
        end = len(text) if end < 0 else end
        yield number, text[start:end]
        number += text.count("\n", start, end) + 1
        start = end + 1


def _any(_: str) -> bool:
    return True


class _Search:
    """Matches so far, and whether there is room for more."""

    def __init__(self, fits: Matcher, confined: Confinement, bounds: Bounds, room: int) -> None:
        self.fits = fits
        self.confined = confined
        self.bounds = bounds
        self.room = room
        self.lines: list[str] = []
        self.files = 0
        self.skipped = 0
        self.cut = False

    def look_in(self, name: str, size: int) -> bool:
        """Search one file; False when there is no more room or time. Raises OSError."""
        if size > FILE_MAX:
            self.skipped += 1
            return True
        with os.fdopen(self.confined.open_read(name), "rb") as file:
            content = file.read(FILE_MAX)
        if b"\0" in content[:SNIFF_BYTES]:
            return True
        self.files += 1
        shown = well_formed(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
        text = content.decode("utf-8", "replace").replace("\r\n", "\n")
        return all(self._look_at(shown, number, block) for number, block in _blocks(text)) and not self.bounds.over()

    def _look_at(self, name: str, first: int, block: str) -> bool:
        if self.bounds.over():
            return False
        if not self.fits.block(block):
            return True
        for number, line in enumerate(block.split("\n"), first):
            if self.fits.line(line[:LINE_MAX]) and not self._keep(f"{name}:{number}: {line.strip()[:LINE_SHOWN]}"):
                return False
        return True

    def _keep(self, line: str) -> bool:
        line = well_formed(line)
        self.room -= len(line.encode()) + 1
        self.cut = len(self.lines) >= MATCHES_MAX or self.room < 0
        if not self.cut:
            self.lines.append(line)
        return not self.cut

    def outcome(self) -> ToolOutcome:
        """The answer for the model."""
        found = f"{len(self.lines)} matches"
        note = _cut_note(self.cut, self.bounds, found, "a path, or a narrower pattern,")
        if self.skipped:
            note += f"\n[{self.skipped} files over {FILE_MAX // 2**20} MiB were left out]"
        text = "\n".join(self.lines) or f"No line matches ({self.files} files searched)."
        return ToolOutcome(text + note, facts={"matches": len(self.lines), "files": self.files})
