"""A gate: our figure beside its control's, taken in one run, and the ratio that is promised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

HEADINGS = ("gate", "ours", "control", "ratio", "target", "")


@dataclass(frozen=True, slots=True)
class Gate:
    """One promise. `ratio` is ours / control; None where a control makes no sense and `ours` itself is bounded."""

    name: str
    ours: float
    control: float | None
    target: float
    sense: Literal["at least", "at most"]
    unit: str = ""
    against: str = ""

    @property
    def figure(self) -> float:
        """What is compared with the target."""
        if self.control is None:
            return self.ours
        return self.ours / self.control if self.control else float("inf")

    @property
    def kept(self) -> bool:
        """The promise holds in this run."""
        return self.figure >= self.target if self.sense == "at least" else self.figure <= self.target

    def cells(self) -> tuple[str, ...]:
        """The gate as a row of the table."""
        sign = ">=" if self.sense == "at least" else "<="
        times = "x" if self.control is not None else ""
        return (
            self.name,
            f"{short(self.ours)} {self.unit}".strip(),
            f"{short(self.control)} {self.against}".strip() if self.control is not None else "-",
            f"{short(self.figure)}x" if self.control is not None else "-",
            f"{sign} {short(self.target)}{times}",
            "ok" if self.kept else "MISSED",
        )


def short(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(gates: Iterable[Gate]) -> str:
    """All gates, aligned."""
    rows = [HEADINGS, *(gate.cells() for gate in gates)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
