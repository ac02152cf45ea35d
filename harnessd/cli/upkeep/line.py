"""Line: one thing that doctor looked at: how it is, and what to do where it is not well."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Line:
    """`area` groups; `state` is ok, warn or fail; `remedy` is empty where nothing needs to be done."""

    area: str
    name: str
    state: str
    says: str
    remedy: str = ""
