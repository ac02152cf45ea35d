"""Points: the daemon is killed at every named crash point, at its first, second and third pass, and recovers (G2).

    python benchmarks/proofs/points.py --seeds 20

Each run is a folder of its own: a scene that passes the point, a daemon that is armed for it (`HARNESSD_CRASH`), its
death, another start, and then the scene once more from wherever it stands, to its end. A point that is not reached is a
failure of the sweep. J5 and J11 lie in other processes: the daemon is killed when the model service holds the request,
and when the tool says that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.proofs.history import Classes
from benchmarks.proofs.kills import Stage, refused, stage
from benchmarks.proofs.living import Died, Living, living
from benchmarks.proofs.scripts import STEPS
from harnessd.cli.client import Problem
from harnessd.runtime.crashpoints import PASSED

Scene = Callable[[Living], None]
TIMES = 3  # tasks of a scene, and so passes of its points


# --- scenes: each may be cut off anywhere, and is called again from its beginning -------------------------------------


def _tasks(one: Living, agent: str, **more: object) -> None:
    for number in range(TIMES):
        if f"{agent}-{number}" not in one.tasks:
            one.submit(f"{agent}-{number}", agent, **more)
    one.heal()


def acts(one: Living) -> None:
    """Submit, claim, call a model, act outside, end."""
    _tasks(one, "payer")


def commands(one: Living) -> None:
    """Acts by commands."""
    _tasks(one, "caller")


def files(one: Living) -> None:
    """Work in the workspace, with checkpoints before and after it."""
    _tasks(one, STEPS)


def compaction(one: Living) -> None:
    """Histories that outgrow the window."""
    _tasks(one, "bulky")


def budget(one: Living) -> None:
    """Budgets that are used up to 80 %: one warning each."""
    _tasks(one, "frugal", budget={"turns": 5})


def background(one: Living) -> None:
    """Commands that outlive their time limit."""
    _tasks(one, "jobber")


def person(one: Living) -> None:
    """Acts that need a person's yes."""
    _tasks(one, "asker")


def rollback(one: Living) -> None:
    """A task that is done and taken back, again and again; each time it does its steps anew."""
    task = one.tasks.get("back") or one.submit("back", STEPS)
    for number in range(TIMES):
        one.heal()
        wish = {"to": "n1", "prompt": f"Do your acts, run back, time {number}."}
        with contextlib.suppress(Problem):  # one that a crash cut off is carried to its end first
            one.history.ask("rollback", f"back-{number}", {"task": task}, lambda: one.post(_of(task), wish))  # noqa: B023
    one.heal()


def _of(task: str) -> str:
    return f"/v1/tasks/{task}/rollback"


def policies(one: Living) -> None:
    """Policies that change under running tasks."""
    for number in range(TIMES):
        one.policies(61 + number)
    acts(one)


def drain(one: Living) -> None:
    """SIGTERM while tasks are under way; called again, they are brought to their end."""
    if not one.history.kills:
        for number in range(TIMES):
            one.submit(f"payer-{number}", "payer")
        assert one.stop() == -9, "it was stopped in order"
        raise Died
    acts(one)


def backup(one: Living) -> None:
    """Backups while tasks are under way: each is whole, or not there."""
    for number in range(TIMES):
        if f"payer-{number}" not in one.tasks:
            one.submit(f"payer-{number}", "payer")
        target = one.running.folder / f"backup-{number}.db"
        with contextlib.suppress(Problem):  # it is there already
            one.post("/v1/backup", {"file": str(target)})
    one.heal()


SCENES: dict[str, tuple[Scene, int]] = {
    "J1": (acts, 3),
    "J2": (acts, 3),
    "J3": (acts, 3),
    "J4": (acts, 3),
    "J6": (acts, 3),
    "J7": (acts, 3),
    "J8": (acts, 3),
    "J9": (acts, 3),
    "J10": (commands, 3),
    "J12": (acts, 3),
    "J13": (acts, 3),
    "J14": (acts, 3),
    "J15": (files, 3),
    "J16": (rollback, 3),
    "J17": (compaction, 3),
    "J18": (budget, 3),
    "J19": (background, 3),
    "J20": (person, 3),
    "J21": (acts, 3),
    "J22": (acts, 3),
    "J23": (policies, 3),
    "J24": (drain, 1),
    "J25": (backup, 3),
    "J26": (drain, 1),
    "J27": (acts, 3),
}
FROM_OUTSIDE = ("J5", "J11")


@dataclass(frozen=True, slots=True)
class Passing:
    """One run: a point and its pass."""

    point: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.point}:{self.hit}"


@dataclass(slots=True)
class Verdict:
    """What one run found."""

    passing: Passing
    seed: int
    reached: bool
    books: Classes
    took_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """Everything that did not hold."""
        missed = [] if self.reached else ["the point was not reached"]
        return [*missed, *self.problems, *self.books.broken]


def passings(points: tuple[str, ...] = (*PASSED, *FROM_OUTSIDE)) -> list[Passing]:
    """Every point with every pass that its scene has."""
    found = []
    for point in points:
        hits = 1 if point in FROM_OUTSIDE else SCENES[point.partition("-")[0]][1]
        found += [Passing(point, hit) for hit in range(1, hits + 1)]
    return found


def share(seed: int) -> list[Passing]:
    """Every point once, at a seeded pass: what CI runs."""
    luck = random.Random(seed)
    return [luck.choice(passings((point,))) for point in (*PASSED, *FROM_OUTSIDE)]


def run(on: Stage, folder: Path, passing: Passing, seed: int) -> Verdict:
    """Arm, die, recover, compare."""
    begun = time.monotonic()
    on.outside.reset()
    on.service.reset_now()
    scene = acts if passing.point == "J5" else background if passing.point == "J11" else _scene(passing)
    with living(folder, on.warm, on.outside, on.service.url) as one:
        verdict = Verdict(passing, seed, reached=False, books=Classes())
        try:
            verdict.reached = _die(one, on, passing, scene, seed)
            verdict.problems += one.broken_now()
            one.spawn()
            one.await_ready()
            scene(one)
            if (status := one.stop()) != 0:
                verdict.problems.append(f"the daemon that recovered ended with {status}")
            verdict.books = one.books()
            verdict.problems += refused(on.service)
        except (AssertionError, Died) as fault:
            verdict.problems.append(str(fault) or "the daemon that recovered died")
        verdict.problems += _unsound(folder)
        if verdict.broken:
            verdict.problems.append(one.running.log[-1500:])
    verdict.took_s = time.monotonic() - begun
    return verdict


def _scene(passing: Passing) -> Scene:
    return SCENES[passing.point.partition("-")[0]][0]


def _die(one: Living, on: Stage, passing: Passing, scene: Scene, seed: int) -> bool:
    """Let the scene run until the daemon is dead; whether it died at the point."""
    if passing.point in FROM_OUTSIDE:
        return _die_from_outside(one, on, passing)
    one.spawn(HARNESSD_CRASH=str(passing))
    try:
        one.await_ready()
        for number in range(random.Random(seed).randrange(3)):  # other tasks beside: other batches, other moments
            one.submit(f"beside-{number}", "payer")
        scene(one)
    except Died:
        one.kill(str(passing))
        return True
    with contextlib.suppress(AssertionError):
        one.stop()
    one.history.kills.append(f"{passing}, not reached")
    return False


def _die_from_outside(one: Living, on: Stage, passing: Passing) -> bool:
    one.spawn()
    one.await_ready()
    if passing.point == "J5":
        on.service.control_now(hold=True)
        one.submit("payer-0", "payer")
        until = time.monotonic() + 30
        while not (held := on.service.requests_now(last=1)["held"]) and time.monotonic() < until:
            time.sleep(0.01)
        one.kill("J5: the request is at the service")
        on.service.control_now(hold=False)
        on.service.control_now(release=True)
        return bool(held)
    one.submit("jobber-0", "jobber")
    reached = on.outside.wait_busy("jobber-0", one.gone)
    one.kill("J11: the tool runs")
    return reached


def _unsound(folder: Path) -> Iterator[str]:
    """Backups that are there must be whole."""
    for file in folder.glob("backup-*.db"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            try:
                health = connection.execute("PRAGMA integrity_check").fetchone()[0]
            except sqlite3.Error as error:
                health = str(error)
        if health != "ok":
            yield f"J25: {file.name} is not whole: {health}"


def sweep(on: Stage, runs: list[Passing], seed: int, *, say: bool = True) -> list[Verdict]:
    """All runs of one seed."""
    verdicts = []
    for passing in runs:
        with tempfile.TemporaryDirectory(prefix="points-") as folder:
            verdict = run(on, Path(folder), passing, seed)
        verdicts.append(verdict)
        if say:
            words = "ok" if not verdict.broken else "BROKEN: " + "; ".join(verdict.broken)
            print(f"seed {seed}  {passing!s:14} {verdict.took_s:5.1f} s  {words}", flush=True)
    return verdicts


def main() -> int:
    """Run the sweep and print its books."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="how often all of it is run")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--point", action="append", help="only this one: J9, J14-after, J9:2")
    parser.add_argument("--share", action="store_true", help="each point at one pass only, as CI does")
    asked = parser.parse_args()
    totals, verdicts = Classes(), []
    with stage() as on:
        for seed in range(asked.seed, asked.seed + asked.seeds):
            runs = share(seed) if asked.share else passings()
            if asked.point:
                runs = [one for one in passings() if {one.point, str(one), one.point.split("-")[0]} & set(asked.point)]
            verdicts += sweep(on, runs, seed)
    for verdict in verdicts:
        totals.add(verdict.books)
    names = {verdict.passing.point for verdict in verdicts if verdict.reached}
    wrong = [verdict for verdict in verdicts if verdict.broken]
    print(totals.line())
    print(f"{len(verdicts)} runs, {len(names)} of {len(PASSED) + len(FROM_OUTSIDE)} points reached, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
