"""Bench: what the disk of this machine makes of the store, measured in a scratch folder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from harnessd.cli import render
from harnessd.cli.options import json_option

if TYPE_CHECKING:
    from harnessd.cli.bench.measure import Found

_BUSY_STEPS_PER_S = 2.0  # a task at work that never waits for its model
# One sync of a disk that keeps its word: from the fastest flash with a capacitor to a busy spinning disk.
_TOO_FAST_S, _SLOW_S = 0.00003, 0.015


@click.command()
@click.option("--config", type=click.Path(), help="harness.yaml, which says where the store lies.")
@click.option("--dir", "folder", type=click.Path(file_okay=False), help="Measure the disk of this folder instead.")
@click.option("--seconds", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="For each measurement.")
@json_option
def bench(config: str | None, folder: str | None, seconds: float, as_json: bool) -> int:
    """What the disk under the store can do: its sync, and durable steps a second by the real store.

    Works in a scratch folder beside the state folder and takes it away again. The store itself is never opened, and a
    running daemon is not asked; it shares the disk, so measure when it has little to do.
    """
    from harnessd.cli.bench.measure import measure, place

    found = measure(place(config, folder), seconds)
    if as_json:
        render.out_json(found.json() | {"means": meaning(found)})
    else:
        _show(found)
    return 0


def meaning(found: Found) -> list[str]:
    """The figures in sentences."""
    sync = found.sync
    told = []
    if sync.p50_s < _TOO_FAST_S:
        told.append(
            "A sync is faster than any disk: this one may answer before the data is safe, and a power failure then "
            "takes back what was acknowledged. Is the folder in memory, or the write cache without a battery?"
        )
    elif sync.p50_s > _SLOW_S:
        told.append(
            "A sync takes long: each step of a task waits for one. Many tasks share a sync, so throughput suffers less "
            "than a single task does; a disk of its own for the state folder helps most."
        )
    most = found.steps[-1]
    tasks = most.per_s / _BUSY_STEPS_PER_S
    told.append(
        f"{most.sessions} tasks at once make {most.per_s:.0f} durable steps a second: room for about {tasks:.0f} tasks "
        f"that each make {_BUSY_STEPS_PER_S:.0f} steps a second. Tasks that wait for a model make far fewer."
    )
    alone = found.steps[0]
    told.append(f"One task alone waits {_ms(alone.p50_s)} for each durable step (99 of 100: {_ms(alone.p99_s)}).")
    return told


def _show(found: Found) -> None:
    render.out(f"scratch folder beside {render.one_line(found.folder)}, {found.seconds:g}s each; taken away again")
    render.out()
    rows: list[Sequence[object]] = [["sync of 4KiB (fdatasync)", f"{found.sync.per_s:.0f}", *_times(found.sync)]]
    rows += [
        [f"durable steps, {one.sessions} task{'s' * (one.sessions > 1)}", f"{one.per_s:.0f}", *_times(one)]
        for one in found.steps
    ]
    render.out_lines(render.table(rows, ["WHAT", "A SECOND", "MEDIAN", "99 OF 100"], (1, 2, 3)))
    render.out()
    for sentence in meaning(found):
        render.out(sentence)


def _times(one: Any) -> Sequence[str]:
    return _ms(one.p50_s), _ms(one.p99_s)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
