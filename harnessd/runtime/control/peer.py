"""Who is calling: credentials that the kernel vouches for, and the gate before every route."""

from __future__ import annotations

import array
import asyncio
import contextlib
import grp
import pwd
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from harnessd.runtime.control.answers import error
from harnessd.runtime.control.lineage import Descent, Lineage

# struct ucred of unix(7): pid, uid, gid.
_UCRED = struct.Struct("3i")
# Supplementary groups of the peer (Linux 4.13); SO_PEERCRED knows the primary one only. Python has no name for it.
_SO_PEERGROUPS = 59
# A page that rebinds its name to this machine still sends its own name as Host; our clients send one of these.
HOSTS = frozenset({"harnessd", "localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end. `groups` holds the primary and the supplementary ones."""

    pid: int
    uid: int
    groups: frozenset[int]

    @property
    def name(self) -> str:
        """The user's name, or `uid:1000` where this machine knows none: what `by` says in events."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid:{self.uid}"


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may call: the daemon's own user, root, and the members of `group`, if one is given."""

    uid: int
    group: int | None = None

    def admits(self, caller: Caller) -> bool:
        """The caller may use the API."""
        return caller.uid in (0, self.uid) or (self.group is not None and self.group in caller.groups)

    def describe(self) -> str:
        """Who may call, in words."""
        owner = Caller(0, self.uid, frozenset()).name
        return f"{owner}, root" + (f" and the group {_group_name(self.group)}" if self.group is not None else "")


class HasOptions(Protocol):
    """A connected socket, or asyncio's wrapper of one."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


def read_caller(connection: HasOptions) -> Caller:
    """The credentials at the time of connect(). Raises OSError for a socket that is not a Unix one."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    groups = array.array("i", (gid,))
    # Python reads 1024 bytes of an option at most; a user of more than 256 groups is judged by the primary one.
    with contextlib.suppress(OSError):
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 1024))
    return Caller(pid, uid, frozenset(groups))


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with the caller in each request's scope."""

    lineage: Lineage | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        caller: Caller | None = None
        with contextlib.suppress(OSError):
            caller = read_caller(transport.get_extra_info("socket"))
        # Now, and not with the request: by then a caller could be gone, and his descent with him.
        descent = self.lineage.judge(caller.pid, caller.uid) if caller and self.lineage else None
        application = self.app

        async def with_caller(scope: Any, receive: Any, send: Any) -> None:
            await application({**scope, "harnessd.caller": caller, "harnessd.descent": descent}, receive, send)

        self.app = with_caller


class Gate:
    """Refuses before routing: foreign users, agents, foreign Host or Origin, content types that a web form can send."""

    def __init__(self, inner: ASGIApp, admission: Admission, refused: Callable[[str, str], Awaitable[None]]) -> None:
        """`refused(who, why)` is told of each user that was turned away."""
        self._inner = inner
        self._admission = admission
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        caller: Caller | None = scope.get("harnessd.caller")
        descent: Descent | None = scope.get("harnessd.descent")
        if caller is None or not self._admission.admits(caller):
            who = caller.name if caller else "unknown"
            await self._refused(who, "not the owner, root or the group")
            answer = error("forbidden", f"{who} may not use this daemon.", f"Allowed: {self._admission.describe()}.")
        elif descent is not None and not descent.may(scope["method"], scope["path"]):
            whose = f"a tool of {descent.task}" if descent.task else "a tool"
            await self._refused(whose, f"{scope['method']} {scope['path'][:200]}")
            hint = "An agent's processes may read their own task and nothing else."
            answer = error("forbidden", f"This request comes from {whose}.", hint)
        elif (answer := _browser_shape(scope["method"], Headers(scope=scope))) is None:
            await self._inner(scope, receive, send)
            return
        await answer(scope, receive, send)


def _browser_shape(method: str, headers: Headers) -> Any:
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() not in HOSTS:
        return error("forbidden", "This Host is not ours.", "Ask for http://harnessd/ over the socket.")
    if "origin" in headers:
        return error("forbidden", "Requests of web pages are not answered.", "Use harnessctl.")
    if method in ("GET", "HEAD"):
        return None
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return error("content_type", "The body must be JSON.", "Send `content-type: application/json`.")
    return None


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid:{gid}"
