"""Meters and their text form: names, escapes, buckets, bounds on what labels can grow to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessd.runtime.observing.figures import Figures
from harnessd.runtime.observing.meters import SERIES_MAX, Histogram, Meter, exposition, number
from tests.prometheus_text import parse


@given(st.lists(st.text(), min_size=1, max_size=4), st.text(min_size=1))
def test_any_label_and_any_help_come_through(values: list[str], told: str) -> None:
    meter = Meter("x", told.strip() or "help", "gauge", ("name",))
    for at, value in enumerate(values):
        meter.set(at, value)
    found = parse(exposition([meter]))["x"]
    for value in values:
        clean = value.encode("utf-8", "replace").decode()
        assert found.value(name=clean) in range(len(values))


def test_a_histogram_counts_upwards_and_a_bound_is_inclusive() -> None:
    histogram = Histogram("t_seconds", "Time.", (0.1, 1.0), ("model",))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value, "m")
    found = parse(exposition([histogram]))["t_seconds"]
    assert [found.samples["_bucket", (("le", le), ("model", "m"))] for le in ("0.1", "1", "+Inf")] == [2, 3, 4]
    assert found.samples["_sum", (("model", "m"),)] == pytest.approx(7.65)


def test_labels_that_somebody_makes_up_cannot_fill_memory() -> None:
    meter = Meter("x_total", "x", "counter", ("tool",))
    histogram = Histogram("x_seconds", "x", (1.0,), ("tool",))
    for at in range(SERIES_MAX * 2):
        meter.add(1, f"tool{at}")
        histogram.observe(1.0, f"tool{at}")
    assert len(meter.series) == len(histogram.series) == SERIES_MAX + 1
    assert meter.series["other",] == SERIES_MAX
    assert sum(meter.series.values()) == SERIES_MAX * 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.25, "0.25"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"), (float("nan"), "NaN"), (True, "1")],
)
def test_numbers_are_written_as_a_scraper_reads_them(value: float, text: str) -> None:
    assert number(value) == text


def test_every_figure_has_a_name_by_the_conventions() -> None:
    names = [meter.name for meter in Figures()]
    assert len(set(names)) == len(names)
    for meter in Figures():
        assert meter.name.startswith(("harnessd_", "process_"))
        assert meter.help.endswith(".")
        assert meter.name.endswith("_total") == (meter.kind == "counter")
        assert not set(meter.labels) & {"le", "task", "trace"}  # what grows without bound is no label
    # What has no label is there before anything happens: a rate needs the 0.
    found = parse(exposition(Figures()))
    assert found["harnessd_effects_unknown_total"].value() == 0
