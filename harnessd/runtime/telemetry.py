"""Telemetry: structured logs on standard error, one JSON line an event (or a readable one on a terminal)."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from harnessd.runtime.redact import Redactor

Log = structlog.stdlib.BoundLogger


def configure(redactor: Redactor, *, stream: TextIO | None = None, debug: bool = False) -> None:
    """Set the log pipeline up once, secrets struck out last of all processors."""

    def strike_out(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {key: redactor.value(value) for key, value in event.items()}

    out = stream or sys.stderr
    render: Any = (
        structlog.dev.ConsoleRenderer(colors=False)
        if out.isatty()
        else structlog.processors.JSONRenderer(sort_keys=False, ensure_ascii=False, default=str)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            strike_out,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=True,
    )


def log(name: str) -> Any:
    """A logger for one room."""
    return structlog.get_logger(component=name)
