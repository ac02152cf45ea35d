"""A loopback HTTP service for the benches, in a process of its own: answers JSON, or streams events for ever."""

from __future__ import annotations

import asyncio
import sys

ANSWER = b'{"type":"message","content":[{"type":"text","text":"' + b"x" * 500 + b'"}]}'
EVENT = b'data: {"type":"ping"}\n\n'
PAUSE_S = 1.0


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests on one connection. `/stream` is one event a second, for as long as the client listens."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            await reader.readexactly(length)
            if b" /stream " in head:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
                while True:
                    writer.write(EVENT)
                    await writer.drain()
                    await asyncio.sleep(PAUSE_S)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(ANSWER), ANSWER)
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Listen on a free port, print it, serve until killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
