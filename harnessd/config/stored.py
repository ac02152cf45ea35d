"""Stored: a policy set as the store keeps it (texts of the files and of the shipped part), and back again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harnessd.config.files import Snapshot, read_builtin
from harnessd.config.garbage import COLLECTOR
from harnessd.config.strict_yaml import parse
from harnessd.policy import PolicySet, Problem
from harnessd.policy.assembly.assemble import assemble


def content_of(snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """What a valid set is made of. The shipped part is kept too: an upgrade that changes a default is a change."""
    return {
        "files": {file.shown: file.data.decode() for file in snapshot.files},
        "builtin": {file.shown: file.data.decode() for file in read_builtin().files},
    }


def policies_of(content: Mapping[str, Any]) -> tuple[PolicySet, tuple[Problem, ...]]:
    """The set that stored texts mean, with the shipped part of their day."""
    problems: list[Problem] = []
    with COLLECTOR.rests():
        own, shipped = (_roots(content.get(part, {}), problems) for part in ("files", "builtin"))
        assembled = assemble(own, shipped)
        return PolicySet.of(assembled.policies), (*problems, *assembled.problems)


def _roots(texts: Mapping[str, str], problems: list[Problem]) -> tuple[Any, ...]:
    roots: list[Any] = []
    for shown, text in texts.items():
        parsed = parse(text.encode(), shown)
        problems.extend(parsed.problems)
        roots.extend(parsed.documents)
    return tuple(roots)
