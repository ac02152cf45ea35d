"""Crash points: the named moments of the protocol between which a `kill -9` may fall.

`HARNESSD_CRASH=J9:3` kills the process with SIGKILL at the third pass of J9, `J9:3:stop` stops it there until somebody
sends SIGCONT; without it every point is a no-op. The points make a sweep complete instead of lucky. Points around a
commit have a `-before` and an `-after`. J5 and J11 lie in other processes' time: a sweep waits until the model service,
or the tool, says that it is there, and kills then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

from harnessd.domain.record import AppendNode, Record
from harnessd.domain.session import NodeKind

POINTS: dict[str, str] = {
    "J1": "submit read, row not yet committed",
    "J2": "submit committed, not yet acknowledged",
    "J3": "claim committed, worker not yet started",
    "J4": "model-call intent committed, request not yet sent",
    "J5": "request sent, nothing came back yet",
    "J6": "in the middle of a stream",
    "J7": "whole answer here, node not yet committed",
    "J8": "between assistant node and effect intent (one transaction: nothing lies between)",
    "J9": "effect intent committed, tool not yet started",
    "J10": "tool started, its identity not yet known to anybody else",
    "J11": "tool running",
    "J12": "tool done, outcome not yet committed",
    "J13": "inside the unit of outcome and result node (one transaction: nothing lies between)",
    "J14": "result node committed, next turn not yet begun",
    "J15": "checkpoint: contents written, row not yet",
    "J16": "rollback: intent committed, files not yet restored",
    "J17": "compaction: summary here, node not yet committed",
    "J18": "budget counter and warning (one transaction)",
    "J19": "handed over to the background, the model not yet told",
    "J20": "question to a person committed, nobody told yet",
    "J21": "terminal state committed, processes not yet ended",
    "J22": "schema migration under way",
    "J23": "policies read and validated, not yet in force",
    "J24": "draining",
    "J25": "backup written, not yet renamed",
    "J26": "write-ahead log checkpoint",
    "J27": "group commit: members applied, COMMIT not yet",
}

# Every name that the code passes; what follows the hyphen says where in the point.
PASSED: tuple[str, ...] = (
    *("J1", "J2", "J3", "J4", "J6", "J7", "J8-before", "J8-after", "J9", "J10", "J12", "J13-before", "J13-after"),
    *("J14-before", "J14-after", "J15-before", "J15", "J16-before", "J16", "J16-file", "J16-end", "J16-after"),
    *("J17", "J17-before", "J17-after", "J18-before", "J18-after", "J19-before", "J19-after", "J20-before"),
    *("J20-after", "J21-before", "J21-after", "J21", "J22-before", "J22-commit", "J22-after", "J23", "J23-after"),
    *("J24", "J24-after", "J25-before", "J25-rename", "J25-after", "J26-before", "J26-after"),
    *("J27-begin", "J27-before", "J27-after"),
)

# Passed by `harnessd restore`, which is a process of its own.
RESTORING: tuple[str, ...] = ("J25-restore", "J25-replace", "J25-aside", "J25-restored")

Crashpoint = Callable[[str], None]


def nowhere(point: str) -> None:
    """The crash point of a daemon that nobody wants to crash."""


def before(records: Sequence[Record], crashpoint: Crashpoint) -> None:
    """Pass the points that lie before a unit of work with these records."""
    if any(isinstance(one, AppendNode) and one.node.kind is NodeKind.COMPACTION for one in records):
        crashpoint("J17")


def from_environment(environ: os._Environ[str] | dict[str, str]) -> Crashpoint:
    """The hook that HARNESSD_CRASH asks for. Raises ValueError for a name that is no crash point."""
    wanted = environ.get("HARNESSD_CRASH", "")
    if not wanted:
        return nowhere
    name, _, rest = wanted.partition(":")
    hit, _, stop = rest.partition(":")
    if name not in (*PASSED, *RESTORING):
        raise ValueError(f"HARNESSD_CRASH={wanted!r}: {name!r} is no crash point; they are {', '.join(PASSED)}")
    left = int(hit or 1)

    def crash(point: str) -> None:
        nonlocal left
        if point == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP if stop == "stop" else signal.SIGKILL)

    return crash
