"""Prometheus' text form, read strictly: whatever a scraper could refuse or misread is an AssertionError here."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_HELP = re.compile(rf"# HELP ({_NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram|summary|untyped)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,(?=[a-zA-Z_])|$)')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """A metric with its samples: (suffix, labels) -> value."""

    name: str
    help: str
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, **labels: str) -> float:
        return self.samples["", tuple(sorted(labels.items()))]


def parse(text: str) -> dict[str, Family]:
    """All families."""
    assert text.endswith("\n")
    families: dict[str, Family] = {}
    current: Family | None = None
    told = ""
    for line in text[:-1].split("\n"):
        if found := _HELP.fullmatch(line):
            assert found[1] not in families, f"{found[1]} is there twice"
            current, told = None, line
        elif found := _TYPE.fullmatch(line):
            helped = _HELP.fullmatch(told)
            assert helped is not None, line
            assert helped[1] == found[1], line
            assert helped[2].strip(), line
            current = families[found[1]] = Family(found[1], helped[2], found[2])
        else:
            assert current is not None, line
            _sample(current, line)
    for family in families.values():
        _check(family)
    return families


def _sample(family: Family, line: str) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found is not None, line
    suffix = found[1].removeprefix(family.name)
    assert found[1].startswith(family.name), line
    assert suffix in _SUFFIXES[family.kind], line
    labels = _labels(found[2] or "", line)
    assert len({name for name, _ in labels}) == len(labels), line
    key = (suffix, tuple(sorted(labels)))
    assert key not in family.samples, line
    family.samples[key] = float(found[3])


def _labels(text: str, line: str) -> list[tuple[str, str]]:
    labels, at = [], 0
    while at < len(text):
        found = _LABEL.match(text, at)
        assert found is not None, line
        raw = re.sub(r'\\([\\n"])', lambda one: {"n": "\n"}.get(one[1], one[1]), found[2])
        labels.append((found[1], raw))
        at = found.end()
    return labels


def _check(family: Family) -> None:
    assert family.samples, family.name
    if family.kind == "counter":
        assert family.name.endswith("_total"), family.name
        assert all(value >= 0 for value in family.samples.values())
    else:
        assert not family.name.endswith("_total"), family.name
    if family.kind == "histogram":
        _check_histogram(family)


def _check_histogram(family: Family) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (suffix, labels), value in family.samples.items():
        if suffix == "_bucket":
            le = float(dict(labels)["le"])
            series.setdefault(tuple(pair for pair in labels if pair[0] != "le"), []).append((le, value))
    assert series, family.name
    for labels, buckets in series.items():
        bounds, counts = zip(*buckets, strict=True)
        assert list(bounds) == sorted(bounds), family.name
        assert math.isinf(bounds[-1]), family.name
        assert list(counts) == sorted(counts), family.name
        assert family.samples["_count", labels] == counts[-1]
        assert ("_sum", labels) in family.samples
