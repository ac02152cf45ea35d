"""A loopback server that sends scripted bytes: the world's edge, under the test's control."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Script = Callable[["Visit"], Awaitable[None]]


@dataclass
class Visit:
    """One request as it came, and the wire to answer on."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, body: bytes, *headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Words", f"Content-Length: {len(body)}", *headers]
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)

    async def begin_stream(self, *headers: str) -> None:
        lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *headers]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def stream(self, data: bytes, *headers: str) -> None:
        await self.begin_stream(*headers)
        await self.chunk(data)
        await self.end()

    def reset(self) -> None:
        """Close with RST, as a crashed peer does."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

    async def hung_up(self) -> None:
        """Wait until the client is gone."""
        while await self.reader.read(65536):
            pass


@dataclass
class Loopback:
    """What a server saw. `url` is its base address."""

    url: str
    visits: list[Visit] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)


async def _read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    return head, await reader.readexactly(length)


@asynccontextmanager
async def loopback(*scripts: Script) -> AsyncIterator[Loopback]:
    """Serve the scripts, one for each request in order; the last one serves all that follow."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while True:
                head, body = await _read_request(reader)
                visit = Visit(head, body, reader, writer)
                seen.visits.append(visit)
                await scripts[min(len(seen.visits), len(scripts)) - 1](visit)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            seen.left.set()
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    seen = Loopback(f"http://{host}:{port}")
    try:
        yield seen
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
