"""Assemble: documents into one PolicySet, or all problems of all of them at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessd.policy.documents import read_documents
from harnessd.policy.kinds import KINDS
from harnessd.policy.merge import Document, Library
from harnessd.policy.shape import Policy, read_shape
from harnessd.policy.source import Problem, leaves


@dataclass(frozen=True, slots=True)
class Assembled:
    """What came of a set of documents. `policies` holds those that could be read."""

    policies: dict[tuple[str, str], Policy[Any]]
    problems: tuple[Problem, ...]


def assemble(own_roots: Iterable[Any], builtin_roots: Iterable[Any]) -> Assembled:
    """Every effective policy of the operator's documents over the shipped ones."""
    own, problems = read_documents(own_roots, builtin=False)
    shipped, faults = read_documents(builtin_roots, builtin=True)
    problems += faults
    policies: dict[tuple[str, str], Policy[Any]] = {}
    for kind in KINDS.values():
        library = Library(kind.name, _by_name(own, kind.name), _by_name(shipped, kind.name))
        for name in library.names:
            merged = library.merged(name)
            problems.extend(merged.problems)
            shape, found = read_shape(kind.shape, merged.tree)
            problems.extend(found)
            if shape is None:
                continue
            note = next((document.note for document in merged.chain if document.note), None)
            chain = tuple(_title(document) for document in merged.chain)
            policy = Policy(kind.name, name, shape, merged.tree, chain, note)
            problems.extend(kind.relations(policy))
            policies[kind.name, name] = policy
    return Assembled(policies, tuple(sorted(dict.fromkeys(problems))))


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
