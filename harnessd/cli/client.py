"""Connection to the daemon: HTTP over its Unix socket with the standard library, and every refusal as one Problem."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from harnessd.runtime.socket_path import find_socket, too_long

DONE, FAILED, USAGE, UNREACHABLE, NOT_FOUND, REFUSED, WAITS, FAULT = 0, 1, 2, 3, 4, 5, 6, 70
TIMED_OUT, INTERRUPTED = 124, 130
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
}
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


class _UnixConnection(http.client.HTTPConnection):
    """HTTP to a socket file. The host name is only a word here; the daemon knows this one."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("harnessd", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


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
        self._kept: http.client.HTTPConnection | None = None

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
        connection = self._connect()
        try:
            response = self._send(connection, "GET", _with("/v1/events", query), None)
            if response.status != 200:
                _judge(response.status, response.read())
            yield from _frames(response)
        except (http.client.HTTPException, OSError) as fault:
            raise self._gone(fault) from None
        finally:
            connection.close()

    def close(self) -> None:
        """Give the connection back."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        kept, self._kept = self._kept, None
        for connection in (*([kept] if kept else []), None):
            connection = connection or self._connect()  # noqa: PLW2901 - the second try is a new connection
            try:
                response = self._send(connection, method, path, body)
                raw = response.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as fault:
                connection.close()
                # A kept connection may have been closed while it was idle; a request that was read is answered.
                if connection is not kept:
                    raise self._gone(fault) from None
                continue
            except (http.client.HTTPException, OSError) as fault:
                connection.close()
                raise self._gone(fault) from None
            self._kept = connection
            return _judge(response.status, raw)
        raise self._gone(None)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        payload = None
        if body is not None:
            # Half a surrogate pair (arguments of the command line that are not UTF-8) has no encoding.
            payload = _SURROGATE.sub("\ufffd", json.dumps(body, ensure_ascii=False)).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, path, payload, headers)
        return connection.getresponse()

    def _connect(self) -> http.client.HTTPConnection:
        if self._url:
            return self._connect_url(self._url)
        if sentence := too_long(self._socket):
            raise Problem(USAGE, f"{sentence[0].upper()}{sentence[1:]}.", "Give a shorter one with --socket.")
        connection = _UnixConnection(self._socket, ANSWER_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as fault:
            connection.close()
            raise self._unreachable(fault) from None
        return connection

    def _connect_url(self, url: str) -> http.client.HTTPConnection:
        scheme, _, rest = url.partition("://")
        host = rest.partition("/")[0]
        if scheme != "http" or not host:
            raise Problem(USAGE, f"{url} is not a URL that harnessctl knows.", "Write unix:/path or http://host:port.")
        try:
            connection = http.client.HTTPConnection(host, timeout=ANSWER_TIMEOUT_S)
            connection.connect()
        except http.client.InvalidURL:
            raise Problem(USAGE, f"{url} has no valid port.", "Write http://host:port.") from None
        except OSError as fault:
            raise self._unreachable(fault) from None
        return connection

    def _unreachable(self, fault: OSError) -> Problem:
        if isinstance(fault, PermissionError):
            message = f"You may not talk to harnessd on {self.place}."
            return Problem(REFUSED, message, "Be its user, root, or a member of its group.", "forbidden")
        why = {
            FileNotFoundError: "there is no such socket",
            ConnectionRefusedError: "nothing listens there",
            TimeoutError: "it does not accept connections",
        }.get(type(fault), fault.strerror or str(fault))
        message = f"harnessd does not answer on {self.place}: {why}."
        return Problem(UNREACHABLE, message, "Start it: systemctl start harnessd   (or: harnessd run)")

    def _gone(self, fault: BaseException | None) -> Problem:
        if isinstance(fault, TimeoutError):
            message = f"harnessd on {self.place} did not answer within {ANSWER_TIMEOUT_S:.0f}s."
            return Problem(UNREACHABLE, message, "Look at its log: journalctl -u harnessd")
        message = f"harnessd on {self.place} closed the connection before it answered."
        return Problem(UNREACHABLE, message, "See whether it runs: harnessctl status")


def task_path(task: str, *rest: str) -> str:
    """The path of a task's route."""
    return "/".join(("/v1/tasks", *(quote(part, safe="", errors="replace") for part in (task, *rest))))


def _with(path: str, query: Sequence[tuple[str, object]]) -> str:
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def _judge(status: int, raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except ValueError:
        document = None
    if status < 400 and isinstance(document, dict):
        return document
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        hint = "Is something else listening on its socket?"
        raise Problem(UNREACHABLE, f"The answer (HTTP {status}) is not harnessd's.", hint)
    code = str(error.get("code", ""))
    exit_code = _EXIT_OF.get(code, FAILED)
    raise Problem(exit_code, str(error.get("message", "")), str(error.get("hint", "")), code)


def _frames(response: http.client.HTTPResponse) -> Iterator[Event]:
    name, data = "", ""
    for raw in response:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if line.startswith(":"):
            yield Event("", None)
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and name:
            yield Event(name, json.loads(data or "null"))
            name, data = "", ""


def _code(exit_code: int) -> str:
    names = {USAGE: "usage", UNREACHABLE: "unreachable", NOT_FOUND: "not_found", REFUSED: "refused", WAITS: "waits"}
    return names.get(exit_code, {FAULT: "fault", TIMED_OUT: "timeout"}.get(exit_code, "failed"))
