"""Placing: each result stands where its protocol wants it; a real one is moved there, never copied."""

from __future__ import annotations

from dataclasses import replace

from harnessd.defence.line3_repair.transcript.pairs.matching import Pair, Pairs
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Turn, with_parts


def inside(turns: list[Turn], pairs: Pairs, notes: Notes) -> list[Turn]:
    """Anthropic: all results of a message's calls are the first blocks of the user's message right behind it."""
    out: list[Turn] = []
    owed: list[Pair] = []
    for number, turn in enumerate(turns):
        if owed and turn.role == "user":
            out.append(_opened(number, turn, owed, notes))
            owed = []
            continue
        if owed:
            out.append(_results_turn(turns, owed, notes))
        out.append(with_parts(turn, _words(turn)))
        owed = pairs.by_turn.get(number, [])
    if owed:
        out.append(_results_turn(turns, owed, notes))
    return out


def _words(turn: Turn) -> tuple[Part, ...]:
    return tuple(part for part in turn.parts if part.kind is not Kind.RESULT)


def _opened(number: int, turn: Turn, owed: list[Pair], notes: Notes) -> Turn:
    """The user's message with the results in front: those it held in their order, then the others."""
    held = [one for part in turn.parts for one in owed if part is one.chosen]
    first = held + [one for one in owed if one.home != number]
    _tell_moved([one for one in first if one.home != number], notes, turn)
    opened = with_parts(turn, _bare(first) + _words(turn))
    if opened is not turn and {*map(id, opened.parts)} == {*map(id, turn.parts)}:
        notes.add("results_not_first", turn, "results stand before everything else that a message says")
    return opened


def _results_turn(turns: list[Turn], owed: list[Pair], notes: Notes) -> Turn:
    asked = turns[owed[0].turn]
    _tell_moved(owed, notes, asked)
    return Turn("user", _bare(owed), place=asked.place, touched=True)


def _bare(owed: list[Pair]) -> tuple[Part, ...]:
    """Results, then the pictures that may not stand in them."""
    chosen = [one.chosen for one in owed if one.chosen is not None]
    carried = tuple(media for part in chosen for media in part.carried)
    return tuple(replace(part, carried=()) if part.carried else part for part in chosen) + carried


def _tell_moved(owed: list[Pair], notes: Notes, turn: Turn) -> None:
    for one in owed:
        if one.home is not None:
            notes.add("displaced_result", turn, f"the result of {one.call.id} stands elsewhere: moved behind its call")


def beside(turns: list[Turn], pairs: Pairs, notes: Notes, *, items: bool, anywhere: bool) -> list[Turn]:
    """OpenAI: each result is a message or an item of its own, behind the calls that were made together.

    `items`: neighbouring calls are one group. `anywhere`: a result may stand wherever it likes behind its call.
    """
    out: list[Turn] = []
    owners = {one.home: one for one in pairs.all() if one.home is not None}
    owed: list[Pair] = []
    for number, turn in enumerate(turns):
        if turn.role == "tool":
            mine = owners.get(number)
            if anywhere and mine is not None and mine.turn < number:
                out.append(turn)
            continue
        out.append(turn)
        owed += [one for one in pairs.by_turn.get(number, []) if not (anywhere and (one.home or 0) > one.turn)]
        if owed and not (items and _asks_too(turns, number + 1)):
            out += _answers(turns, number, owed, notes)
            owed = []
    return out


def _asks_too(turns: list[Turn], number: int) -> bool:
    """Whether the turn is one more call of the same group."""
    if number >= len(turns):
        return False
    turn = turns[number]
    return turn.role == "assistant" and bool(turn.parts) and all(part.kind is Kind.CALL for part in turn.parts)


def _answers(turns: list[Turn], number: int, owed: list[Pair], notes: Notes) -> list[Turn]:
    """The results of a group of calls: those right behind it in their order, then the others in that of the calls."""
    end = number + 1
    while end < len(turns) and turns[end].role == "tool":
        end += 1
    behind = sorted((one for one in owed if number < (one.home or 0) < end), key=lambda one: one.home or 0)
    others = [one for one in owed if all(one is not other for other in behind)]
    _tell_moved(others, notes, turns[number])
    out = [_own_turn(turns, one) for one in behind + others if one.chosen is not None]
    carried = tuple(media for turn in out for part in turn.parts for media in part.carried)
    if carried:
        out.append(Turn("user", carried, place=turns[number].place, touched=True))
    return out


def _own_turn(turns: list[Turn], one: Pair) -> Turn:
    if one.home is not None:
        return turns[one.home]
    parts = () if one.chosen is None else (one.chosen,)
    return Turn("tool", parts, place=turns[one.turn].place, touched=True)
