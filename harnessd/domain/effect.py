"""Effect: what a tool call does to the world, and how one act is recognised again.

`H(task, tool, canonical arguments, n)`: n = 1 + the equal calls that are done and whose results stand in the view this
call was planned from + equal calls earlier in the same reply. Two wanted equal acts both run; the twin of a call whose
outcome the model never saw meets the old key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EffectClass(StrEnum):
    """What a repeat or a crash may do, mildest first."""

    READ_ONLY = "read_only"
    REVERSIBLE = "reversible"
    IDEMPOTENT = "idempotent"
    IRREVERSIBLE = "irreversible"


class EffectState(StrEnum):
    """`intent` -> `started` -> `done | failed | unknown`."""

    INTENT = "intent"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"

    @property
    def open(self) -> bool:
        """No outcome is recorded."""
        return self in (EffectState.INTENT, EffectState.STARTED)


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of the journal: an intent, later its outcome.

    `kind` is `tool`, `model` or `probe` (a read that asks whether another act was done). `node` is the assistant node
    that asked for a tool call, or the node a model call was planned from. `id` is unique in the task (`e7`). `result`
    is the outcome's JSON.
    """

    id: str
    kind: str
    node: str
    call_id: str
    name: str  # tool/bash, model/primary
    effect_class: EffectClass
    state: EffectState
    key: str | None = None
    arguments: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    attempt: int = 1
    at: float = 0.0


def canonical_json(value: Any) -> str:
    """One spelling for one JSON value: sorted keys, no spaces, lone surrogates replaced by U+FFFD, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return well_formed(text)


def well_formed(text: str) -> str:
    """The text with halves of surrogate pairs joined where both are there, and U+FFFD for each lone one."""
    if not _has_surrogates(text):
        return text
    # UTF-16 is where the halves come from: only its decoder knows which of them belong together.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain(value: Any) -> Any:
    """One spelling for one meaning: blanks in texts, 1 or 1.0 or 1e0, and what is null make no other value.

    A model that plans an act again writes it anew, and rarely letter by letter.
    """
    match value:
        case str():
            return " ".join(value.split())
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {name: plain(inner) for name, inner in value.items() if inner is not None}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return value


def effect_key(task: str, tool: str, arguments: Mapping[str, Any], occurrence: int) -> str:
    """The idempotency key of an act: 32 hexadecimal characters, the same for the same act replanned."""
    text = canonical_json([task, tool, plain(arguments), occurrence])
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]


def _has_surrogates(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
