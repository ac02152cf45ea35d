"""Changes: what differs between two sets, effective value by effective value, each with the line that says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harnessd.policy import PolicySet
from harnessd.policy.assembly.merge import MERGED_LISTS
from harnessd.policy.language.shape import Policy
from harnessd.policy.language.source import ListNode, MapNode, Place, Scalar, leaves, plain_data


@dataclass(frozen=True, slots=True)
class Change:
    """One effective value that differs. `before` None: new; `after` None: gone. `place` is where the new one stands."""

    kind: str
    name: str
    path: str
    before: str | None
    after: str | None
    place: Place
    was_builtin: bool
    note: str | None = None


def differences(old: PolicySet, new: PolicySet) -> tuple[Change, ...]:
    """Every effective value that differs, policy by policy; entries of lists are known by their names."""
    found: list[Change] = []
    for key in sorted({*old.policies, *new.policies}):
        before, after = old.policies.get(key), new.policies.get(key)
        found.extend(_differences(key, before, after))
    return tuple(found)


def _differences(key: tuple[str, str], old: Policy[Any] | None, new: Policy[Any] | None) -> Iterator[Change]:
    kind, name = key
    before = dict(_values(old.tree)) if old is not None else {}
    after = dict(_values(new.tree)) if new is not None else {}
    note = new.note if new is not None else None
    for path in dict.fromkeys((*before, *after)):
        was, now = before.get(path), after.get(path)
        if (was and was[0]) == (now and now[0]):
            continue
        place = (now or was or ("", Place("?")))[1]
        yield Change(
            kind,
            name,
            path,
            was[0] if was else None,
            now[0] if now else None,
            place,
            bool(was and was[1].builtin),
            note,
        )


def _values(tree: MapNode) -> Iterator[tuple[str, tuple[str, Place]]]:
    """Every value as written, by a path that stays the same when entries move."""
    for key, node in tree.items():
        if key in MERGED_LISTS and isinstance(node, ListNode):
            for index, entry in enumerate(node):
                label = _label(key, index, entry)
                for path, leaf in leaves(entry):
                    yield f"{label}.{'.'.join(map(str, path))}", (str(leaf), leaf.place)
        elif isinstance(node, ListNode):
            yield key, (", ".join(map(str, plain_data(node))), node.place)
        else:
            for path, leaf in leaves(node, (key,)):
                yield ".".join(map(str, path)), (str(leaf), leaf.place)


def _label(key: str, index: int, entry: Any) -> str:
    name = entry.get("name") if isinstance(entry, MapNode) else None
    return f"{key}.{name.text}" if isinstance(name, Scalar) else f"{key}[{index}]"
