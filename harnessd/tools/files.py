"""Files: read, write and edit files of the workspace, beneath its root and nowhere else."""

from __future__ import annotations

import asyncio
import codecs
import difflib
import errno
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, BinaryIO, TypeVar

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import Confine, Confinement, ToolContext, ToolOutcome
from harnessd.tools.answers import NOTES_ROOM, clip, failed, well_formed

EDIT_MAX = 16 * 1024 * 1024
SKIP_MAX = 256 * 1024 * 1024  # bytes read over to reach `offset`; beyond, bash is the better tool
SNIFF_BYTES = 8192
NEAR_FOLDERS = 200
NEAR_NAMES = 3
ALIKE_MAX = 2000  # lines that are compared for likeness, which takes some 50 us a line

CANCEL_S = 2.0
# Threads of their own: a search that takes its time must not stand in the way of whoever uses the loop's.
_THREADS = ThreadPoolExecutor(8, "files")

PATH = {"type": "string", "minLength": 1, "description": "Path in the workspace, relative to its root."}
T = TypeVar("T")


async def in_workspace(
    tool: str,
    path: str,
    workspace: tuple[Confine, ToolContext],
    act: Callable[[Confinement], T],
    stop: Callable[[], None] | None = None,
) -> T | Failure:
    """Do blocking work on the workspace in a thread; what the world refuses becomes a `Failure` about `path`.

    Cancelled, it calls `stop` and waits for the thread: what is written after a cancellation nobody would expect.
    """
    confine, context = workspace

    def work() -> T | Failure:
        try:
            confined = confine(context.workspace)
        except OSError as error:
            return _unreachable(tool, error)
        with closing(confined):
            try:
                return act(confined)
            except OSError as error:
                return refused(tool, path, error, confined)

    working = asyncio.get_running_loop().run_in_executor(_THREADS, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        await asyncio.wait({working}, timeout=CANCEL_S)
        raise


def _unreachable(tool: str, error: OSError) -> Failure:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        advice = "Nothing can be done with files until a person puts it back: stop and say so."
        return failed(tool, ErrorClass.EXECUTION_FAILED, "the workspace's folder is not there any more", advice)
    reason = os.strerror(error.errno or errno.EIO).lower()
    advice = "This is the machine's trouble: try again later."
    return failed(tool, ErrorClass.UNAVAILABLE, f"the workspace cannot be opened: {reason}", advice)


def refused(tool: str, path: str, error: OSError, confined: Confinement) -> Failure:
    """A failed file operation in words: the path as the model wrote it, never where a link led."""
    match error.errno:
        case errno.EXDEV:
            hint, reason = ErrorClass.PERMISSION_DENIED, "the path leaves the workspace"
            advice = "Only files in the workspace can be reached; links must be relative and stay inside."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            hint, reason, advice = ErrorClass.PERMISSION_DENIED, "no permission", "Work on another file, or ask."
        case errno.ENOENT:
            hint, reason, advice = ErrorClass.EXECUTION_FAILED, "there is no such file", _near(path, confined)
        case errno.EISDIR:
            hint, reason = ErrorClass.EXECUTION_FAILED, "it is a folder, not a file"
            advice = "Name a file; list_files shows what is in it."
        case errno.ENOTDIR:
            hint, reason = ErrorClass.EXECUTION_FAILED, "a part of the path is a file, not a folder"
            advice = "list_files shows what is there."
        case errno.ENXIO:
            hint, reason = ErrorClass.EXECUTION_FAILED, "it is a pipe, socket or device, not a regular file"
            advice = "Only regular files are read and written."
        case errno.EINVAL | errno.ENAMETOOLONG:
            hint, reason = ErrorClass.INVALID_ARGUMENTS, "no file can have this name"
            advice = "Use a shorter name of ordinary characters."
        case errno.ENOSPC | errno.EDQUOT:
            hint, reason = ErrorClass.UNAVAILABLE, "the disk is full"
            advice = "Delete what is not needed, or stop and say so."
        case _:
            hint, reason = ErrorClass.EXECUTION_FAILED, os.strerror(error.errno or errno.EIO).lower()
            advice = "Look at the file with bash."
    return failed(tool, hint, f"{clip(well_formed(path), 300)}: {reason}", advice)


def _near(path: str, confined: Confinement) -> str:
    """Names that may have been meant: alike in the same folder, or the same in another one."""
    try:
        wanted = confined.relative(path)
        base = wanted.rpartition("/")[2]
        names = _names(confined)
    except OSError:
        return "list_files shows what is there."
    same = [name for name in names if name.rpartition("/")[2] == base]
    alike = difflib.get_close_matches(wanted, names, NEAR_NAMES, 0.75)
    found = list(dict.fromkeys([*same, *alike]))[:NEAR_NAMES]
    return f"Did you mean {' or '.join(found)}?" if found else "list_files shows what is there."


def _names(confined: Confinement) -> list[str]:
    """Files of the first folders of the tree, nearest first."""
    names: list[str] = []
    folders = ["."]
    for folder in folders:
        if len(folders) > NEAR_FOLDERS:
            break
        try:
            entries = confined.entries(folder)
        except OSError:
            continue
        for name, facts in entries:
            full = name if folder == "." else f"{folder}/{name}"
            if facts.kind != "folder":
                names.append(full)
            elif name != ".git":
                folders.append(full)
    return names


class ReadFile:
    """Tool `read_file`."""

    effect = EffectClass.READ_ONLY
    spec = ToolSpec(
        "read_file",
        "Read a text file of the workspace. A long file is cut at a line's end and says how to read on; offset and "
        "limit count lines.",
        {
            "type": "object",
            "properties": {
                "path": PATH,
                "offset": {"type": "integer", "minimum": 1, "description": "First line to read, counted from 1."},
                "limit": {"type": "integer", "minimum": 1, "description": "Number of lines to read."},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )

    def __init__(self, confine: Confine) -> None:
        self._confine = confine

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        path: str = arguments["path"]
        first, limit = int(arguments.get("offset", 1)), arguments.get("limit")

        def act(confined: Confinement) -> ToolOutcome | Failure:
            with os.fdopen(confined.open_read(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if b"\0" in file.read(SNIFF_BYTES):
                    return _binary(self.spec.name, path, size)
                file.seek(0)
                return _read_lines(self.spec.name, path, file, (first, limit), context.limits.output_max - NOTES_ROOM)

        return await in_workspace(self.spec.name, path, (self._confine, context), act)


def _read_lines(
    tool: str, path: str, file: BinaryIO, lines: tuple[int, int | None], room: int
) -> ToolOutcome | Failure:
    first, limit = lines
    size = os.fstat(file.fileno()).st_size
    number = 1
    while number < first:
        piece = file.readline(room)
        if not piece or file.tell() > SKIP_MAX:
            said = f"{path}: it has only {number - 1} lines" if not piece else f"{path}: line {first} is too far in"
            return failed(tool, ErrorClass.EXECUTION_FAILED, said, "Choose a smaller offset, or use bash with sed.")
        number += piece.endswith(b"\n")
    start = file.tell()
    shown: list[bytes] = []
    taken = 0
    while (limit is None or number - first < limit) and taken < room:
        piece = file.readline(room - taken)
        if not piece:
            break
        shown.append(piece)
        taken += len(piece)
        number += piece.endswith(b"\n")
    end = file.tell()
    if end < size and len(shown) > 1 and not shown[-1].endswith(b"\n"):
        end -= len(shown.pop())  # cut at a line's end; a single line longer than the room is cut within
    # A cut within a line may go through a character: what is left of that is not shown.
    content = b"".join(shown)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(content, final=end == size)
    notes = []
    if not text.isascii() and "\ufffd" in text and "\ufffd".encode() not in content:
        notes.append("not UTF-8 everywhere: some bytes are shown as \ufffd")
    if end < size and content and not content.endswith(b"\n"):
        notes.append(f"cut within line {number}, which is too long to be shown whole: use bash with cut -c")
    elif end < size:
        notes.append(f"cut: bytes {start}-{end} of {size:,}; read on with offset {number}")
    return ToolOutcome(
        clip(well_formed(text), room) + "".join(f"\n[{note}]" for note in notes) if text else "[the file is empty]",
        facts={"bytes": size},
    )


def _binary(tool: str, path: str, size: int) -> Failure:
    return failed(
        tool,
        ErrorClass.EXECUTION_FAILED,
        f"{path}: it is a binary file ({size:,} bytes)",
        "Look at it with bash (file, xxd, strings).",
    )


class WriteFile:
    """Tool `write_file`."""

    effect = EffectClass.REVERSIBLE
    spec = ToolSpec(
        "write_file",
        "Create a file in the workspace, or replace one with new content, whole. Missing folders are made. To change "
        "a part of a file use edit_file; write a very long file in several parts.",
        {
            "type": "object",
            "properties": {"path": PATH, "content": {"type": "string", "description": "The whole new content."}},
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    )

    def __init__(self, confine: Confine) -> None:
        self._confine = confine

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        path: str = arguments["path"]
        content = str(arguments["content"]).encode("utf-8", "replace")

        def act(confined: Confinement) -> ToolOutcome:
            fresh = confined.write(path, content)
            did = "Created" if fresh else "Replaced"
            name = confined.relative(path)
            return ToolOutcome(f"{did} {name} ({len(content):,} bytes).", facts={"path": name, "created": fresh})

        return await in_workspace(self.spec.name, path, (self._confine, context), act)


class EditFile:
    """Tool `edit_file`."""

    effect = EffectClass.REVERSIBLE
    spec = ToolSpec(
        "edit_file",
        "Replace a piece of a file with another. `old` must stand in the file exactly once, character for character "
        "with its indentation; take more lines around it if it stands there more often, or set `all`.",
        {
            "type": "object",
            "properties": {
                "path": PATH,
                "old": {"type": "string", "minLength": 1, "description": "The text as it stands in the file."},
                "new": {"type": "string", "description": "The text to put in its place; may be empty."},
                "all": {"type": "boolean", "description": "Replace every place, not just one."},
            },
            "required": ["path", "old", "new"],
            "additionalProperties": False,
        },
    )

    def __init__(self, confine: Confine) -> None:
        self._confine = confine

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        path: str = arguments["path"]
        old, new, every = str(arguments["old"]), str(arguments["new"]), bool(arguments.get("all"))

        def act(confined: Confinement) -> ToolOutcome | Failure:
            text = _text_of(path, confined)
            if isinstance(text, Failure):
                return text
            count = text.count(old)
            if count == 0 or old == new or (count > 1 and not every):
                return _no_edit(path, text, old, new, count)
            confined.write(path, text.replace(old, new).encode())
            line = text[: text.index(old)].count("\n") + 1
            where = f"at line {line}" if count == 1 else f"in {count} places"
            return ToolOutcome(f"Edited {confined.relative(path)} {where}.", facts={"path": confined.relative(path)})

        return await in_workspace(self.spec.name, path, (self._confine, context), act)


def _text_of(path: str, confined: Confinement) -> str | Failure:
    with os.fdopen(confined.open_read(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > EDIT_MAX:
            return failed(
                "edit_file",
                ErrorClass.EXECUTION_FAILED,
                f"{path}: too large to edit ({size:,} bytes)",
                "Use bash (sed).",
            )
        content = file.read(EDIT_MAX + 1)
    if b"\0" in content[:SNIFF_BYTES]:
        return _binary("edit_file", path, size)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return failed(
            "edit_file",
            ErrorClass.EXECUTION_FAILED,
            f"{path}: it is not UTF-8 (byte {error.start})",
            "Edit it with bash, which keeps the bytes it does not touch.",
        )


def _no_edit(path: str, text: str, old: str, new: str, count: int) -> Failure:
    if old == new:
        reason, advice = "`old` and `new` are the same", "Say what shall be different."
    elif count > 1:
        lines = [str(text[:at].count("\n") + 1) for at in _places(text, old)]
        reason = (
            f"`old` stands in the file {count} times (lines {', '.join(lines)}{', ...' if count > len(lines) else ''})"
        )
        advice = "Take more lines around the one that is meant, or set `all`."
    else:
        reason, advice = "`old` does not stand in the file", _nearest(text, old)
    return failed("edit_file", ErrorClass.EXECUTION_FAILED, f"{path}: {reason}", advice)


def _places(text: str, old: str, most: int = 5) -> list[int]:
    places: list[int] = []
    at = text.find(old)
    while at >= 0 and len(places) < most:
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _nearest(text: str, old: str) -> str:
    """What stands in the file instead: the lines that look most like the first line of `old`."""
    if "\r\n" in text and "\n" in old and "\r\n" not in old:
        return "The file has CRLF line ends: write \\r\\n in `old` and `new`."
    wanted = next((line for line in old.splitlines() if line.strip()), old).strip()
    lines = text.splitlines()
    same = [number for number, line in enumerate(lines, 1) if line.strip() == wanted]
    if not same:
        near = [line.strip() for line in lines[:ALIKE_MAX] if len(line) < 300]
        alike = difflib.get_close_matches(wanted[:300], near, 1, 0.6)
        same = [number for number, line in enumerate(lines, 1) if alike and line.strip() == alike[0]]
    if not same:
        return "Read the file again: it may have changed."
    number = same[0]
    shown = "\n".join(
        f"{at}: {clip(lines[at - 1], 200)}" for at in range(max(number - 1, 1), min(number + 2, len(lines)) + 1)
    )
    return f"Nearest, near line {number}:\n{shown}\nCopy it exactly, with its indentation."
