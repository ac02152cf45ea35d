"""Figures: Count, Number, Ratio, Duration, Size, Usd: each in one spelling, with bounds, in its base unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from harnessd.policy.language.source import Scalar, misread, quoted
from harnessd.policy.values import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded(Reader):
    """A figure with bounds, in its base unit; `low_text`, `high_text` are the bounds as written."""

    low: str = "0"
    high: str | None = None

    def figure(self, text: str) -> float:
        """The figure a text means. Raises ValueError with the remedy as its text."""
        raise NotImplementedError

    def value(self, scalar: Scalar) -> Any:
        try:
            number = self.figure(scalar.text)
        except ValueError as error:
            raise misread(scalar, f"{quoted(scalar)} is not {self.article}", str(error)) from None
        if number < self.figure(self.low) or (self.high is not None and number > self.figure(self.high)):
            raise misread(scalar, f"{quoted(scalar)} is out of bounds", f"write {self.bounds}")
        return number

    @property
    def bounds(self) -> str:
        return f"{self.low}..{self.high}" if self.high is not None else f"at least {self.low}"


def _unquoted(scalar: Scalar, article: str) -> None:
    """Where a number is wanted, a quoted one is a text."""
    if not scalar.plain:
        remedy = f"write {scalar.text.strip()} without quotes"
        raise misread(scalar, f"{quoted(scalar)} is a text, not {article}", remedy)


_THOUSANDS = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Bounded):
    """`90` `200k` `2M`."""

    type_name: ClassVar[str] = "count"

    def figure(self, text: str) -> int:
        match = re.fullmatch(r"(0|[1-9][0-9]{0,15})(k|M)?", text)
        if match:
            return int(match[1]) * _THOUSANDS[match[2] or ""]
        raise ValueError(f"write {self.bounds}" if re.fullmatch(r"[1-9][0-9]{16,}", text) else self._remedy(text))

    def value(self, scalar: Scalar) -> Any:
        if re.fullmatch(r"[0-9]+", scalar.text):
            _unquoted(scalar, self.article)
        return Bounded.value(self, scalar)

    @staticmethod
    def _remedy(text: str) -> str:
        if re.fullmatch(r"0[0-9]+", text):
            would = "8-based number" if re.fullmatch(r"[0-7]+", text) else "text"
            return f"write {int(text)} (YAML 1.1 would have read {would})"
        if re.fullmatch(r"[0-9][0-9_]{0,20}", text):
            return f"write {text.replace('_', '')}"
        if re.fullmatch(r"[0-9]+[Km]", text):
            return f"write {text[:-1]}k or {text[:-1]}M (thousands, millions)"
        if re.fullmatch(r"[0-9]+e[0-9]", text, re.IGNORECASE):
            return f"write {int(float(text))}"
        return "write a whole number such as 90, 200k or 2M"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Bounded):
    """`2` `1.5`."""

    type_name: ClassVar[str] = "number"

    def figure(self, text: str) -> float:
        if re.fullmatch(r"(?:0|[1-9][0-9]{0,15})(?:\.[0-9]{1,9})?", text):
            return float(text)
        raise ValueError("write a number such as 2 or 1.5")

    def value(self, scalar: Scalar) -> Any:
        _unquoted(scalar, self.article)
        return Bounded.value(self, scalar)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usd(Number):
    """`5.00` `50`."""

    type_name: ClassVar[str] = "amount in USD"

    def figure(self, text: str) -> float:
        try:
            return Number.figure(self, text)
        except ValueError:
            bare = re.sub(r"(?i)usd|[$\s]", "", text)
            shown = re.sub(r"^0+(?=[0-9])", "", bare) if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", bare) else "5.00"
            raise ValueError(f"write {shown}") from None

    def value(self, scalar: Scalar) -> Any:
        return Bounded.value(self, scalar) if "$" in scalar.text else Number.value(self, scalar)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio(Bounded):
    """`25%` `0.25`; 0 to 1."""

    type_name: ClassVar[str] = "ratio"
    low: str = "0%"
    high: str | None = "100%"

    def figure(self, text: str) -> float:
        match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)(%)?", text)
        if not match:
            raise ValueError("write 25% or 0.25")
        number = float(match[1])
        if match[2]:
            return number / 100
        if number > 1:
            raise ValueError(f"{text}% or {number / 100:g}?")
        return number


_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration(Bounded):
    """`500ms` `32s` `10m` `2h` `7d` `1h30m`; read as seconds."""

    type_name: ClassVar[str] = "duration"
    low: str = "0s"

    def figure(self, text: str) -> float:
        if not re.fullmatch(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?(?:ms|s|m|h|d))+", text):
            raise ValueError(self._remedy(text))
        parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)", text)
        units = [unit for _, unit in parts]
        if units != sorted(units, key=lambda unit: -_UNIT_S[unit]) or len(set(units)) != len(units):
            raise ValueError("write each unit once, the largest first, as in 1h30m")
        return sum(float(number) * _UNIT_S[unit] for number, unit in parts)

    @staticmethod
    def _remedy(text: str) -> str:
        if re.fullmatch(r"[0-9]{1,9}", text):
            seconds = int(text)
            longer = f" or {seconds // 60}m" if seconds and seconds % 60 == 0 else ""
            return f"write {text}s{longer}"
        match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,2})", text)
        if match:
            first, second = int(match[1]), int(match[2])
            return f"write {first}h{second}m or {first}m{second}s"
        return "write a number with its unit, as 500ms, 32s, 10m, 2h, 7d, 1h30m"


_UNIT_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Bounded):
    """`900B` `64KiB` `1MiB` `20GiB`; read as bytes."""

    type_name: ClassVar[str] = "size"
    low: str = "0B"

    def figure(self, text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,9})(B|KiB|MiB|GiB|TiB)", text)
        if match:
            return int(match[1]) * _UNIT_BYTES[match[2]]
        wrong = re.fullmatch(r"([0-9]+) ?([kKmMgGtT])i?[bB]?", text)
        if wrong:
            raise ValueError(f"write {wrong[1]}{wrong[2].upper()}iB")
        if re.fullmatch(r"[0-9]+", text):
            raise ValueError(f"write {text}B or {text}KiB")
        raise ValueError("write a whole number with its unit, as 900B, 64KiB, 1MiB, 20GiB")
