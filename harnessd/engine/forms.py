"""Forms: has an answer the form that its agent declares; what is wrong with it, by path (R3.14)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.domain.messages import FinishReason, ModelReply
from harnessd.engine.protocol import Fits
from harnessd.engine.situation import Situation

CUT = "the answer was cut off at its token limit"
_FENCES = ("```", "~~~")
_SHOWN_MAX = 60


def formed(s: Situation, reply: ModelReply) -> dict[str, Any]:
    """What the answer's node says of its form: `output`, or `misfit` with what is wrong; nothing where none is wanted.

    The summing-up of a budget's end has no form: it says what is missing.
    """
    if s.brief.fits is None or s.counters.last_turn:
        return {}
    if reply.finish is FinishReason.LENGTH:
        return {"misfit": CUT}  # nothing of it is trusted: a number may have lost its end
    value, problems = read(reply.message.text, s.brief.fits)
    return {"misfit": "; ".join(problems)} if problems else {"output": value}


def read(text: str, fits: Fits) -> tuple[Any, Sequence[str]]:
    """The JSON value that an answer is, and why it is not the wanted one; no problems: it is.

    One shim: where words stand around exactly one fenced block, the block is the answer. Nothing else is guessed.
    """
    value, problem = _parsed(text.strip())
    if problem:
        block = _one_fenced(text)
        if block is not None:
            value, problem = _parsed(block.strip())
    return (None, (problem,)) if problem else (value, fits(value))


def _one_fenced(text: str) -> str | None:
    """What stands between the only two fences of an answer; None where there are others, or another language."""
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.strip().startswith(_FENCES)]
    if len(fences) != 2:
        return None
    first, last = (lines[number].strip() for number in fences)
    language = first.lstrip("`~").strip().lower()
    if language not in ("", "json") or first[:3] != last[:3] or last.strip("`~"):
        return None
    return "\n".join(lines[fences[0] + 1 : fences[1]])


def _parsed(text: str) -> tuple[Any, str]:
    """A JSON value by the letter of RFC 8259, and the problem where it is none."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_once)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except json.JSONDecodeError as wrong:
        near = " ".join(text[wrong.pos : wrong.pos + _SHOWN_MAX].split())
        at = f"line {wrong.lineno}, column {wrong.colno}"
        return None, f"it is not JSON ({at}: {wrong.msg.lower()}{f', at {near!r}' if near else ''})"
    except UnicodeEncodeError:
        return None, "it is not JSON: a text holds half of a surrogate pair"
    except RecursionError:
        return None, "it is nested too deeply"
    except ValueError as wrong:
        return None, f"it is not JSON: {str(wrong)[:_SHOWN_MAX]}"
    return value, ""


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:20]!r} stands twice in one object")
    return value


def ask_again(failure: Failure, form: str = "") -> str:
    """What a model is told whose answer could not be read: the exact error and the wanted form (R3.14)."""
    said = " ".join(failure.message.split()) or "no reason was given"
    if failure.call_cut:
        said += " (it was cut off at its token limit in the middle of a tool call, and nothing of it was run)"
    wanted = (
        "Answer again, in words or with tool calls whose arguments are one JSON object that fits the tool's schema."
    )
    smaller = " Write less at once: split what is large into several calls." if failure.call_cut else ""
    schema = f" The final answer's form is this JSON Schema: {form}" if form else ""
    return f"Your last answer could not be read: {said}. {wanted}{smaller}{schema}"
