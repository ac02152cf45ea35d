"""Lines: the form of an exported session: JSON lines; the first says what they are, the last that they are whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from harnessd.domain.effect import well_formed

FORMAT = "harnessd-session"
VERSION = 1
# Before the payload no value holds it: inside a JSON string each quote has a backslash before it.
PAYLOAD = ',"payload":'
# In the order in which they stand in a file, the first two and the last once.
TYPES = ("header", "task", "node", "effect", "decision", "event", "question", "checkpoint", "end")
CONTENTS = "The files of the workspace and of its checkpoints are not in here, only what is known of them."


class Lines:
    """Writes the lines of one session; each call gives the bytes of one line."""

    def __init__(self) -> None:
        """Nothing is written yet."""
        self._sum = sha256()
        self._counts: Counter[str] = Counter()

    def header(self, program: str, now: float, origin: str = "") -> bytes:
        """The first line. `origin` is in words where the session comes from, if it was none of ours."""
        about = {"format": FORMAT, "version": VERSION, "program": program, "exported_at": now, "contents": CONTENTS}
        return self.line("header", about | ({"origin": origin} if origin else {}))

    def line(self, type_: str, row: Mapping[str, Any], payload: str | None = None) -> bytes:
        """One line; a `payload` is JSON already and stands last, byte for byte."""
        text = json.dumps({"type": type_, **row}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        if payload is not None:
            text = f"{text[:-1]}{PAYLOAD}{payload}}}"
        data = f"{text if text.isascii() else well_formed(text)}\n".encode()
        self._counts[type_] += 1
        self._sum.update(data)
        return data

    def end(self) -> bytes:
        """The last line: how many lines of each type there are, and the SHA-256 of all bytes before it."""
        counts, total = dict(self._counts), self._sum.hexdigest()
        return self.line("end", {"counts": counts, "sha256": total})
