"""Origins: every effective value of a policy with the line that gives it, its note, and the default beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harnessd.cli.policy.sources import Texts
from harnessd.policy import Policy
from harnessd.policy.assembly.merge import MERGED_LISTS
from harnessd.policy.language.source import ListNode, MapNode, Place, Scalar, place_of

_ENTRIES = {"rules": "rule", "permissions": "permission", "shims": "shim"}


@dataclass(frozen=True, slots=True)
class Value:
    """One value. `entry` names the rule it belongs to; `builtin` is the shipped value where this one differs."""

    path: str
    value: str
    place: Place
    entry: str = ""
    note: str | None = None
    builtin: str | None = None

    def json(self) -> dict[str, Any]:
        """With stable keys."""
        return {
            "path": self.path,
            "value": self.value,
            "file": self.place.file,
            "line": self.place.line,
            "rule": self.entry or None,
            "note": self.note,
            "builtin": self.builtin,
        }


def flow(node: Any) -> str:
    """A node on one line, as one would write it."""
    if isinstance(node, MapNode):
        return "{" + ", ".join(f"{key}: {flow(value)}" for key, value in node.items()) + "}"
    if isinstance(node, ListNode):
        return "[" + ", ".join(flow(item) for item in node) + "]"
    return str(node)


def entry_title(label: str) -> str:
    """`rules.canary` as people say it: `rule canary`; an entry without a name stays `rules[0]`, as decisions say it."""
    key, dot, name = label.partition(".")
    return f"{_ENTRIES.get(key, key)} {name}" if dot else label


def label_of(key: str, index: int, entry: Any) -> str:
    """How an entry of a list is known: by its name, else by its place."""
    name = entry.get("name") if isinstance(entry, MapNode) else None
    return f"{key}.{name.text}" if isinstance(name, Scalar) else f"{key}[{index}]"


def values(policy: Policy[Any], builtin: Policy[Any] | None, texts: Texts) -> Iterator[Value]:
    """Every effective value of a policy, in the order in which it is read."""
    shipped = {path: flow(node) for path, _label, node in _walk(builtin.tree)} if builtin is not None else {}
    for path, label, node in _walk(policy.tree):
        place, value = place_of(node), flow(node)
        before = shipped.get(path)
        beside = before if before is not None and before != value else None
        note = _entry_note(policy, label) or (None if place.builtin else texts.note_at(place))
        yield Value(path, value, place, label, note, beside)


def _entry_note(policy: Policy[Any], label: str) -> str | None:
    for key in MERGED_LISTS & set(policy.tree):
        if not label.startswith(key):
            continue
        for index, entry in enumerate(policy.tree[key]):
            if label_of(key, index, entry) == label:
                return note_of(entry)
    return None


def note_of(entry: Any) -> str | None:
    """The note of an entry."""
    written = entry.get("note") if isinstance(entry, MapNode) else None
    return written.text if isinstance(written, Scalar) else None


def _walk(tree: MapNode) -> Iterator[tuple[str, str, Any]]:
    """Path, entry and node of every value; conditions and lists of words are one value each."""
    for key, node in tree.items():
        if key in MERGED_LISTS and isinstance(node, ListNode):
            for index, entry in enumerate(node):
                label = label_of(key, index, entry)
                if not isinstance(entry, MapNode):
                    continue
                for inner, value in entry.items():
                    if inner not in ("name", "note"):
                        yield from ((path, label, leaf) for path, leaf in _below(f"{label}.{inner}", inner, value))
        else:
            yield from ((path, "", leaf) for path, leaf in _below(key, key, node))


def _below(path: str, key: str, node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, MapNode) and node and key not in ("when", "unless"):
        for inner, value in node.items():
            yield from _below(f"{path}.{inner}", inner, value)
    else:
        yield path, node
