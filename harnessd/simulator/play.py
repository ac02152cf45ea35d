"""Playing a script: the first turn that fits the transcript answers, its templates filled from what was shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harnessd.simulator.answer import Answer, PlannedCall, call_id, cut_to_tokens
from harnessd.simulator.script import Script, ScriptedCall, Turn
from harnessd.simulator.transcript import Call, Transcript
from harnessd.simulator.values import fits

PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?:([+-]\d+))?(?::(int))?\}")
NO_TURN = "I have no line for this point of the conversation."
SUMMARY = """\
## Goal
{first_user}

## Progress
{turn} answers and {results} tool results so far. The newest:
{newest}

## Decisions
None beyond the above.

## Files
As named above.

## Next steps
Go on from the newest result."""


@dataclass(frozen=True, slots=True)
class Played:
    """The answer, the name of the turn that gave it, and what is odd about it, if anything."""

    answer: Answer
    turn: str
    odd: str = ""


def play(script: Script, transcript: Transcript, salt: str = "") -> Played:
    """The answer of a script at this point. `salt` goes into the ids of calls; empty: the same ids each time."""
    unoffered = ""
    for turn in script.turns:
        captures = fitting(turn, script, transcript)
        if captures is None:
            continue
        calls = list(turn.calls) if not turn.again else [again(call) for call in transcript.last_calls]
        missing = [call.tool for call in calls if call.tool not in transcript.tools]
        if missing:
            # A model cannot call what it was not offered; a later turn may do without.
            unoffered = unoffered or f"{turn.name}: {missing[0]} was not offered"
            continue
        answer = answer_of(turn, calls, captures, transcript, salt)
        return Played(cut_to_tokens(answer, transcript.max_tokens), turn.name)
    if not transcript.tools:
        return Played(cut_to_tokens(Answer(say=summary_of(transcript)), transcript.max_tokens), "summary")
    return Played(Answer(say=NO_TURN), "none", unoffered or "no turn fits this transcript")


def again(call: Call) -> ScriptedCall:
    """The same call once more."""
    return ScriptedCall(call.tool, dict(call.arguments) if isinstance(call.arguments, Mapping) else {})


def summary_of(transcript: Transcript) -> str:
    """The built-in answer of a model without tools: the request and the newest results, in five headings."""
    newest = "\n".join(result.text[-400:] for result in transcript.results[-2:]) or transcript.last_text[-800:]
    values = {"first_user": transcript.first_user[:800], "newest": newest}
    return fill(SUMMARY, {**builtins_of(transcript), **values})


def fitting(turn: Turn, script: Script, transcript: Transcript) -> dict[str, str] | None:
    """The captures of a turn that fits, None for one that does not."""
    if not all(holds(key, wanted, turn, transcript) for key, wanted in turn.when.items()):
        return None
    captures = builtins_of(transcript)
    captures |= {f"wild{n}": text for n, text in enumerate(script.wild, start=1)}
    for key, pattern in turn.patterns.items():
        found = last_match(pattern, text_for(key, transcript))
        if found is None:
            return None
        captures |= {name: text for name, text in found.groupdict().items() if text is not None}
    for name, pattern in turn.captures.items():
        text = captured(pattern, transcript)
        if text is None:
            return None
        captures[name] = text
    return captures if relations_hold(turn, captures) else None


def relations_hold(turn: Turn, captures: Mapping[str, str]) -> bool:
    """`equal: [a, b]` and `differ: [a, b]` compare templates after filling."""
    equal, differ = turn.when.get("equal"), turn.when.get("differ")
    same = not equal or fill(str(equal[0]), captures) == fill(str(equal[1]), captures)
    return same and (not differ or fill(str(differ[0]), captures) != fill(str(differ[1]), captures))


def holds(key: str, wanted: Any, turn: Turn, transcript: Transcript) -> bool:
    """One condition; patterns and relations are tried with the captures."""
    results = transcript.last_results
    where = f"{turn.name}.when.{key}"
    match key:
        case "first":
            return (transcript.turn == 0) is bool(wanted)
        case "last_tool":
            tools = wanted if isinstance(wanted, list) else [wanted]
            return any(result.tool in tools for result in results)
        case "results":
            return fits(len(transcript.results), wanted, where)
        case "turn":
            return fits(transcript.turn, wanted, where)
        case "tool_failed":
            return any(result.failed for result in results) is bool(wanted)
        case "offered":
            offered = wanted if isinstance(wanted, list) else [wanted]
            return all(tool in transcript.tools for tool in offered)
        case "no_tools":
            return (not transcript.tools) is bool(wanted)
        case _:
            return True


def text_for(key: str, transcript: Transcript) -> str:
    """What a pattern of this key looks at."""
    match key:
        case "matches":
            return "\n".join(result.text for result in transcript.last_results)
        case "last_text_matches":
            return transcript.last_text
        case "user_matches":
            return transcript.user_text
        case "system_matches":
            return transcript.system
        case "last_call_matches":
            return "\n".join(f"{call.tool} {json.dumps(call.arguments)}" for call in transcript.last_calls)
        case _:
            return transcript.everything


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last place that fits: the newest word counts."""
    found = None
    for found in pattern.finditer(text):  # noqa: B007 - only the last one is wanted
        pass
    return found


def captured(pattern: re.Pattern[str], transcript: Transcript) -> str | None:
    """What a capture finds: newest result first, then anything shown, so that a compacted past still counts."""
    texts = [result.text for result in reversed(transcript.results)]
    for text in [*texts, transcript.everything]:
        found = last_match(pattern, text)
        if found:
            return found[1] if pattern.groups else found[0]
    return None


def builtins_of(transcript: Transcript) -> dict[str, str]:
    """Captures that every turn has."""
    results = transcript.results
    return {
        "turn": str(transcript.turn),
        "results": str(len(results)),
        "step": str(len(results) + 1),
        "model": transcript.model,
        "first_user": transcript.first_user,
        "last_text": transcript.last_text,
        "last_result": results[-1].text if results else "",
        "tools": ", ".join(transcript.tools),
    }


def fill(template: str, captures: Mapping[str, str]) -> str:
    """Put captures in their places. `{k+1}` counts on; braces around no capture stay, as shell and code need them."""

    def place(found: re.Match[str]) -> str:
        name, offset, _ = found.groups()
        if name not in captures:
            return found[0]
        if offset is None:
            return captures[name]
        try:
            return str(int(captures[name]) + int(offset))
        except ValueError:
            return found[0]

    return PLACE.sub(place, template)


def fill_value(value: Any, captures: Mapping[str, str]) -> Any:
    """Templates anywhere in a value; a text that is `{name:int}` altogether becomes a number."""
    if isinstance(value, str):
        filled = fill(value, captures)
        whole = PLACE.fullmatch(value)
        return int(filled) if whole and whole[3] and filled.lstrip("-").isdigit() else filled
    if isinstance(value, Mapping):
        return {str(key): fill_value(inner, captures) for key, inner in value.items()}
    if isinstance(value, list):
        return [fill_value(inner, captures) for inner in value]
    return value


def answer_of(
    turn: Turn, calls: list[ScriptedCall], captures: Mapping[str, str], transcript: Transcript, salt: str
) -> Answer:
    """The turn with its templates filled."""
    prefix = "toolu_" if transcript.protocol == "anthropic" else "call_"
    planned = tuple(
        PlannedCall(
            id=call_id(prefix, transcript, n, salt),
            tool=call.tool,
            arguments=json_safe(fill_value(call.args, captures)),
            raw=None if call.raw is None else fill(call.raw, captures),
        )
        for n, call in enumerate(calls)
    )
    return Answer(
        say=fill(turn.say, captures).strip(),
        think=fill(turn.think, captures).strip(),
        calls=planned,
        finish=turn.finish or ("tool_use" if planned else "stop"),
        delay_s=turn.delay_s,
        pace_s=turn.pace_s,
        usage=turn.usage,
    )


def json_safe(value: Any) -> dict[str, Any]:
    """Arguments as JSON would give them back: dates and the like of YAML become text."""
    safe: dict[str, Any] = json.loads(json.dumps(value, default=str))
    return safe
