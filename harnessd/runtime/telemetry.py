"""Telemetry: structured logs on standard error, one JSON line an event (or a readable one on a terminal)."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, TextIO

import structlog

from harnessd.runtime.observing.sink import JOURNAL, Line, Sink, journal_name
from harnessd.runtime.redact import Redactor

Log = structlog.stdlib.BoundLogger
Fields = MutableMapping[str, Any]

# What drives a terminal or reorders a line: C0, DEL, C1, zero width, line separators, bidirectional controls, halves of
# surrogate pairs. JSON itself escapes C0 alone.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")
# sd-daemon(3): a line may begin with its level, which journald takes off again.
_JOURNAL_LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_COUNT_S = 60.0
_KIND_CHARS = 80  # of a library's words: enough to tell two of its complaints apart
_NO_DESCRIPTORS = (
    "No file descriptor is left: new connections wait, what runs goes on. "
    "Raise the limit (LimitNOFILE in the unit) or end what holds them."
)
_KINDS = 512


def configure(
    redactor: Redactor, *, stream: TextIO | None = None, debug: bool = False, journal_socket: str = JOURNAL
) -> Sink:
    """Set the log pipeline up once, secrets struck out last of all processors; gives where the lines go.

    Where standard error is the journal's stream, events go there by its native protocol, each value a field of its own
    (`journalctl HARNESS_TASK=8k41d2`); as lines with a level in front where its socket cannot be reached.
    """

    def strike_out(_: Any, __: str, event: Fields) -> Fields:
        return {key: redactor.value(value) for key, value in event.items()}

    out = stream or sys.stderr
    journal = _is_journal(out)
    terminal = out.isatty()
    stamp = () if journal else (structlog.processors.TimeStamper(fmt="iso", utc=True),)
    lost: Callable[[int], Line] = partial(_lost, journal=journal, terminal=terminal)
    sink = Sink(out.fileno(), lost=lost, journal=journal_socket if journal else None)
    console = structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            Thinned(),
            *stamp,
            structlog.processors.dict_tracebacks,
            strike_out,
            *((_one_line, _console(console)) if terminal else (_json(journal=journal),)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=lambda *_: _ToSink(sink),
        cache_logger_on_first_use=True,
    )
    # What libraries say goes the same way: one line each, secrets struck out.
    root = logging.getLogger()
    root.handlers[:] = [*(each for each in root.handlers if not isinstance(each, _Libraries)), _Libraries()]
    return sink


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
        kind = (record.name, record.levelno, str(record.msg)[:_KIND_CHARS])
        cause = record.exc_info[1] if record.exc_info else None
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            # asyncio says it for every connection that waits, thousands of times a second.
            log(record.name).error("no_descriptors", kind=(record.name, cause.errno), sentence=_NO_DESCRIPTORS)
            return
        fields: dict[str, Any] = {"kind": kind}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        say = log(record.name).error if record.levelno >= logging.ERROR else log(record.name).warning
        say(record.getMessage(), **fields)


class _ToSink:
    """The last step of the pipeline: a line is handed over, whatever its level."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def msg(self, line: Line) -> None:
        """Hand over."""
        self._sink.put(line)

    debug = info = warning = error = critical = exception = fatal = msg


Step = Callable[[Any, str, Fields], tuple[tuple[Line], dict[str, Any]]]


def _json(*, journal: bool) -> Step:
    render = structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False, default=str)

    def line(logger: Any, name: str, event: Fields) -> tuple[tuple[Line], dict[str, Any]]:
        fields = _journal_fields(event) if journal else None
        text = _UNSAFE.sub(_escaped, str(render(logger, name, event)))
        level = _JOURNAL_LEVELS.get(str(event.get("level")), 6)
        return (Line(f"<{level}>{text}" if journal else text, fields),), {}

    return line


def _console(render: structlog.dev.ConsoleRenderer) -> Step:
    def line(logger: Any, name: str, event: Fields) -> tuple[tuple[Line], dict[str, Any]]:
        return (Line(str(render(logger, name, event))),), {}

    return line


def _journal_fields(event: Fields) -> dict[str, str]:
    """What the journal keeps: a line for people, and every value under a name of its own."""
    told = {name: value for name, value in event.items() if name not in ("event", "level", "component")}
    words = " ".join(f"{name}={_safe(value)}" for name, value in told.items())
    fields = {
        "MESSAGE": f"{_safe(str(event.get('event', '')))} {words}".rstrip(),
        "PRIORITY": str(_JOURNAL_LEVELS.get(str(event.get("level")), 6)),
        "SYSLOG_IDENTIFIER": "harnessd",
    }
    return fields | {
        journal_name(name): value if isinstance(value, str) else str(value) for name, value in event.items()
    }


def _lost(count: int, *, journal: bool, terminal: bool) -> Line:
    """The line that says what nobody will read."""
    event: Fields = {"event": "log_lines_dropped", "level": "warning", "component": "log", "count": count}
    if terminal:
        return Line(f"[warning] log_lines_dropped count={count}")
    return _json(journal=journal)(None, "warning", event)[0][0]


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
