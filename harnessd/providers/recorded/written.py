"""Written: the evidence of a decision as the record that is read again: same facts, same class, no secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from harnessd.domain.failure import Failure
from harnessd.providers.recorded import FACTS, outcome, read_record

_EVENT_NAMES = {"anthropic": ("event: error",), "openai-responses": ("event: error",)}
# What is shown of a wait is worked out again from the answer; it differs by what time had passed until it was read.
_WAIT_TOLERANCE_S = 2.0


def record_of(evidence: Mapping[str, Any], at: float) -> dict[str, Any] | None:
    """The record of a model's failed call, or None where the evidence tells of no answer of a model service.

    `at` is when it was decided about, in seconds since the Unix epoch. What the answer was like on the wire is kept
    only in part; where reading the record alone would not give the same facts, they stand beside it under `facts`.
    """
    answer: Mapping[str, Any] = evidence.get("answer") or {}
    name = str(evidence.get("dependency", ""))
    if not answer.get("protocol") or not name.startswith("model/"):
        return None
    known = {fact: value for fact in FACTS if (value := answer.get(fact, evidence.get(fact))) is not None}
    now = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"protocol": answer["protocol"], "dependency": name, "now": now}
    record |= _wire(evidence, answer, known)
    facts = _not_told(record, known, at)
    return record | ({"facts": facts} if facts else {})


def _wire(evidence: Mapping[str, Any], answer: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Status, headers and what followed them, as far as it is known."""
    found: dict[str, Any] = {}
    status, words = evidence.get("status"), str(known.get("message", ""))
    if status is not None:
        found["status"] = status
    found["headers"] = dict(answer.get("headers") or {})
    if transport := evidence.get("transport"):
        found["transport_error"] = f"{transport}: {words}"
        if known.get("ended") == "cut":
            found["sse"] = ""  # a stream had begun
    elif status is None:
        found["transport_error"] = words
    elif not 200 <= status < 300:
        found["body"] = answer["body"] if answer.get("body") is not None else words
    elif known.get("ended") == "error" and answer.get("body") is not None:
        names = _EVENT_NAMES.get(answer["protocol"], ())
        found["sse"] = [*names, f"data: {json.dumps(answer['body'], ensure_ascii=False)}", ""]
    else:
        found["sse"] = ""
    return found


def _not_told(record: Mapping[str, Any], known: Mapping[str, Any], at: float) -> dict[str, Any]:
    """The facts that reading the record does not give."""
    told = outcome(read_record(record, at))
    facts: dict[str, Any] = {}
    for fact in FACTS:
        seen = _plain(getattr(told, fact, None)) if isinstance(told, Failure) else None
        wanted = known.get(fact)
        if fact == "retry_after_s" and seen is not None and wanted is not None:
            if abs(seen - wanted) <= _WAIT_TOLERANCE_S:
                continue
        elif seen == wanted:
            continue
        facts[fact] = wanted
    return facts


def _plain(value: Any) -> Any:
    """A fact as JSON has it; what is not there counts as not said."""
    return None if value in ("", False) else getattr(value, "value", value)
