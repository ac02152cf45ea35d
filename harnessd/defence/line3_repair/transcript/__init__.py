"""Transcripts: a list of messages in a protocol's form made legal for its receiver; one core of rules for all.

`repair` is pure, changes nothing that is valid (a legal message leaves as the same object), and does nothing more to
what it gave back. Each thing it finds is one `Note`; a transcript without notes is legal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harnessd.defence.line3_repair.transcript import media, ordering, parts
from harnessd.defence.line3_repair.transcript.characters import cleaned
from harnessd.defence.line3_repair.transcript.forms import anthropic, openai_chat, openai_responses
from harnessd.defence.line3_repair.transcript.messages import turns_of
from harnessd.defence.line3_repair.transcript.pairs.pairing import Journal, Known, nothing_known, pair
from harnessd.defence.line3_repair.transcript.receiver import PROTOCOLS, TARGETS, Receiver, receiver
from harnessd.defence.line3_repair.transcript.turns import Note, Notes, Turn

__all__ = [
    "FORMS",
    "PROTOCOLS",
    "TARGETS",
    "Journal",
    "Known",
    "Note",
    "Receiver",
    "Repaired",
    "legal",
    "receiver",
    "repair",
]

FORMS = {"anthropic": anthropic, "openai-chat": openai_chat, "openai-responses": openai_responses}


@dataclass(frozen=True, slots=True)
class Repaired:
    """A legal transcript, and what was done to make it so."""

    messages: list[dict[str, Any]]
    notes: tuple[Note, ...]


def repair(messages: Sequence[Any], to: Receiver, journal: Journal = nothing_known) -> Repaired:
    """The messages as their receiver takes them."""
    notes = Notes()
    turns = turns_of(cleaned(list(messages), notes), notes)
    form = FORMS[to.protocol]
    turns = [one for turn in turns for one in form.settle(turn, notes)]
    turns = legal(turns, to, notes, journal)
    written = form.write(turns)
    if not notes.found and written != list(messages):
        place = next((n for n, one in enumerate(messages) if n >= len(written) or written[n] != one), 0)
        notes.add("odd_form", place, "a message is not in the form that the service wants: written anew")
    return Repaired(written, tuple(notes.found))


def legal(turns: list[Turn], to: Receiver, notes: Notes, journal: Journal) -> list[Turn]:
    """The rules in their order, on turns in the receiver's own form."""
    turns = [parts.mend(one, to, notes) for turn in turns for one in parts.calls_in_answers(turn, notes)]
    turns = ordering.thoughts_with_their_items(turns, to, notes)
    turns = ordering.without_empty(turns, to, notes)
    turns = ordering.rules_of_the_system(turns, to, notes)
    turns = pair(turns, to, notes, journal)
    # A twin that was left out may have been what a thought stood before.
    turns = ordering.thoughts_with_their_items(turns, to, notes)
    turns = ordering.without_last_thoughts(turns, to, notes)
    turns = ordering.without_empty(turns, to)
    turns = media.fitted(turns, to, notes)
    turns = ordering.thoughts_beside_calls(turns, to, notes)
    turns = ordering.edges(turns, to, notes)
    return ordering.alternating(turns, to, notes)
