"""Ledger: what was asked and how it ended; the service's answer to `GET /requests`. Keys never enter it."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from harnessd.simulator.transcript import Shown, Transcript

KEPT = 2000
KEPT_WHOLE = 200  # transcripts; older ones keep their summary only


@dataclass(slots=True)
class Entry:
    """One request. `ended`: open, held, complete, faulted, refused, client_gone."""

    n: int
    at: float
    path: str
    model: str = ""
    protocol: str = ""
    stream: bool = False
    turn: int = 0
    results: int = 0
    tokens: int = 0
    max_tokens: int = 0
    position: str = ""
    attempt: int = 0
    first_user: str = ""
    status: int = 0
    fault: str = ""
    refusal: str = ""
    played: str = ""
    calls: list[str] = field(default_factory=list)
    ended: str = "open"
    took_s: float = 0.0
    said: str = ""
    within_quota: bool = False
    transcript: Transcript | None = field(default=None, repr=False)

    def as_json(self, *, shown: bool = False) -> dict[str, Any]:
        """The summary that is served; with `shown`, also the system prompt, the tools and every message."""
        summary = {name: getattr(self, name) for name in self.__slots__ if name != "transcript"}
        if shown and self.transcript:
            transcript = self.transcript
            messages = [shown_json(message) for message in transcript.messages]
            summary["shown"] = {"system": transcript.system, "tools": transcript.tools, "messages": messages}
        return summary


def shown_json(message: Shown) -> dict[str, Any]:
    """One message as a test reads it."""
    return {
        "role": message.role,
        "text": message.text,
        "calls": [{"tool": call.tool, "arguments": call.arguments, "id": call.id} for call in message.calls],
        "results": [
            {"tool": result.tool, "text": result.text, "failed": result.failed, "id": result.call_id}
            for result in message.results
        ],
    }


@dataclass(slots=True)
class Ledger:
    """All requests since start or reset."""

    total: int = 0
    open: int = 0
    peak: int = 0
    by_model: Counter[str] = field(default_factory=Counter)
    by_status: Counter[str] = field(default_factory=Counter)
    by_position: Counter[str] = field(default_factory=Counter)
    by_fault: Counter[str] = field(default_factory=Counter)
    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=KEPT))

    def begin(self, path: str) -> Entry:
        """A request came in."""
        self.total += 1
        self.open += 1
        self.peak = max(self.peak, self.open)
        entry = Entry(self.total, time.time(), path)
        self.entries.append(entry)
        return entry

    def name(self, entry: Entry, model: str, protocol: str) -> int:
        """The model is known; its count of requests so far, this one included."""
        entry.model, entry.protocol = model, protocol
        self.by_model[model] += 1
        return self.by_model[model]

    def show(self, entry: Entry, transcript: Transcript) -> int:
        """The transcript is known; the number of times that this very one was shown."""
        entry.stream, entry.turn, entry.results = transcript.stream, transcript.turn, len(transcript.results)
        entry.tokens, entry.max_tokens = transcript.tokens, transcript.max_tokens
        entry.first_user = transcript.first_user[:120]
        entry.transcript = transcript
        if len(self.entries) > KEPT_WHOLE:
            self.entries[-KEPT_WHOLE - 1].transcript = None
        entry.position = f"{transcript.model}#{transcript.turn}:{transcript.fingerprint[:8]}"
        self.by_position[entry.position] += 1
        key = (transcript.model, transcript.fingerprint)
        self.attempts[key] += 1
        entry.attempt = self.attempts[key]
        return entry.attempt

    def violate(self, entry: Entry, what: str) -> None:
        """The client broke a rule that the real service would not see."""
        self.violations.append({"n": entry.n, "model": entry.model, "turn": entry.turn, "what": what})

    def refuse(self, entry: Entry, status: int, message: str) -> None:
        """The service refused the request."""
        entry.refusal = message
        entry.status = status
        self.refusals.append({"n": entry.n, "model": entry.model, "status": status, "message": message})

    def fault(self, entry: Entry, kind: str) -> None:
        """A fault is injected."""
        entry.fault = kind
        self.by_fault[kind] += 1

    def end(self, entry: Entry, ended: str) -> None:
        """The request is over."""
        self.open -= 1
        entry.ended = ended
        entry.took_s = round(time.time() - entry.at, 4)
        self.by_status[str(entry.status)] += 1

    def as_json(self, *, last: int, held: int, shown: bool = False) -> dict[str, Any]:
        """The answer to `GET /requests`."""
        return {
            "total": self.total,
            "open": self.open,
            "peak": self.peak,
            "held": held,
            "by_model": dict(self.by_model),
            "by_status": dict(self.by_status),
            "by_position": dict(self.by_position),
            "faults": {"total": self.by_fault.total(), "by_kind": dict(self.by_fault)},
            "violations": self.violations,
            "refusals": self.refusals,
            "last": [entry.as_json(shown=shown) for entry in list(self.entries)[-last:]],
        }
