"""`harnessctl chaos run`: availability behind each layer, measured on a real daemon, beside what arithmetic expects."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harnessd.cli.chaos.layers import LAYERS, Layer, Mix, policies
from tests.control_server import CLIENT, client_environment
from tests.policy.written import harness, read, repository


def test_the_formula() -> None:  # R8.2
    assert Layer("none", 0, 1).expected(Mix()) == pytest.approx(0.59)
    assert Layer("one retry", 1, 1).expected(Mix()) == pytest.approx(0.59 + 0.33 * 0.59)
    assert Layer("patient", 1000, 1).expected(Mix(0.33, 0.0)) == pytest.approx(1.0)
    assert Layer("two links", 0, 2).expected(Mix()) == pytest.approx(1 - 0.41**2)
    expected = [layer.expected(Mix()) for layer in LAYERS]
    assert expected == sorted(expected)
    assert expected[-1] >= 0.9992  # the goal of R8.2


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_the_policies_of_each_layer_are_valid(layer: Layer) -> None:
    about = '{protocol: anthropic, base_url: "http://127.0.0.1:1", model: m, window: 1k, max_output: 1k, prices: free}'
    models = "\n".join(f"  m{number}: {about}" for number in range(4))
    settings = harness(f"models:\n{models}\nagents:\n  worker: {{model: m0}}\n")
    made, problems, _ = read(policies(layer, Mix(), 7), settings=settings)
    assert made is not None, problems


@pytest.mark.acceptance
def test_the_table_is_measured(tmp_path: Path) -> None:  # R8.1, R8.2
    command = [*CLIENT, "chaos", "run", "--tasks", "25", "--seed", "11", "--json"]
    environment = client_environment(None, {"PYTHONPATH": str(repository())})
    ran = subprocess.run(command, capture_output=True, cwd=tmp_path, env=environment, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    rows = json.loads(ran.stdout)["layers"]
    assert [row["layer"] for row in rows] == [layer.name for layer in LAYERS]
    first, repaired, *rest = rows
    # Three standard deviations of 25 draws.
    assert first["availability"] == pytest.approx(0.59, abs=0.3)
    assert repaired["availability"] == pytest.approx(repaired["expected"], abs=0.2)
    assert repaired["availability"] > first["availability"]
    assert rest[-1]["done"] >= 24
    assert all(0 < row["by_time"] <= 1 for row in rows)
