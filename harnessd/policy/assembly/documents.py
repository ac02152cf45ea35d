"""Documents: what stands at the head of every policy document, the same in every kind, read and checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from harnessd.policy.assembly.kinds import ALL_KINDS, DAEMON_KINDS, KINDS
from harnessd.policy.assembly.merge import MERGED_LISTS, Document
from harnessd.policy.language.figures import Count
from harnessd.policy.language.shape import NAME_PATTERN, model_at
from harnessd.policy.language.source import (
    ListNode,
    MapNode,
    Misread,
    Place,
    Problem,
    Scalar,
    did_you_mean,
    misread,
    place_of,
    quoted,
)
from harnessd.policy.values import Text, Word

LANGUAGE_VERSION = 1
HEAD = ("kind", "name", "extends", "version", "note")


def read_documents(roots: Iterable[Any], *, builtin: bool) -> tuple[list[Document], list[Problem]]:
    """The documents behind parsed YAML roots, and all problems of their heads."""
    documents: list[Document] = []
    problems: list[Problem] = []
    seen: dict[tuple[str, str], Place] = {}
    for root in roots:
        document = _document(root, problems, builtin=builtin)
        if document is None:
            continue
        key = (document.kind, document.name)
        if key in seen:
            message = f"{document.title} stands twice, first at {seen[key]}"
            problems.append(Problem.at(document.place, message, "put both into one document, or name one of them"))
            continue
        seen[key] = document.place
        documents.append(document)
    return documents, problems


@dataclass(slots=True)
class _Head:
    """Reads the keys of one head and keeps what is wrong."""

    root: MapNode
    problems: list[Problem]
    sound: bool = True

    def value(self, key: str, reader: Any, default: Any = None) -> Any:
        if key not in self.root:
            return default
        try:
            return reader.read(self.root[key])
        except Misread as error:
            self.problem(*error.problems)
            return default

    def problem(self, *problems: Problem) -> None:
        self.problems.extend(problems)
        self.sound = False


def _without_kind(root: MapNode) -> Iterator[Problem]:
    """A document that does not say its kind: which it may be, and what in it is nearly a key of that kind."""
    named = [kind for kind in ALL_KINDS if kind in root or f"{kind}s" in root]
    fits = [kind for kind in ALL_KINDS if any(key in KINDS[kind].shape.model_fields for key in root)]
    likely = named or (fits if len(fits) == 1 else [])
    yield Problem.at(root.place, 'the key "kind" is missing', f"write kind: {', '.join(likely or ALL_KINDS)}")
    for kind in likely:
        known = _key_names(KINDS[kind].shape)
        for key, place in _keys_below(root):
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
            if near and key not in known and key not in (kind, f"{kind}s"):
                yield Problem.at(place, f'unknown key "{key}"', f'did you mean "{near[0]}"?')


def _key_names(shape: type[BaseModel], depth: int = 4) -> set[str]:
    names = {field.alias or name for name, field in shape.model_fields.items()}
    for name in list(names) if depth else ():
        inner = model_at(shape, (name,))
        if inner is not None:
            names |= _key_names(inner, depth - 1)
    return names


def _keys_below(node: Any) -> Iterator[tuple[str, Place]]:
    for key, below in node.items() if isinstance(node, MapNode) else ():
        yield key, node.keys_at[key]
        yield from _keys_below(below)


def _document(root: Any, problems: list[Problem], *, builtin: bool) -> Document | None:
    if not isinstance(root, MapNode):
        message = "an empty document" if isinstance(root, Scalar) and not root.text else f"{quoted(root)} is no policy"
        problems.append(Problem.at(place_of(root), message, "write kind: and its keys, or delete the document"))
        return None
    head = _Head(root, problems)
    if "kind" not in root:
        head.problem(*_without_kind(root))
        return None
    kind = head.value("kind", _KindWord(words=ALL_KINDS))
    name = head.value("name", Text(pattern=NAME_PATTERN, wanted="a name of a policy"), "default")
    note = head.value("note", Text(longest=500))
    version = head.value("version", Count(low="1"), LANGUAGE_VERSION)
    if version > LANGUAGE_VERSION:
        place = place_of(root["version"])
        head.problem(
            Problem.at(place, f"version {version} needs a newer harnessd", f"this one reads {LANGUAGE_VERSION}")
        )
    extends = head.value("extends", _Extends())
    if kind in DAEMON_KINDS and name != "default":
        remedy = "remove the name: there is one document for all"
        head.problem(Problem.at(place_of(root["name"]), f"{kind} is for the whole daemon: it has no names", remedy))
    if kind is None or not head.sound:
        return None
    body = MapNode(root.place)
    for key, node in root.items():
        if key not in HEAD:
            body.put(key, node, root.keys_at[key])
    problems.extend(_same_names(body))
    return Document(kind, name, body, root.place, extends, note, builtin)


class _KindWord(Word):
    """The kind, with a sentence of its own."""

    def value(self, scalar: Scalar) -> str:
        if scalar.text in self.words:
            return scalar.text
        raise misread(scalar, f'unknown kind "{scalar.text}"', did_you_mean(scalar.text, self.words))


class _Extends(Text):
    """The name of a document, kept with its place."""

    def read(self, node: Any) -> Scalar:
        Text(pattern=NAME_PATTERN, wanted="a name of a policy").read(node)
        assert isinstance(node, Scalar)  # noqa: S101 - Text has refused anything else
        return node


def _same_names(body: MapNode) -> list[Problem]:
    """Two entries of one list may not have the same name: which would an heir change?"""
    problems = []
    for key in MERGED_LISTS & set(body):
        seen: dict[str, Place] = {}
        entries = body[key]
        for entry in entries if isinstance(entries, ListNode) else []:
            name = entry.get("name") if isinstance(entry, MapNode) else None
            if not isinstance(name, Scalar):
                continue
            if name.text in seen:
                message = f'two entries are named "{name.text}", the first at {seen[name.text]}'
                problems.append(Problem.at(name.place, message, "give one of them another name"))
            seen.setdefault(name.text, name.place)
    return problems
