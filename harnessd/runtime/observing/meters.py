"""Meters: counters, gauges and histograms with bounded labels, and their text form for Prometheus.

The form is https://prometheus.io/docs/instrumenting/exposition_formats (text, version 0.0.4). Nothing here is shared
between processes or looks at a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERIES_MAX = 500  # of one meter: a label that somebody could make up must not fill memory
OTHER = "other"  # the values of a series beyond that

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: what follows the meter's name, label names and values, the value."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(slots=True)
class Meter:
    """A counter or a gauge. `labels` are the names; each series is a tuple of values in that order."""

    name: str
    help: str
    kind: Kind
    labels: Labels = ()
    series: dict[Labels, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """What has no labels is there from the start: an alert on its rate needs the 0 before the 1."""
        if not self.labels and self.kind != "histogram":
            self.series[()] = 0.0

    def add(self, amount: float = 1.0, *values: str) -> None:
        """Count."""
        key = self._bounded(values)
        self.series[key] = self.series.get(key, 0.0) + amount

    def set(self, value: float, *values: str) -> None:
        """A gauge's value now."""
        self.series[self._bounded(values)] = value

    def become(self, values: Mapping[Labels, float]) -> None:
        """All series of a gauge at once: what is not named is not there any more."""
        self.series = {}
        for labels, value in values.items():
            self.set(value, *labels)

    def samples(self) -> Iterator[Sample]:
        """The series, in order."""
        for values, value in sorted(self.series.items()):
            yield Sample("", tuple(zip(self.labels, values, strict=True)), value)

    def _bounded(self, values: Sequence[str]) -> Labels:
        key = clean(values)
        if key in self.series or len(self.series) < SERIES_MAX:
            return key
        return tuple(OTHER for _ in key)


@dataclass(slots=True)
class Distribution:
    """One series of a histogram: how many values fell into each bucket (the last one is without bound), their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        """No value was seen yet."""
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Histogram:
    """A histogram; `bounds` are the upper bounds of its buckets, inclusive, rising."""

    name: str
    help: str
    bounds: tuple[float, ...]
    labels: Labels = ()
    series: dict[Labels, Distribution] = field(default_factory=dict)
    kind: Kind = "histogram"

    def observe(self, value: float, *values: str) -> None:
        """One more value."""
        self.of(*values).add(value)

    def of(self, *values: str) -> Distribution:
        """One series; made where it is not there."""
        found = self.series.get(values)
        if found is None:
            key = clean(values) if len(self.series) < SERIES_MAX else tuple(OTHER for _ in values)
            found = self.series.setdefault(key, Distribution(self.bounds))
        return found

    def samples(self) -> Iterator[Sample]:
        """Buckets that hold everything up to their bound, sum and count, for each series."""
        for values, one in sorted(self.series.items()):
            labels = tuple(zip(self.labels, values, strict=True))
            below = 0
            for bound, count in zip((*one.bounds, float("inf")), one.counts, strict=True):
                below += count
                yield Sample("_bucket", (*labels, ("le", number(bound))), below)
            yield Sample("_sum", labels, one.total)
            yield Sample("_count", labels, below)


AnyMeter = Meter | Histogram


def exposition(meters: Iterable[AnyMeter]) -> str:
    """The text form: one block for each meter that has a series."""
    lines: list[str] = []
    for meter in meters:
        samples = list(meter.samples())
        if samples:
            lines += (f"# HELP {meter.name} {_escaped_help(meter.help)}", f"# TYPE {meter.name} {meter.kind}")
            lines += (_line(meter.name, sample) for sample in samples)
    return "\n".join(lines) + "\n"


def clean(values: Sequence[str]) -> Labels:
    """Values of labels; half a surrogate pair has no UTF-8, and cleaned later could be a twin of another series."""
    return tuple(value if value.isascii() else value.encode("utf-8", "replace").decode() for value in values)


def number(value: float) -> str:
    """A number as Prometheus reads it (Go's ParseFloat): `17`, `0.25`, `+Inf`, `NaN`."""
    if value != value:  # noqa: PLR0124 - NaN alone is not itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sample.labels)
    return f"{name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
