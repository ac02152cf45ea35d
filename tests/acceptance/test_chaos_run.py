"""`harnessctl chaos run`: availability behind each layer, measured on a real daemon, beside what arithmetic expects."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from harnessd.cli.chaos.layers import FALLBACKS, LAYERS, PRIMARY, Layer, policies
from harnessd.cli.chaos.measure import GOAL, reached
from harnessd.cli.chaos.mix import Mix, script
from harnessd.cli.chaos.world import Found
from harnessd.simulator.script import read_document
from tests.control_server import CLIENT, client_environment
from tests.policy.written import harness, read, repository

TASKS = 15  # a layer


def test_the_formula() -> None:  # R8.2
    alone, later = Mix(), 3
    assert alone.failing == pytest.approx(0.41)
    assert Layer("none", "", 0, 1, view=False).answered(alone, later) == pytest.approx(0.59)
    # 90 % of what can be repaired is repaired by a retry: the 88.7 % of the mission.
    assert Layer("retry", "", 10, 1, view=False).answered(alone, later) == pytest.approx(0.887)
    assert Layer("all", "", 10, 2).answered(alone, later) == pytest.approx(1 - 0.08**2)
    expected = [layer.done(alone) for layer in LAYERS]
    assert expected == sorted(expected)
    assert expected[-1] >= GOAL
    assert [layer.expected(alone) for layer in LAYERS] == sorted(layer.expected(alone) for layer in LAYERS)


def test_the_drawn_shares_are_those_of_the_mix() -> None:  # R8.2
    for long in (True, False):
        left, shares = 1.0, Counter[str]()
        for rate in Mix().faults():
            if ("under" if long else "over") in rate:
                continue
            sort = "lasting" if rate.get("lasting") and "over" not in rate else "view" if "over" in rate else "passing"
            shares[sort] += left * rate["p"]
            left -= left * rate["p"]
        assert 1 - left == pytest.approx(0.41, abs=1e-4)
        assert shares["lasting"] == pytest.approx(0.08, abs=1e-4)


def test_the_simulator_takes_the_script() -> None:
    assert read_document({"models": {PRIMARY: script(Mix(), 7, "127.0.0.1:1")}}, "campaign", "x")


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_the_policies_of_each_layer_are_valid(layer: Layer) -> None:
    about = '{protocol: anthropic, base_url: "http://127.0.0.1:1", model: m, window: 1k, max_output: 1k, prices: free}'
    models = "\n".join(f"  {alias}: {about}" for alias in (PRIMARY, *FALLBACKS))
    settings = harness(f"models:\n{models}\nagents:\n  worker: {{model: {PRIMARY}}}\n")
    made, problems, _ = read(policies(layer), settings=settings)
    assert made is not None, problems


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        (Found(2000, 1999, 8900, 5997, 6000, 5999, 0, 0, 0.7, {}), True),
        (Found(2000, 1998, 8900, 5994, 6000, 5999, 0, 0, 0.7, {}), False),
        (Found(2000, 2000, 9601, 6000, 6000, 6000, 0, 0, 0.7, {}), False),
        (Found(2000, 2000, 8900, 6000, 6000, 6000, 1, 0, 0.7, {}), False),
        (Found(2000, 2000, 8900, 6000, 6000, 6000, 0, 1, 0.7, {}), False),
        (Found(50, 49, 220, 147, 150, 149, 0, 0, 0.7, {}), True),
    ],
)
def test_the_goal(found: Found, fits: bool) -> None:
    assert reached(found) is fits


@pytest.mark.acceptance
def test_the_table_is_measured(tmp_path: Path) -> None:  # R8.1, R8.2
    command = [*CLIENT, "chaos", "run", "--tasks", str(TASKS), "--seed", "11", "--json"]
    environment = client_environment(None, {"PYTHONPATH": str(repository())})
    ran = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment, timeout=110, check=False)
    assert ran.stdout, ran.stderr.decode()
    rows = json.loads(ran.stdout)["layers"]
    assert [row["layer"] for row in rows] == [layer.name for layer in LAYERS]
    for row in rows:
        assert row["tasks"] == TASKS
        assert (row["duplicates"], row["untrue"]) == (0, 0), row
        assert row["requests"] <= 2.0 * row["begun"]
        assert 0 < row["by_time"] <= 1
    bare, retried, contained, *_ = rows
    # Three standard deviations of some 35 and 50 draws.
    assert bare["requests_availability"] == pytest.approx(bare["requests_expected"], abs=0.25)
    assert retried["requests_availability"] == pytest.approx(retried["requests_expected"], abs=0.14)
    assert bare["done"] < retried["done"] < contained["done"]
    assert contained["requests_for_each_needed"] <= 2.0
    # What line 2 leaves is for the lines behind it alone.
    assert set(contained["left"]) <= {"context_overflow", "execution_failed", "invalid_request"}
    assert contained["done"] + sum(contained["left"].values()) == TASKS
