"""Pairing: every call has its one result where the protocol wants it, and every result its call.

Calls and results find each other by occurrence, not by name alone: services and agents use an id again in a later
turn. A result belongs to the newest open call of its name before it. Real results are moved, never made up; what was
not recorded is said by whoever knows (`Known`), or called unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from harnessd.defence.line3_repair.transcript.pairs.matching import Pair, Pairs, match
from harnessd.defence.line3_repair.transcript.pairs.naming import Namer
from harnessd.defence.line3_repair.transcript.pairs.placing import beside, inside
from harnessd.defence.line3_repair.transcript.receiver import Receiver
from harnessd.defence.line3_repair.transcript.turns import Kind, Notes, Part, Turn, mended, with_parts

CUT_OFF = (
    "Error: this call was not run: its arguments were cut off or are not a JSON object. "
    "Call the tool again with complete arguments."
)
INTERRUPTED = (
    "Error: the call was interrupted and no result was recorded: its outcome is unknown. "
    "It may have run. Find out what it did before you repeat it."
)
# What agents write where a result should be, before they know it.
_PLACEHOLDER = re.compile(
    r"interrupted|cancell?ed|aborted|not (?:been )?(?:run|executed)|no (?:tool )?(?:result|response|output)"
    r"|outcome (?:is )?unknown|(?:result|output|response) (?:is |was )?(?:missing|unavailable|lost)|synthetic"
    r"|before (?:it|the (?:tool|call|command)) (?:could )?(?:finish|complete|return)",
    re.IGNORECASE,
)
_HELD = re.compile(
    r"\W*(?:tool )?(?:call |execution )?(?:is )?(?:pending|skipped|running|in progress|lost)\b.{0,40}", re.IGNORECASE
)
_PLACEHOLDER_LONGEST = 400
_CUSTOM = {"type": "custom_tool_call_output"}  # Responses: calls of words are not answered as functions are


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a call without a result, in words for the model."""

    text: str
    is_error: bool = True


# Asked for each call that has no result; None: nothing is known of it.
Journal = Callable[[Turn, Part], Known | None]


def nothing_known(_turn: Turn, _call: Part) -> Known | None:
    """A transcript from somewhere: there is no journal."""
    return None


def pair(turns: list[Turn], receiver: Receiver, notes: Notes, journal: Journal) -> list[Turn]:
    """The turns with each result behind its call, no result without one, and no call without one."""
    pairs = match(turns)
    turns = _without_aborted(turns, pairs, notes)
    turns = _without_needless(turns, pairs, notes)
    if not pairs.by_turn and not pairs.orphans:
        return turns
    _choose(turns, pairs, notes)
    _answer(turns, pairs, notes, journal)
    turns = _settled(turns, pairs, Namer(receiver), notes)
    if receiver.protocol == "anthropic":
        return inside(turns, pairs, notes)
    items = receiver.protocol == "openai-responses"
    return beside(turns, pairs, notes, items=items, anywhere=items and not receiver.adjacent)


def _without_aborted(turns: list[Turn], pairs: Pairs, notes: Notes) -> list[Turn]:
    """An answer that broke off is no part of the view, unless one of its calls was done all the same."""
    left = list(turns)
    for number, turn in enumerate(turns):
        mine = pairs.by_turn.get(number, [])
        if not turn.aborted or any(one.results for one in mine):
            continue
        notes.add("aborted_answer", turn, "an answer that ended in an error or was stopped is left out")
        left[number] = replace(turn, parts=(), touched=True)
        for one in mine:
            pairs.forget(one)
    return left


def _without_needless(turns: list[Turn], pairs: Pairs, notes: Notes) -> list[Turn]:
    """A call stored twice was made once: the copy that nobody answered goes. So does one that never got arguments."""
    left = list(turns)
    for number in list(pairs.by_turn):
        gone = [one for one in pairs.by_turn[number] if not one.results and _needless(one, pairs, turns)]
        for one in gone:
            what = "came without arguments and was never run" if one.call.missing else "is there twice"
            code = "call_without_input" if one.call.missing else "duplicate_call"
            notes.add(code, turns[number], f"the call {one.call.id} {what}: left out")
            pairs.forget(one)
        calls = {id(one.call) for one in gone}
        left[number] = with_parts(left[number], tuple(p for p in left[number].parts if id(p) not in calls))
    return left


def _needless(one: Pair, pairs: Pairs, turns: list[Turn]) -> bool:
    if one.call.missing:
        return True
    if not one.call.id:
        return False
    same = [other for other in pairs.by_id[one.call.id] if other.same_as(one) and _in_one_breath(one, other, turns)]
    # Of equal ones an answered one stays, else the first. After somebody else spoke, it is another call.
    return any(other.results for other in same) or same[0] is not one


def _in_one_breath(one: Pair, other: Pair, turns: list[Turn]) -> bool:
    first, last = sorted((one.turn, other.turn))
    return all(turn.role == "assistant" for turn in turns[first : last + 1])


def _choose(turns: list[Turn], pairs: Pairs, notes: Notes) -> None:
    for number, part in pairs.orphans:
        whose = part.id or "a call without a name"
        notes.add("orphan_result", turns[number], f"a result for {whose}, which nobody called: left out")
    for one in pairs.all():
        if not one.results:
            continue
        one.home, one.chosen = min(one.results, key=lambda found: _rank(found[1]))
        for number, part in one.results:
            if part is not one.chosen:
                notes.add("duplicate_result", turns[number], f"{one.call.id} has more than one result: one is kept")


def _rank(result: Part) -> int:
    """A real result before one that failed, that before an empty one, and all before words that only held its place.

    Of equals the first is kept. A failure beside a result is mostly what an agent wrote when it lost sight of the call.
    """
    if result.inner is not None or result.carried:
        return 0
    if len(result.text) <= _PLACEHOLDER_LONGEST and (_PLACEHOLDER.search(result.text) or _HELD.fullmatch(result.text)):
        return 3
    failed = result.is_error or result.text.lstrip()[:5].lower() == "error"
    return 2 if not result.text.strip() else int(failed)


def _answer(turns: list[Turn], pairs: Pairs, notes: Notes, journal: Journal) -> None:
    for one in pairs.all():
        if one.chosen is not None:
            continue
        turn = turns[one.turn]
        known = journal(turn, one.call) or Known(CUT_OFF if one.call.invalid else INTERRUPTED)
        notes.add("unanswered_call", turn, f"{one.call.id or one.call.name} has no result: it gets one that says so")
        wire = (
            _CUSTOM if isinstance(one.call.wire, Mapping) and one.call.wire.get("type") == "custom_tool_call" else None
        )
        text, id_ = known.text, one.call.id
        one.chosen = Part(Kind.RESULT, text=text, id=id_, is_error=known.is_error, wire=wire, touched=True)


def _settled(turns: list[Turn], pairs: Pairs, namer: Namer, notes: Notes) -> list[Turn]:
    """Ids as the receiver takes them, each used once, the same on call and result; results that are not kept go."""
    fresh: dict[int, Part | None] = {id(part): None for _, part in pairs.orphans}
    for one in pairs.all():
        name = namer.name(one.call, turns[one.turn], notes)
        fresh.update({id(part): None for _, part in one.results})
        call, chosen = one.call, one.chosen
        if call.id != name:
            one.call = mended(call, id=name)
        if chosen is not None and chosen.id != name:
            one.chosen = mended(chosen, id=name)
        fresh |= {id(call): one.call, id(chosen): one.chosen}
    settled = []
    for turn in turns:
        parts = tuple(kept for part in turn.parts if (kept := fresh.get(id(part), part)) is not None)
        settled.append(with_parts(turn, parts))
    return settled
