"""Assemble: documents into one PolicySet, or all problems of all of them at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessd.policy.assembly.documents import read_documents
from harnessd.policy.assembly.kinds import KINDS, Kind
from harnessd.policy.assembly.merge import Document, Library
from harnessd.policy.language.shape import Policy, read_rest, read_shape
from harnessd.policy.language.source import BUILTIN, Problem, leaves

Policies = dict[tuple[str, str], Policy[Any]]


@dataclass(frozen=True, slots=True)
class Assembled:
    """What came of a set of documents. Where there are problems, `policies` are only good for finding more of them."""

    policies: Policies
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Shipped:
    """The shipped documents, and what each kind means where an operator says nothing about it: worked out once."""

    documents: tuple[Document, ...]
    kinds: Mapping[str, Assembled]
    problems: tuple[Problem, ...]


def read_shipped(roots: Iterable[Any]) -> Shipped:
    """The shipped part of every set."""
    documents, problems = read_documents(roots, builtin=True)
    kinds = {kind.name: _assemble_kind(kind, (), documents) for kind in KINDS.values()}
    return Shipped(tuple(documents), kinds, tuple(problems))


def assemble(own_roots: Iterable[Any], shipped: Shipped | Iterable[Any]) -> Assembled:
    """Every effective policy of the operator's documents over the shipped ones (worked out already, or as parsed)."""
    shipped = shipped if isinstance(shipped, Shipped) else read_shipped(shipped)
    own, problems = read_documents(own_roots, builtin=False)
    problems.extend(shipped.problems)
    policies: Policies = {}
    spoken = {document.kind for document in own}
    for kind in KINDS.values():
        made = _assemble_kind(kind, own, shipped.documents) if kind.name in spoken else shipped.kinds[kind.name]
        policies.update(made.policies)
        problems.extend(made.problems)
    # The shipped files are right by themselves: a problem in them only follows from one that stands elsewhere.
    own_problems = [problem for problem in problems if not problem.file.startswith(BUILTIN)]
    return Assembled(policies, tuple(sorted(dict.fromkeys(own_problems or problems))))


def _assemble_kind(kind: Kind, own: Sequence[Document], shipped: Sequence[Document]) -> Assembled:
    policies: Policies = {}
    problems: list[Problem] = []
    library = Library(kind.name, _by_name(own, kind.name), _by_name(shipped, kind.name))
    for name in library.names:
        merged = library.merged(name)
        problems.extend(merged.problems)
        shape, found = read_shape(kind.shape, merged.tree)
        problems.extend(found)
        if shape is None and "default" in library.shipped:
            shape = read_rest(kind.shape, merged.tree, library.shipped["default"].body)
        if shape is None:
            continue
        note = next((document.note for document in merged.chain if document.note), None)
        chain = tuple(_title(document) for document in merged.chain)
        policy = Policy(kind.name, name, shape, merged.tree, chain, note, shipped=name in library.shipped)
        problems.extend(kind.relations(policy))
        policies[kind.name, name] = policy
    return Assembled(policies, tuple(problems))


def _by_name(documents: Sequence[Document], kind: str) -> dict[str, Document]:
    return {document.name: document for document in documents if document.kind == kind}


def _title(document: Document) -> str:
    return f"builtin {document.title}" if document.builtin else document.title


def content_hash(policies: Mapping[tuple[str, str], Policy[Any]]) -> str:
    """SHA-256 over the effective set: every value as written, with its line: 16 hexadecimal characters.

    Lines count, because decisions name them; names of files do not, so that two machines can compare.
    """
    effective = [
        [f"{kind}/{name}", [[*path, leaf.text, leaf.plain, leaf.place.line] for path, leaf in leaves(policy.tree)]]
        for (kind, name), policy in sorted(policies.items())
    ]
    text = json.dumps(effective, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
