"""World: where the campaign's tasks work, and what is found there afterwards; nobody's word counts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harnessd.cli.chaos.mix import FILES, LINES


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one layer's tasks. `by_time`: faultless time / total time; `left`: why the others ended."""

    tasks: int
    done: int
    requests: int
    needed: int
    begun: int
    answered: int
    duplicates: int
    untrue: int
    by_time: float
    left: Mapping[str, int]


def lay_out(space: Path) -> None:
    """A workspace with the files that are read."""
    space.mkdir(parents=True)
    for name in FILES:
        text = "".join(f"line {number} of {name}, kept so that a request is long.\n" for number in range(1, LINES + 1))
        (space / name).write_text(text, encoding="utf-8")


def look(
    spaces: Path, rows: Sequence[Mapping[str, Any]], signed_of: Callable[[str], int], requests: int, per_task: int
) -> Found:
    """Compare what the daemon says of its tasks with what the service signed and what lies in the workspaces.

    `signed_of` gives how often the job of a workspace was signed. What a poisoned path left must be gone.
    """
    done, duplicates, untrue, answered, begun = [], 0, 0, 0, 0
    left: dict[str, int] = {}
    for row in rows:
        space = Path(row["workspace"])
        signed = signed_of(space.name)
        real, said = signed >= 1 and not (space / "wrong.txt").exists(), row["state"] == "completed"
        duplicates += signed > 1
        untrue += said and not real
        if said and real:
            done.append(row)
        else:
            reason = str(row["class"] or row["reason"] or row["state"]) if not said else "completed, but not done"
            left[reason] = left.get(reason, 0) + 1
        turns = int(row["turns"])
        answered += min(turns, per_task)
        begun += min(per_task, turns + (not said))
    shutil.rmtree(spaces, ignore_errors=True)
    needed = per_task * len(done)
    return Found(
        len(rows), len(done), requests, needed, begun, answered, duplicates, untrue, _by_time(rows, done), left
    )


def _by_time(rows: Sequence[Mapping[str, Any]], done: Sequence[Mapping[str, Any]]) -> float:
    """What tasks take without faults, of what all of them took; the time of one that is not done was all fault.

    A task with few requests is often spared: the fastest tenth of those that are done stands for a faultless one.
    """
    took = sorted(row["ended_at"] - row["started_at"] for row in done)
    if not took:
        return 0.0
    clean_s = median(took[: max(1, len(took) // 5)])
    # One that waits for a person has no end; it counts as one that is not done all the same.
    total_s = sum(row["ended_at"] - row["started_at"] for row in rows if row["ended_at"] and row["started_at"])
    return sum(min(one, clean_s) for one in took) / total_s if total_s else 1.0
