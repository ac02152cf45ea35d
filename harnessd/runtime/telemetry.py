"""Telemetry: structured logs on standard error, one JSON line an event (or a readable one on a terminal)."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

from harnessd.runtime.redact import Redactor

Log = structlog.stdlib.BoundLogger
Fields = MutableMapping[str, Any]

# What drives a terminal or reorders a line: C0, DEL, C1, zero width, line separators, bidirectional controls, halves of
# surrogate pairs. JSON itself escapes C0 alone.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")
# sd-daemon(3): a line may begin with its level, which journald takes off again.
_JOURNAL_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_COUNT_S = 60.0
_KINDS = 512


def configure(redactor: Redactor, *, stream: TextIO | None = None, debug: bool = False) -> None:
    """Set the log pipeline up once, secrets struck out last of all processors."""

    def strike_out(_: Any, __: str, event: Fields) -> Fields:
        return {key: redactor.value(value) for key, value in event.items()}

    out = stream or sys.stderr
    journal = _is_journal(out)
    terminal = out.isatty()
    stamp = () if journal else (structlog.processors.TimeStamper(fmt="iso", utc=True),)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            Thinned(),
            *stamp,
            structlog.processors.dict_tracebacks,
            strike_out,
            *((_one_line, structlog.dev.ConsoleRenderer(colors=False)) if terminal else (_json(journal=journal),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )
    # What libraries say goes the same way: one line each, secrets struck out.
    root = logging.getLogger()
    root.handlers[:] = [*(each for each in root.handlers if not isinstance(each, _Libraries)), _Libraries()]


def log(name: str) -> Any:
    """A logger for one room."""
    return structlog.get_logger(component=name)


class Thinned:
    """Of events with a `kind`: the first in full, then one line a minute that says how many there were meanwhile.

    journald drops what comes too fast, the important lines with it; a service that is down must not fill it.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[Any, tuple[float, int]] = {}  # kind -> when it was last said, how many since

    def __call__(self, _: Any, __: str, event: Fields) -> Fields:
        """As a structlog processor: gives the event on, or drops it."""
        kind = event.pop("kind", None)
        if kind is None:
            return event
        now = self._now()
        said_at, since = self._seen.pop(kind, (None, 0))
        if said_at is not None and now - said_at < _COUNT_S:
            self._seen[kind] = (said_at, since + 1)
            raise structlog.DropEvent
        while len(self._seen) >= _KINDS:
            del self._seen[next(iter(self._seen))]
        self._seen[kind] = (now, 0)
        return event if since == 0 else {**event, "repeated": since + 1}


class _Libraries(logging.Handler):
    """Records of the standard library's logging, as events of ours."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        fields = {}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        say = log(record.name).error if record.levelno >= logging.ERROR else log(record.name).warning
        say(record.getMessage(), **fields)


def _json(*, journal: bool) -> Callable[[Any, str, Fields], str]:
    render = structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False, default=str)

    def line(logger: Any, name: str, event: Fields) -> str:
        text = _UNSAFE.sub(_escaped, str(render(logger, name, event)))
        return f"<{_JOURNAL_LEVELS.get(str(event.get('level')), 6)}>{text}" if journal else text

    return line


def _one_line(_: Any, __: str, event: Fields) -> Fields:
    return {key: _safe(value) for key, value in event.items()}


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return _UNSAFE.sub(_escaped, value)
    if isinstance(value, Mapping):
        return {_safe(key): _safe(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(inner) for inner in value]
    return value


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _is_journal(out: TextIO) -> bool:
    """systemd.exec(5): JOURNAL_STREAM names device and inode of the stream that journald reads."""
    try:
        facts = os.fstat(out.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{facts.st_dev}:{facts.st_ino}"
