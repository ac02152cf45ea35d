"""Receipts: what was done to the world, counted by code and carried from compaction to compaction (R4.5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harnessd.domain.effect import Effect, EffectClass
from harnessd.domain.messages import ToolResultBlock
from harnessd.domain.session import Node, NodeKind, assistant_message, blocks_of

# Called with the assistant node's id and the call's id: the newest row of the journal for it.
EffectOf = Callable[[str, str], Effect | None]
Groups = tuple[Mapping[str, Any], ...]

_WORDS_MAX = 160
_RESULT_MAX = 120
_GROUPS_MAX = 400
# Numbers that count: no zeros in front, and not so long that they are ids.
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d{0,8})(?!\d)")
_STATES = {"done": "done", "unknown": "started, outcome unknown"}


def receipts_of(nodes: Iterable[Node], effect_of: EffectOf, before: Groups = ()) -> Groups:
    """The receipts of what these nodes did, on top of those that stand already.

    Equal acts are one line with a count, and a series that differs in one number alone is one line with ranges, so that
    thousands of steps stay readable. Reading is no act.
    """
    groups: dict[tuple[str, str, str], dict[str, Any]] = {_key(group): dict(group) for group in before}
    calls: dict[str, tuple[str, str, Mapping[str, Any] | None]] = {}
    for node in nodes:
        if node.kind is NodeKind.ASSISTANT:
            mended: Mapping[str, Any] = node.payload.get("facts", {}).get("mended", {})
            uses = assistant_message(node).tool_uses
            calls = {
                use.id: (node.id, use.name, mended.get(str(place), use.arguments)) for place, use in enumerate(uses)
            }
        elif node.kind is NodeKind.TOOL_RESULT:
            state = str(node.payload.get("facts", {}).get("state", ""))
            for block in blocks_of(node):
                if isinstance(block, ToolResultBlock) and block.tool_use_id in calls and state in _STATES:
                    asked, tool, arguments = calls[block.tool_use_id]
                    effect = effect_of(asked, block.tool_use_id)
                    if effect is not None and effect.effect_class is not EffectClass.READ_ONLY:
                        _add(groups, tool, state, _words(arguments, effect, block.text))
    return _bounded(groups.values())


def written(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each group, oldest first."""
    return [_line(group) for group in groups]


def _words(arguments: Mapping[str, Any] | None, effect: Effect, result: str) -> str:
    parts = []
    for name, value in (arguments or {}).items():
        text = " ".join(str(value).split()) if isinstance(value, str) else str(value)
        if len(text) > _WORDS_MAX:
            text = f"{text[:60]}... ({len(text):,} characters)"
        parts.append(f"{name}={text}")
    words = " ".join(parts)[: 2 * _WORDS_MAX]
    if effect.effect_class is EffectClass.IRREVERSIBLE:
        # What cannot be undone keeps what its receiver said: the number under which it is found again.
        words += f" -> {' '.join(result.split())[:_RESULT_MAX]}"
    return words


def _add(groups: dict[tuple[str, str, str], dict[str, Any]], tool: str, state: str, words: str) -> None:
    numbers = _NUMBER.findall(words)
    shape, number = words, None
    if numbers:
        number = int(numbers[-1])
        shape = _NUMBER.sub(lambda found: "{}" if found[0] == numbers[-1] else found[0], words)
    group = groups.setdefault((tool, state, shape), {"tool": tool, "state": state, "shape": shape, "times": 0})
    group["times"] += 1
    if number is not None:
        group["numbers"] = _with(group.get("numbers", []), number)


def _with(ranges: Sequence[Sequence[int]], number: int) -> list[list[int]]:
    """Ranges, both ends included, with one more number."""
    known = [list(pair) for pair in ranges]
    if known and known[-1][1] + 1 == number:  # the usual case: a series that counts up
        known[-1][1] = number
        return known
    if any(low <= number <= high for low, high in known):
        return known
    joined: list[list[int]] = []
    for low, high in sorted([*known, [number, number]]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return joined


def _line(group: Mapping[str, Any]) -> str:
    times, ranges = group["times"], group.get("numbers")
    shape = group["shape"]
    if ranges:
        shown = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
        single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
        shape = shape.replace("{}", shown if single else f"{{{shown}}}")
    many = f" ({times} times)" if times > 1 else ""
    return f"- {group['tool']} {shape}: {_STATES[group['state']]}{many}".replace("  ", " ")


def _bounded(groups: Iterable[Mapping[str, Any]]) -> Groups:
    """The newest groups; older ones are counted by tool, and stand one by one in the journal (`harnessctl effects`)."""
    rows = list(groups)
    if len(rows) <= _GROUPS_MAX:
        return tuple(rows)
    counted: dict[tuple[str, str, str], dict[str, Any]] = {}
    for group in rows[:-_GROUPS_MAX]:
        key = (group["tool"], group["state"], _EARLIER)
        row = counted.setdefault(key, {"tool": key[0], "state": key[1], "shape": _EARLIER, "times": 0})
        row["times"] += group["times"]
    return (*counted.values(), *rows[-_GROUPS_MAX:])


_EARLIER = "(earlier acts)"


def _key(group: Mapping[str, Any]) -> tuple[str, str, str]:
    return group["tool"], group["state"], group["shape"]
