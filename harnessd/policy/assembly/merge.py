"""Merge: documents of one kind into effective trees: `extends`, own entries before inherited ones, denies kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harnessd.policy.language.source import ListNode, MapNode, Node, Place, Problem, Scalar

MERGED_LISTS = frozenset({"rules", "permissions", "shims"})  # ordered lists at the top of a document


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a policy file: its head, and its body without the head's keys."""

    kind: str
    name: str
    body: MapNode
    place: Place
    extends: Scalar | None = None
    note: str | None = None
    builtin: bool = False

    @property
    def title(self) -> str:
        """The name that messages use."""
        return f"{self.kind}/{self.name}"


@dataclass(slots=True)
class Merged:
    """The effective tree of one policy and the documents it was merged from, own first."""

    tree: MapNode
    chain: tuple[Document, ...]
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Library:
    """All documents of one kind: the operator's over the shipped ones."""

    kind: str
    own: Mapping[str, Document]
    shipped: Mapping[str, Document]

    @property
    def names(self) -> tuple[str, ...]:
        """All policies of the kind, `default` first."""
        return tuple(sorted({*self.own, *self.shipped}, key=lambda name: (name != "default", name)))

    def merged(self, name: str) -> Merged:
        """The effective tree of a policy."""
        first = self.own.get(name) or self.shipped[name]
        chain: list[Document] = [first]
        problems: list[Problem] = []
        while True:
            parent = self._parent(chain[-1], problems)
            if parent is None:
                break
            if parent in chain:
                names = " -> ".join(document.name for document in (*chain, parent))
                at = first.extends.place if first.extends else first.place
                problems.append(Problem.at(at, f"extends runs in a circle: {names}", "extend builtin"))
                chain += [self.shipped["default"]] if "default" in self.shipped else []
                break
            chain.append(parent)
        tree = chain[-1].body
        for document in reversed(chain[1:-1]):
            tree = merge_maps(tree, document.body, top=True, sound=True)
        if len(chain) > 1:
            tree = merge_maps(tree, first.body, top=True)
        for child, *parents in (chain[index:] for index in range(len(chain) - 1)):
            problems.extend(_weakened_denies(child, parents))
        return Merged(tree, tuple(chain), problems)

    def _parent(self, document: Document, problems: list[Problem]) -> Document | None:
        if document.builtin and document.name == "default":
            return None
        wanted = document.extends.text if document.extends else None
        if wanted is None:
            wanted = "builtin" if document.name == "default" else "default"
        if wanted == "builtin":
            shipped = self.shipped.get(document.name)
            return shipped if shipped is not None and shipped is not document else self.shipped.get("default")
        parent = self.own.get(wanted) or self.shipped.get(wanted)
        if parent is None and document.extends is not None:
            from_names = ", ".join(("builtin", *self.names))
            message = f'extends "{wanted}" leads nowhere'
            problems.append(Problem.at(document.extends.place, message, f"write one of {from_names}"))
            return self.shipped.get("default")
        return parent


def merge_maps(base: MapNode, own: MapNode, *, top: bool = False, sound: bool = False) -> MapNode:
    """`own` over `base`, key by key. The place of a merged map is the newer one's.

    `sound`: what is no map where one stands below is left out; it is told of where it stands, not of its children.
    """
    merged = base.copy()
    merged.place = own.place
    for key, value in own.items():
        below = base.get(key)
        if sound and isinstance(below, MapNode) and not isinstance(value, MapNode):
            continue
        if isinstance(value, MapNode) and isinstance(below, MapNode):
            value = merge_maps(below, value, sound=sound)  # noqa: PLW2901 - the merged value takes its place
        elif top and key in MERGED_LISTS and isinstance(value, ListNode) and isinstance(below, ListNode):
            value = merge_entries(below, value)  # noqa: PLW2901
        merged.put(key, value, own.keys_at[key])
    return merged


def merge_entries(base: ListNode, own: ListNode) -> ListNode:
    """Own entries first; one with the name of an inherited entry changes that one in its place."""
    inherited = {_name(entry): index for index, entry in enumerate(base) if _name(entry)}
    rest: list[Node] = list(base)
    first: list[Node] = []
    for entry in own:
        name = _name(entry)
        if name is not None and name in inherited and isinstance(entry, MapNode):
            rest[inherited[name]] = _changed(base[inherited[name]], entry)
        else:
            first.append(entry)
    return ListNode(own.place, [*first, *rest])


def _changed(base: MapNode, own: MapNode) -> MapNode:
    """An entry changed key by key; a condition is one value, and half of another one's would mean a third thing."""
    merged = merge_maps(base, own)
    for key in ("when", "unless"):
        if key in own:
            merged.put(key, own[key], own.keys_at[key])
    return merged


def _name(entry: object) -> str | None:
    name = entry.get("name") if isinstance(entry, MapNode) else None
    return name.text if isinstance(name, Scalar) else None


def _weakened_denies(child: Document, parents: list[Document]) -> list[Problem]:
    """A document may not change or disable a deny it inherits."""
    denies = {}
    for parent in parents:
        for entry in _entries(parent, "permissions"):
            verdict = entry.get("do")
            if isinstance(verdict, Scalar) and verdict.text == "deny" and _name(entry):
                denies[_name(entry)] = (parent, entry)
    problems = []
    for entry in _entries(child, "permissions"):
        if _name(entry) in denies:
            parent, deny = denies[_name(entry)]
            message = f"{parent.title} denies by rule {_name(entry)} ({deny.place}): a deny that is inherited cannot"
            remedy = "choose another name, or change it there"
            problems.append(Problem.at(entry["name"].place, f"{message} be changed", remedy))
    return problems


def _entries(document: Document, key: str) -> list[MapNode]:
    entries = document.body.get(key)
    return [entry for entry in entries if isinstance(entry, MapNode)] if isinstance(entries, ListNode) else []
