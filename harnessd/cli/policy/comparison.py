"""Comparison: what differs between two sets as people read it: each value once, new and removed entries as one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harnessd.cli import render
from harnessd.cli.policy.origins import entry_title, flow
from harnessd.policy import Policy, PolicySet
from harnessd.policy.assembly.changes import Change, differences
from harnessd.policy.assembly.merge import MERGED_LISTS
from harnessd.policy.language.source import ListNode, MapNode, Place, Scalar, find

_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One difference. `what` is the key, or `+ rule NAME`; `how` is `90 -> 9`, or what the entry says."""

    policy: str
    what: str
    how: str
    place: Place | None
    was_builtin: bool = False
    note: str | None = None
    heirs: tuple[str, ...] = ()


def rows(old: PolicySet, new: PolicySet) -> list[Row]:
    """All differences. What several policies inherit from one line stands once, with the heirs' names."""
    kept = {key: policy for key, policy in old.policies.items() if key in new.policies}
    changes = differences(replace(old, policies=kept), _only(new, kept))
    found = [*_collapsed(changes, old, new)]
    found += [Row(f"{kind}/{name}", f"order of {key}", how, at) for kind, name, key, how, at in _moved(old, new)]
    for key in sorted({*new.policies} - {*old.policies}):
        found.extend(_born(key, old, new))
    for kind, name in sorted({*old.policies} - {*new.policies}):
        at = old.policies[kind, name].tree.place
        found.append(Row(f"{kind}/{name}", "- policy", "removed", None, at.builtin))
    return _inherited_once(found)


def _only(policies: PolicySet, names: Iterable[tuple[str, str]]) -> PolicySet:
    return replace(policies, policies={key: policies.policies[key] for key in names})


def _born(key: tuple[str, str], old: PolicySet, new: PolicySet) -> Iterator[Row]:
    """A new policy: what it says otherwise than `default`, which its tasks had until now."""
    kind, name = key
    policy = new.policies[key]
    yield Row(f"{kind}/{name}", "+ policy", "new", policy.tree.place, note=policy.note)
    before = old.policies.get((kind, "default"))
    if before is None:
        return
    renamed = replace(before, name=name)
    one = replace(old, policies={key: renamed})
    yield from _collapsed(differences(one, _only(new, [key])), one, new)


def _collapsed(changes: Iterable[Change], old: PolicySet, new: PolicySet) -> Iterator[Row]:
    """Entries that are new or gone are one row each, not one for each of their keys."""
    told: set[tuple[str, str, str]] = set()
    for change in changes:
        before, after = (policies.policies.get((change.kind, change.name)) for policies in (old, new))
        label, _, rest = _split(change.path)
        here = f"{change.kind}/{change.name}"
        was, now = (_entry(policy, label) for policy in (before, after))
        if label and (was is None) != (now is None):
            if (change.kind, change.name, label) not in told:
                told.add((change.kind, change.name, label))
                yield _whole_entry(here, label, was, now, change)
            continue
        what = f"{entry_title(label)} {rest}" if label else change.path
        how = f"{_cut(change.before)} -> {_cut(change.after)}"
        place = change.place if change.after is not None else None
        yield Row(here, what, how, place, change.was_builtin, _note(change, now))


def _whole_entry(here: str, label: str, was: MapNode | None, now: MapNode | None, change: Change) -> Row:
    entry = now if now is not None else was
    said = {key: value for key, value in (entry or {}).items() if key not in ("name", "note")}
    words = _cut(", ".join(f"{key}: {flow(value)}" for key, value in said.items()))
    if now is None:
        return Row(here, f"- {entry_title(label)}", words, None, change.was_builtin)
    return Row(here, f"+ {entry_title(label)}", words, now.place, note=_note(change, now))


def _note(change: Change, entry: MapNode | None) -> str | None:
    written = entry.get("note") if entry is not None else None
    return getattr(written, "text", None) or (None if change.place.builtin else change.note)


def _split(path: str) -> tuple[str, str, str]:
    """The entry of a list in a path, and the rest: `rules.canary`, `when.share`."""
    head, _, rest = path.partition(".")
    if "[" in head and head.partition("[")[0] in MERGED_LISTS:
        return head, ".", rest
    if head in MERGED_LISTS:
        name, _, below = rest.partition(".")
        return f"{head}.{name}", ".", below
    return "", "", path


def _entry(policy: Policy[Any] | None, label: str) -> MapNode | None:
    """The entry that a label means."""
    if policy is None or not label:
        return None
    key, _, index = label.partition("[")
    if index:
        found = find(policy.tree, (key, int(index.rstrip("]"))))
        return found if isinstance(found, MapNode) and "name" not in found else None
    key, _, name = label.partition(".")
    entries = policy.tree.get(key)
    for entry in entries if isinstance(entries, ListNode) else ():
        written = entry.get("name") if isinstance(entry, MapNode) else None
        if getattr(written, "text", None) == name:
            return entry  # type: ignore[no-any-return]
    return None


def _cut(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _inherited_once(found: Iterable[Row]) -> list[Row]:
    """The same change by the same line in several policies of a kind is one change."""
    seen: dict[tuple[str, ...], Row] = {}
    ordered = sorted(found, key=lambda row: (row.policy.partition("/")[0], "/default" not in row.policy))
    for row in ordered:
        kind = row.policy.partition("/")[0]
        own = "" if row.place is not None and row.what not in ("+ policy", "- policy") else row.policy
        key = (kind, row.what, row.how, str(row.place), own)
        first = seen.get(key)
        seen[key] = row if first is None else replace(first, heirs=(*first.heirs, row.policy))
    return list(seen.values())


def _moved(old: PolicySet, new: PolicySet) -> Iterator[tuple[str, str, str, str, Place]]:
    """Lists whose entries stand in another order: the first that fits decides, so that is a change of its own."""
    for (kind, name), after in new.policies.items():
        before = old.policies.get((kind, name))
        for key in sorted(MERGED_LISTS & set(after.tree)) if before is not None else ():
            was, now = (_names(policy.tree.get(key)) for policy in (before, after) if policy is not None)
            was, now = [name for name in was if name in now], [name for name in now if name in was]
            first = next((place for place, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]), None)
            if first is not None:
                last = max(place for place, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]) + 1
                how = f"{', '.join(was[first:last])} -> {', '.join(now[first:last])}"
                yield kind, name, key, how, after.tree[key].place


def _names(entries: Any) -> list[str]:
    """The names of a list's entries, in order."""
    found = [entry.get("name") for entry in entries or () if isinstance(entry, MapNode)]
    return [name.text for name in found if isinstance(name, Scalar)]


def lines(found: Iterable[Row]) -> Iterator[str]:
    """The differences as an aligned table."""
    cells: list[list[object]] = []
    last = ""
    for row in found:
        words = [str(row.place)] if row.place is not None else []
        words += ["was builtin"] if row.was_builtin else []
        words += [f'note "{row.note}"'] if row.note else []
        words += [f"(inherited too by {', '.join(row.heirs)})"] if row.heirs else []
        cells.append(["" if row.policy == last else row.policy, row.what, row.how, "  ".join(words)])
        last = row.policy
    yield from render.table(cells)


def plain(old: PolicySet, new: PolicySet) -> list[Mapping[str, Any]]:
    """Every difference with stable keys; a list in another order has the path `rules`."""
    found: list[Mapping[str, Any]] = [
        _plain(change.kind, change.name, change.path, change.place)
        | {"before": change.before, "after": change.after, "was_builtin": change.was_builtin, "note": change.note}
        for change in differences(old, new)
    ]
    for kind, name, key, how, at in _moved(old, new):
        was, _, now = how.partition(" -> ")
        found.append(_plain(kind, name, key, at) | {"before": was, "after": now, "was_builtin": False, "note": None})
    return found


def _plain(kind: str, name: str, path: str, place: Place) -> dict[str, Any]:
    where = {"file": place.file, "line": place.line, "column": place.column}
    return {"kind": kind, "name": name, "path": path, **where}
