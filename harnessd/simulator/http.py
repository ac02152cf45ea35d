"""HTTP/1.1 by hand: a library's server could not cut, drip, reset or lie at the byte we choose."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from harnessd.simulator.deliver import Delivery, Gate, HangUp, Pause, Send, Silence, Step

BODY_MAX = 32 * 1024 * 1024
HEAD_MAX = 256 * 1024
GateWait = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `oversized`: the body was over the limit and is not kept."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes = field(repr=False)
    oversized: bool = False


class BadRequest(Exception):  # noqa: N818 - the client's fault, named by its status
    """What came is not HTTP/1.1."""


class ClientProtocol(asyncio.StreamReaderProtocol):
    """A stream protocol that knows when its client has gone."""

    def __init__(self, reader: asyncio.StreamReader, connected: Callable[..., Awaitable[None]]) -> None:
        super().__init__(reader, connected)
        self.gone = asyncio.Event()

    def eof_received(self) -> bool | None:
        """The client closed its side: nobody reads on."""
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is dead."""
        self.gone.set()
        super().connection_lost(exc)


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """The next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise BadRequest("the head is cut") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("the head is too long") from error
    lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = lines[0].split(" ")
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:-2])}
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise BadRequest("the head is malformed") from error
    if not version.startswith("HTTP/1."):
        raise BadRequest("only HTTP/1.1 is spoken here")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, oversized = await read_chunked(reader)
    else:
        body, oversized = await read_sized(reader, length)
    parts = urlsplit(target)
    return Request(method, parts.path, parse_qs(parts.query), headers, body, oversized)


async def read_sized(reader: asyncio.StreamReader, length: int) -> tuple[bytes, bool]:
    """A body of known length; one over the limit is read and dropped, so that the client hears the refusal."""
    if length <= BODY_MAX:
        return await reader.readexactly(length), False
    while length > 0:
        length -= len(await reader.readexactly(min(length, 65536)))
    return b"", True


async def read_chunked(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A chunked body."""
    body, oversized = bytearray(), False
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise BadRequest("a chunk's size is malformed") from error
        chunk = await reader.readexactly(size + 2)
        oversized = oversized or len(body) + size > BODY_MAX
        if not oversized:
            body += chunk[:-2]
        if size == 0:
            return bytes(body), oversized


async def perform(delivery: Delivery, writer: asyncio.StreamWriter, gate: GateWait) -> bool:
    """Send a response. True when the connection may serve another request."""
    for step in delivery.before:
        await one_step(step, delivery, writer, gate)
    if delivery.framing != "raw":
        writer.write(head_bytes(delivery))
        await writer.drain()
    sent = 0
    for step in delivery.steps:
        sent += len(step.data) if isinstance(step, Send) else 0
        if isinstance(step, HangUp):
            await hang_up(writer, reset=step.reset)
            return False
        await one_step(step, delivery, writer, gate)
    if delivery.framing == "chunked":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return delivery.framing == "chunked" or (delivery.framing == "length" and sent >= delivery.length)


async def one_step(step: Step, delivery: Delivery, writer: asyncio.StreamWriter, gate: GateWait) -> None:
    """One step that is not the end."""
    match step:
        case Send(data):
            if delivery.framing == "chunked":
                data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            writer.write(data)
            await writer.drain()
        case Pause(seconds):
            await asyncio.sleep(seconds)
        case Gate():
            await gate()
        case Silence():
            await asyncio.Event().wait()
        case HangUp(reset):
            await hang_up(writer, reset=reset)


def head_bytes(delivery: Delivery) -> bytes:
    """Status line and headers."""
    try:
        phrase = HTTPStatus(delivery.status).phrase
    except ValueError:
        phrase = "Overloaded"  # 529 is this trade's own
    own = (
        ("transfer-encoding", "chunked") if delivery.framing == "chunked" else ("content-length", str(delivery.length))
    )
    lines = [f"HTTP/1.1 {delivery.status} {phrase}", *(f"{name}: {value}" for name, value in (*delivery.headers, own))]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


async def hang_up(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """End the connection in mid response: FIN, or RST by a zero linger."""
    # What was written must reach the peer first: a reset drops what still waits on our side.
    writer.transport.set_write_buffer_limits(high=0)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    if reset:
        await asyncio.sleep(0.01)
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
