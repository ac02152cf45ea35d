"""Naming: ids of calls as the receiver takes them, each once, derived from what they were.

The same history gives the same ids in every request, so that the service's prompt cache holds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from harnessd.defence.line3_repair.transcript.receiver import Receiver
from harnessd.defence.line3_repair.transcript.turns import Notes, Part, Turn


@dataclass(slots=True)
class Namer:
    """Gives names in the order of calls, and remembers them."""

    receiver: Receiver
    used: set[str] = field(default_factory=set)

    def name(self, call: Part, turn: Turn, notes: Notes) -> str:
        """The id of the next call: its own, where the receiver takes it and no earlier call has it."""
        own = call.id
        fits = self.receiver.id_shape.fullmatch(own) is not None
        if fits and own not in self.used:
            self.used.add(own)
            return own
        if not own:
            notes.add("bad_id", turn, f"a call of {call.name} without an id gets one")
        elif not fits:
            notes.add("bad_id", turn, f"the id {own[:60]!r} is not of the form that the receiver takes")
        else:
            notes.add("duplicate_id", turn, f"the id {own} was used before: this call and its result get another")
        return self._derived(own)

    def _derived(self, own: str) -> str:
        seed, number = own, 1
        while True:
            digest = hashlib.sha256(seed.encode("utf-8", "replace")).hexdigest()
            fresh = digest[: self.receiver.id_length]
            if fresh not in self.used and fresh != own:
                self.used.add(fresh)
                return fresh
            number += 1
            seed = f"{own}#{number}"
