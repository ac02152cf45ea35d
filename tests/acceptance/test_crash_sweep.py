"""kill -9 at seeded moments and at every crash point: nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.proofs import points
from benchmarks.proofs.history import Classes
from benchmarks.proofs.kills import CHUNK, Stage, chunk, stage
from benchmarks.proofs.living import living
from benchmarks.proofs.scripts import configuration
from harnessd.runtime import crashpoints

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
# The share of `make crash-sweep` and of `make crash-points`: 150 kills, and every point at one seeded pass.
FOLDERS = 6
SEED = 1000
PARTS = 4


@pytest.fixture(scope="module")
def on() -> Iterator[Stage]:
    with stage() as found:
        yield found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + FOLDERS))
def test_the_books_balance_after_25_kills(seed: int, tmp_path: Path, on: Stage) -> None:
    # G1, G7, R6.1, R5.1, R2.2, R4.7, R3.13
    found = chunk(on, tmp_path, seed)
    assert found.broken == []
    assert (found.kills, found.lost, found.unexpected, found.duplicated) == (CHUNK, 0, 0, 0)
    assert found.acknowledged > 5
    assert found.escalated == found.in_doubt


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_crash_point_is_survived(part: int, on: Stage) -> None:
    # G2, R6.1
    totals = Classes()
    for verdict in points.sweep(on, points.share(SEED)[part::PARTS], SEED):
        assert verdict.broken == [], str(verdict.passing)
        totals.add(verdict.books)
    assert totals.lost == totals.unexpected == totals.duplicated == 0
    assert totals.acknowledged


def test_how_many_unclean_starts_hold_tasks_is_a_setting(tmp_path: Path, on: Stage) -> None:
    # R6.1a, g15
    on.service.control_now(hold=True)
    try:
        with living(tmp_path, on.warm, on.outside, on.service.url) as one:
            document = configuration(tmp_path, on.service.url) | {"restarts": {"unclean": 2, "within": "1m"}}
            one.running.configure(document)
            for _ in range(2):
                one.spawn()
                one.await_ready()
                task = one.submit("held", "payer")
                while one.get(f"/v1/tasks/{task}")["state"] != "running":
                    time.sleep(0.01)
                one.kill("once more")
            one.spawn()
            one.await_ready()
            row = one.get(f"/v1/tasks/{task}")
            assert row["state"] == "paused"
            assert "started 2 times within 1 minute after unclean ends" in row["why"]
            on.service.control_now(hold=False)
            on.service.control_now(release=True)
            one.heal()
            assert one.stop() == 0
    finally:
        on.service.control_now(hold=False)
        on.service.control_now(release=True)


def test_the_list_of_crash_points_is_what_the_code_passes() -> None:
    # G2: complete instead of lucky
    found = set()
    for path in (ROOT / "harnessd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("crashpoint"):
                found |= names_of(node.args[0])
    assert found == {*crashpoints.PASSED, *crashpoints.RESTORING}
    passed = {name.partition("-")[0] for name in crashpoints.PASSED}
    assert passed | set(points.FROM_OUTSIDE) == set(crashpoints.POINTS)


def names_of(argument: ast.expr) -> set[str]:
    """The names that a call of the hook can mean; the store's journal makes its own from the unit's records."""
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    assert isinstance(argument, ast.JoinedStr), ast.unparse(argument)
    where = ast.unparse(argument).partition("-")[2].rstrip("'")
    return {f"{unit}-{where}" for unit in ("J8", "J13", "J14", "J16", "J17", "J18", "J20", "J21")}
