"""Matching: which result belongs to which call.

Calls and results find each other by occurrence, not by name alone: services and agents use an id again in a later
turn. A result belongs to the newest open call of its name before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harnessd.defence.line3_repair.transcript.turns import Kind, Part, Turn


@dataclass(slots=True)
class Pair:
    """One call with all results that are its own.

    `chosen` is the one that stays, `home` the turn in which it stood; None: it stood nowhere.
    """

    turn: int
    call: Part
    results: list[tuple[int, Part]] = field(default_factory=list)
    chosen: Part | None = None
    home: int | None = None

    def same_as(self, other: Pair) -> bool:
        """The same call, stored again."""
        one, two = self.call, other.call
        return (one.id, one.name, one.arguments, one.text) == (two.id, two.name, two.arguments, two.text)


@dataclass(slots=True)
class Pairs:
    """All calls of a transcript, by turn, and the results that have none."""

    by_turn: dict[int, list[Pair]] = field(default_factory=dict)
    by_id: dict[str, list[Pair]] = field(default_factory=dict)
    orphans: list[tuple[int, Part]] = field(default_factory=list)

    def add(self, turn: int, call: Part) -> None:
        """One more call."""
        pair = Pair(turn, call)
        self.by_turn.setdefault(turn, []).append(pair)
        self.by_id.setdefault(call.id, []).append(pair)

    def forget(self, gone: Pair) -> None:
        """A call that is left out."""
        self.by_turn[gone.turn] = [one for one in self.by_turn[gone.turn] if one is not gone]
        self.by_id[gone.call.id] = [one for one in self.by_id[gone.call.id] if one is not gone]
        if not self.by_turn[gone.turn]:
            del self.by_turn[gone.turn]

    def all(self) -> list[Pair]:
        """In order."""
        return [pair for turn in sorted(self.by_turn) for pair in self.by_turn[turn]]


def match(turns: list[Turn]) -> Pairs:
    """The calls of a transcript with their results."""
    pairs = Pairs()
    waiting: list[tuple[int, Part]] = []
    for number, turn in enumerate(turns):
        for part in turn.parts:
            if part.kind is Kind.CALL and turn.role == "assistant":
                pairs.add(number, part)
            elif part.kind is Kind.RESULT:
                owner = _owner(pairs, part)
                if owner is None:
                    waiting.append((number, part))
                else:
                    owner.results.append((number, part))
    for number, part in waiting:
        # A result that stands before its call is its own only if no other call could have asked for it.
        owners = pairs.by_id.get(part.id, []) if part.id else []
        if owners and all(not one.results and one.same_as(owners[0]) for one in owners):
            owners[-1].results.append((number, part))
        else:
            pairs.orphans.append((number, part))
    return pairs


def _owner(pairs: Pairs, result: Part) -> Pair | None:
    if not result.id:
        # Without an id it is the one open call's, or the only one's of that tool; else nobody can tell.
        still_open = [one for one in pairs.all() if not one.results]
        named = [one for one in still_open if result.name and one.call.name == result.name] or still_open
        return named[0] if len(named) == 1 else None
    owners = pairs.by_id.get(result.id, [])
    unanswered = [one for one in owners if not one.results]
    if unanswered:
        newest = unanswered[-1].turn
        return next(one for one in unanswered if one.turn == newest)
    return owners[-1] if owners else None
