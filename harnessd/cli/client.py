"""Connection to the daemon: HTTP over its Unix socket with the standard library, and every refusal as one Problem."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from select import select
from typing import Any

from harnessd.runtime.host.socket_path import find_socket, too_long

DONE, FAILED, USAGE, UNREACHABLE, NOT_FOUND, REFUSED, WAITS, FAULT = 0, 1, 2, 3, 4, 5, 6, 70
TIMED_OUT, INTERRUPTED = 124, 130
NO_READER = 128 + 13  # as of a tool that SIGPIPE ended
ANSWER_TIMEOUT_S = 60.0
_EXIT_OF: Mapping[str, int] = {
    "bad_request": USAGE,
    "invalid": USAGE,
    "ambiguous": USAGE,
    "too_large": USAGE,
    "not_found": NOT_FOUND,
    "conflict": REFUSED,
    "refused": REFUSED,
    "forbidden": REFUSED,
    "storage_full": REFUSED,
}
_LINE_MAX = 65536
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_URL = re.compile(r"http://([A-Za-z0-9.-]+):(\d{1,5})/?")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Problem(Exception):  # noqa: N818 - it is what a person is told
    """What is wrong, what to do about it, and the exit status."""

    def __init__(self, exit_code: int, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.exit_code, self.message, self.hint, self.code = exit_code, message, hint, code or _code(exit_code)


@dataclass(frozen=True, slots=True)
class Event:
    """One frame of a stream."""

    name: str
    data: Any


class _Wire:
    """One HTTP/1.1 connection. The standard library's own client brings TLS and mail, a third of a `status`.

    Raises OSError where the connection is lost, ValueError where the answer is not HTTP.
    """

    def __init__(self, address: str | tuple[str, int], host: str, timeout_s: float | None) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._host = host
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def ask(self, method: str, path: str, body: bytes | None) -> None:
        """Send a request. The path is quoted already."""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: application/json, text/event-stream\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        try:
            self._socket.sendall(head.encode("ascii") + b"\r\n" + (body or b""))
        except BrokenPipeError:
            # A server that refuses a large body answers before it has read it all; the answer is what counts.
            if not body:
                raise

    def answer(self) -> tuple[int, Iterator[bytes]]:
        """The status, and the body in parts."""
        first = self._line().split(None, 2)
        if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
            raise ValueError("no status line")
        headers: dict[bytes, bytes] = {}
        while line := self._line():
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip().lower()
        if headers.get(b"transfer-encoding") == b"chunked":
            return int(first[1]), self._chunks()
        return int(first[1]), self._rest(int(headers.get(b"content-length", b"-1")))

    @property
    def ended(self) -> bool:
        """An idle connection that can be read has nothing to say but its end."""
        return bool(select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """Close."""
        self._file.close()
        self._socket.close()

    def _line(self) -> bytes:
        line = self._file.readline(_LINE_MAX)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection was closed in the middle of an answer")
        return line.rstrip(b"\r\n")

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self._line().partition(b";")[0], 16):
            yield from self._rest(size)
            self._line()
        self._line()

    def _rest(self, size: int) -> Iterator[bytes]:
        while size:
            part = self._file.read1(_LINE_MAX if size < 0 else min(size, _LINE_MAX))
            if not part:
                if size > 0:
                    raise ConnectionResetError("the connection was closed in the middle of an answer")
                return
            size -= len(part) if size > 0 else 0
            yield part


class Client:
    """Talks to one daemon; the connection is kept between requests."""

    def __init__(self, socket_path: str | None = None, url: str | None = None) -> None:
        """Explicit places first, then HARNESSD_SOCKET and HARNESSD_URL, then the default sockets."""
        if socket_path is None and url is None:
            socket_path = os.environ.get("HARNESSD_SOCKET") or None
            url = None if socket_path else os.environ.get("HARNESSD_URL") or None
        if url and url.startswith("unix:"):
            socket_path, url = "/" + url.removeprefix("unix:").lstrip("/"), None
        self._url = None if socket_path else url
        self._socket = socket_path or find_socket(os.environ, os.geteuid())
        self._kept: _Wire | None = None
        self.patience_s: float | None = ANSWER_TIMEOUT_S  # None: as long as it takes

    @property
    def place(self) -> str:
        """Where this client talks to, in words."""
        return self._url or self._socket

    def get(self, path: str, query: Sequence[tuple[str, object]] = ()) -> dict[str, Any]:
        """The JSON object at a path. Raises Problem."""
        return self._answer("GET", _with(path, query), None)

    def post(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """The JSON answer to a JSON body. Raises Problem."""
        return self._answer("POST", f"{path}?dry_run=1" if dry_run else path, body)

    def stream(self, query: Sequence[tuple[str, object]]) -> Iterator[Event]:
        """The frames of /v1/events; a comment (heartbeat) comes as an Event named ``. Raises Problem."""
        wire = self._connect()
        try:
            wire.ask("GET", _with("/v1/events", query), None)
            status, parts = wire.answer()
            if status != 200:
                _judge(status, b"".join(parts))
            yield from _frames(parts)
        except (OSError, ValueError) as fault:
            raise self._gone(fault) from None
        finally:
            wire.close()

    def parts(self, path: str) -> Iterator[bytes]:
        """The bytes of a long answer, as they come. Raises Problem, also where it is cut off in the middle."""
        wire = self._connect()
        try:
            wire.ask("GET", path, None)
            status, parts = wire.answer()
            if status != 200:
                _judge(status, b"".join(parts))
            yield from parts
        except (OSError, ValueError) as fault:
            raise self._gone(fault) from None
        finally:
            wire.close()

    def upload(self, path: str, query: Sequence[tuple[str, object]], data: bytes) -> dict[str, Any]:
        """The JSON answer to a long body, which goes as it is. Raises Problem."""
        try:
            return self._exchange(self._connect(), "POST", _with(path, query), data)
        except (OSError, ValueError) as fault:
            raise self._gone(fault, asked=True) from None

    def close(self) -> None:
        """Give the connection back."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        # Half a surrogate pair (arguments of the command line that are not UTF-8) has no encoding.
        text = None if body is None else _SURROGATE.sub("\ufffd", json.dumps(body, ensure_ascii=False))
        payload = None if text is None else text.encode()
        kept, self._kept = self._kept, None
        if kept is not None and kept.ended:
            kept.close()
            kept = None
        try:
            return self._exchange(kept or self._connect(), method, path, payload)
        except (OSError, ValueError) as fault:
            # Never sent again: whether it was done cannot be known.
            raise self._gone(fault, asked=payload is not None) from None

    def _exchange(self, wire: _Wire, method: str, path: str, payload: bytes | None) -> dict[str, Any]:
        try:
            wire.ask(method, path, payload)
            status, parts = wire.answer()
            raw = b"".join(parts)
        except BaseException:
            wire.close()
            raise
        self._kept = wire
        return _judge(status, raw)

    def _connect(self) -> _Wire:
        if not self._url and (sentence := too_long(self._socket)):
            raise Problem(USAGE, f"{sentence[0].upper()}{sentence[1:]}.", "Give a shorter one with --socket.")
        try:
            if self._url:
                return _Wire(_address(self._url), self._url[7:], self.patience_s)
            return _Wire(self._socket, "harnessd", self.patience_s)
        except OSError as fault:
            raise self._unreachable(fault) from None

    def _unreachable(self, fault: OSError) -> Problem:
        if isinstance(fault, PermissionError):
            message = f"You may not talk to harnessd on {self.place}."
            return Problem(REFUSED, message, "Be its user, root, or a member of its group.", "forbidden")
        why = {
            FileNotFoundError: "there is no such socket",
            ConnectionRefusedError: "nothing listens there",
            TimeoutError: "it does not accept connections",
            BlockingIOError: "it does not accept connections",
        }.get(type(fault), fault.strerror or str(fault))
        message = f"harnessd does not answer on {self.place}: {why}."
        return Problem(UNREACHABLE, message, "Start it: systemctl start harnessd   (or: harnessd run)")

    def _gone(self, fault: BaseException, *, asked: bool = False) -> Problem:
        if isinstance(fault, TimeoutError):
            message = f"harnessd on {self.place} did not answer within {ANSWER_TIMEOUT_S:.0f}s."
            return Problem(UNREACHABLE, message, "Look at its log: journalctl -u harnessd")
        message = f"harnessd on {self.place} closed the connection before it answered."
        again = "Look first: harnessctl list. A submit with --key may be repeated."
        return Problem(UNREACHABLE, message, again if asked else "See whether it runs: harnessctl status")


def task_path(task: str, *rest: str) -> str:
    """The path of a task's route."""
    return "/".join(("/v1/tasks", *(quoted(part) for part in (task, *rest))))


def quoted(text: str) -> str:
    """The text as one part of a path or query."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))


def _with(path: str, query: Sequence[tuple[str, object]]) -> str:
    return f"{path}?{'&'.join(f'{name}={quoted(str(value))}' for name, value in query)}" if query else path


def _address(url: str) -> tuple[str, int]:
    found = _URL.fullmatch(url)
    if found is None or int(found[2]) > 65535:
        raise Problem(USAGE, f"{url} is not a URL that harnessctl knows.", "Write unix:/path or http://host:port.")
    return found[1], int(found[2])


def _judge(status: int, raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except ValueError:
        document = None
    if status < 400 and isinstance(document, dict):
        return document
    error = document.get("error") if isinstance(document, dict) else None
    if status == 503:
        raise Problem(UNREACHABLE, "harnessd has too many connections open.", "Try again in a moment.")
    if not isinstance(error, dict):
        hint = "Is something else listening on its socket?"
        raise Problem(UNREACHABLE, f"The answer (HTTP {status}) is not harnessd's.", hint)
    code = str(error.get("code", ""))
    exit_code = _EXIT_OF.get(code, FAILED)
    raise Problem(exit_code, str(error.get("message", "")), str(error.get("hint", "")), code)


def _frames(parts: Iterator[bytes]) -> Iterator[Event]:
    name, data = "", ""
    for line in _lines(parts):
        if line.startswith(":"):
            yield Event("", None)
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and name:
            yield Event(name, json.loads(data or "null"))
            name, data = "", ""


def _lines(parts: Iterator[bytes]) -> Iterator[str]:
    left = b""
    for part in parts:
        *whole, left = (left + part).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace").rstrip("\r")


def _code(exit_code: int) -> str:
    names = {USAGE: "usage", UNREACHABLE: "unreachable", NOT_FOUND: "not_found", REFUSED: "refused", WAITS: "waits"}
    return names.get(exit_code, {FAULT: "fault", TIMED_OUT: "timeout"}.get(exit_code, "failed"))
