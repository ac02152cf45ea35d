"""Coverage: what a checkpoint leaves out, and in which words it says so; what is left out is never deleted."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass

MAX_FILE = 100 << 20
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
OTHER_FILE_SYSTEM = b"another file system"
UNREADABLE = b"not readable"
EXCLUDED = b"excluded"
TOO_LARGE = b"larger than max_file"


@dataclass(frozen=True, slots=True)
class Limits:
    """`workspaces.checkpoints` of harness.yaml: bytes of the largest covered file, and patterns of paths."""

    max_file: int = MAX_FILE
    exclude: tuple[str, ...] = ()

    def excluded(self) -> re.Pattern[str] | None:
        """What matches a path that is left out; None where nothing is."""
        return pattern_of(self.exclude)


def special(mode: int) -> bytes:
    """What a name is that is neither file nor folder nor link."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file").encode()


def pattern_of(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Patterns as one expression over whole paths.

    `*` and `?` stay within one name, `**` crosses folders. Without a slash a pattern fits a name in any folder, with
    one it starts at the workspace's root. A folder that fits is left out with all that lies in it.
    """
    if not patterns:
        return None
    return re.compile("|".join(_expression(pattern) for pattern in patterns), re.DOTALL)


def _expression(pattern: str) -> str:
    inner = pattern.strip("/")
    anchored = "/" in pattern.rstrip("/")
    parts = []
    at = 0
    while at < len(inner):
        if inner.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif inner.startswith("**", at):
            parts.append(".*")
            at += 2
        else:
            letter = inner[at]
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)))
            at += 1
    return rf"(?:{'' if anchored else '(?:.*/)?'}{''.join(parts)})\Z"
