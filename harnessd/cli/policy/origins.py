"""Origins: the line that gives each effective value, of a whole policy and of one name; the default beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harnessd.cli.policy.sources import Texts
from harnessd.policy import Policy
from harnessd.policy.assembly.merge import MERGED_LISTS
from harnessd.policy.language.names import any_fits
from harnessd.policy.language.shape import Entry
from harnessd.policy.language.source import ListNode, MapNode, Place, Scalar, find, place_of

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


# --- what one tool, model, agent or label gets ------------------------------------------------------------------------

# Lists of settings: each leaf comes from the first entry that fits and states it (policies.md, "Read").
LISTS: Mapping[str, tuple[str, ...]] = {
    "tools": ("rules", "shims"),
    "limits": ("rules",),
    "breaker": ("rules",),
}
_HEAD = frozenset({"name", "for", "when", "unless", "note", "enabled"})
# Only an unknown fact leaves it open whether an entry fits.
Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Fitting:
    """An entry that is about the name. `sure`: it fits every call; else what it depends on."""

    label: str
    node: MapNode
    sure: bool

    @property
    def condition(self) -> str:
        """What the entry asks for, as written."""
        asked = [f"{key} {flow(self.node[key])}" for key in ("when", "unless") if key in self.node]
        return ", ".join(asked)

    @property
    def facts(self) -> str:
        """`by command`: the facts that it depends on."""
        parts = [self.node[key] for key in ("when", "unless") if key in self.node]
        clauses = [clause for part in parts for clause in (part if isinstance(part, ListNode) else [part])]
        return f"by {', '.join(dict.fromkeys(name for clause in clauses for name in clause))}"


def fitting(policy: Policy[Any], key: str, name: str, facts: Facts) -> Iterator[Fitting]:
    """The entries of a list that are about a name, in order, those ruled out by known facts left out."""
    entries: tuple[Entry, ...] = getattr(policy.shape, key)
    for index, entry in enumerate(entries):
        node = find(policy.tree, (key, index))
        if not entry.enabled or not any_fits(entry.for_, (name,)) or not isinstance(node, MapNode):
            continue
        answer = _fits(entry, facts)
        if answer is not False:
            yield Fitting(label_of(key, index, node), node, answer is True)


def _fits(entry: Entry, facts: Facts) -> bool | None:
    """Whether an entry's conditions hold; None where that depends on facts of the single call."""
    wanted = _holds(entry.when.clauses, facts) if not entry.when.always else True
    against = _holds(entry.unless.clauses, facts) if entry.unless.clauses else False
    if wanted is False or against is True:
        return False
    return True if wanted is True and against is False else None


def _holds(clauses: Any, facts: Facts) -> bool | None:
    answers = [_clause(clause, facts) for clause in clauses]
    if True in answers:
        return True
    return None if None in answers else False


def _clause(clause: Any, facts: Facts) -> bool | None:
    unknown = False
    for asked in clause:
        if not _known(asked.name, facts):
            unknown = True
        elif not asked.test.holds(asked.fact, facts.get(asked.name)):
            return False
    return None if unknown else True


def _known(name: str, facts: Facts) -> bool:
    return name in facts or (name.startswith("label.") and "label.*" in facts)


def settings(policy: Policy[Any], builtin: Policy[Any] | None, name: str, facts: Facts, texts: Texts) -> list[Value]:
    """Every setting of a name: its value, its line, and under which conditions it is another one."""
    found: list[Value] = []
    for key in LISTS[policy.kind]:
        found.extend(_settings(policy, builtin, key, name, facts, texts))
    if policy.kind == "tools":
        found.extend(_permissions(policy, name, facts, texts))
    return found


def _settings(
    policy: Policy[Any], builtin: Policy[Any] | None, key: str, name: str, facts: Facts, texts: Texts
) -> Iterator[Value]:
    shipped = {path: flow(node) for path, (_entry, node) in _first(builtin, key, name, facts).items()}
    entries = [*fitting(policy, key, name, facts)]
    for path, (entry, node) in _first(policy, key, name, facts).items():
        place, value = place_of(node), flow(node)
        others = [
            f"{other.label.partition('.')[2] or other.label} ({other.facts}): {flow(stated)}"
            for other in entries[: entries.index(entry)]
            if not other.sure and (stated := find(other.node, path.split("."))) is not None
        ]
        note = note_of(entry.node) or (None if place.builtin else texts.note_at(place))
        before = shipped.get(path)
        beside = before if before is not None and before != value else None
        words = "; ".join([entry.label, *others])
        yield Value(path, value, place, words, note, beside)


def _first(policy: Policy[Any] | None, key: str, name: str, facts: Facts) -> dict[str, tuple[Fitting, Any]]:
    """Leaf -> the first entry that surely fits and states it, in the order of the most general entry."""
    if policy is None:
        return {}
    found: dict[str, tuple[Fitting, Any]] = {}
    order: dict[str, None] = {}
    sure = [entry for entry in fitting(policy, key, name, facts) if entry.sure]
    for entry in sure:
        for path, node in _leaves(entry.node):
            found.setdefault(path, (entry, node))
    for entry in reversed(sure):
        order.update(dict.fromkeys(path for path, _ in _leaves(entry.node)))
    return {path: found[path] for path in order}


def _leaves(entry: MapNode) -> Iterator[tuple[str, Any]]:
    for key, node in entry.items():
        if key in _HEAD:
            continue
        if isinstance(node, MapNode) and key == "timeout":
            yield from ((f"{key}.{inner}", value) for inner, value in node.items())
        else:
            yield key, node


def _permissions(policy: Policy[Any], name: str, facts: Facts, texts: Texts) -> Iterator[Value]:
    """Who may call it. A deny that fits wins; else the first entry that fits; nothing fits: allow."""
    entries = [*fitting(policy, "permissions", name, _with_effect(policy, name, facts))]
    denies = [entry for entry in entries if flow(entry.node.get("do")) == "deny"]
    surely = next((entry for entry in denies if entry.sure), None)
    if surely is not None:
        yield _permission(surely, texts)
        return
    ordered = [*denies, *(entry for entry in entries if entry not in denies)]
    for entry in ordered:
        yield _permission(entry, texts)
        if entry.sure:
            return
    yield Value("permission", "allow", policy.tree.place, "nothing else fits")


def _with_effect(policy: Policy[Any], name: str, facts: Facts) -> Facts:
    """The effect is a known fact, too, where no single call can have another one."""
    entries = [entry for entry in fitting(policy, "rules", name, facts) if "effect" in entry.node]
    first = next((place for place, entry in enumerate(entries) if entry.sure), None)
    return {**facts, "effect": flow(entries[0].node["effect"])} if first == 0 else facts


def _permission(entry: Fitting, texts: Texts) -> Value:
    node = entry.node["do"]
    place = place_of(node)
    verdict = flow(node).upper() if flow(node) == "deny" else flow(node)
    condition = f" ({entry.facts})" if not entry.sure else ""
    note = note_of(entry.node) or (None if place.builtin else texts.note_at(place))
    return Value("permission", verdict, place, f"{entry.label}{condition}", note)


def assigning(policy: Policy[Any], agent: str, facts: Facts) -> Iterator[Fitting]:
    """The rules of assign that decide for some tasks of an agent and not for others."""
    for index, rule in enumerate(policy.shape.rules):
        node = find(policy.tree, ("rules", index))
        fits = _fits(rule, facts)
        about = any_fits(rule.for_, (f"agent/{agent}",))
        by_label = any(name.text.startswith("label/") for name in rule.for_)
        if rule.enabled and isinstance(node, MapNode) and (about or by_label) and fits is not False:
            entry = Fitting(label_of("rules", index, node), node, fits is True and about)
            if not entry.sure:
                yield entry
