"""A payment service on loopback, a process of its own: it charges, and then often fails to say so.

    python benchmarks/payment_service.py [--honours-keys]

It is the naive kind unless told otherwise: each request that reaches it charges once more, whatever its key. The last
word of an invoice's name says what goes wrong with the first request for it: `PAY-12-reset-after`.

    POST /pay            charge {"invoice": ..., "amount": ...}
    GET  /charges?key=K  how many charges were made under a key: what a probe asks
    GET  /books          all charges, by invoice and by key
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

FAULTS = (
    "fine", "hang-after", "hang-before", "reset-after", "reset-before", "500-after", "500-before", "503", "429",
    "slow", "cut", "409",
)  # fmt: skip
SLOW_S = 0.4
HANG_S = 30.0
FILLER = "x" * 1500


@dataclass(slots=True)
class Service:
    """The books: charges by invoice and by key, requests by invoice."""

    honours_keys: bool = False
    invoices: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    keys_of: dict[str, list[str]] = field(default_factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = head.split(" ", 2)
            url = urlsplit(target)
            if method == "POST" and url.path == "/pay":
                await self._pay(writer, json.loads(body), headers.get("idempotency-key", ""))
            elif url.path == "/charges":
                await _answer(writer, 200, {"count": self.keys[parse_qs(url.query).get("key", [""])[0]]})
            else:
                books = {"invoices": self.invoices, "keys": self.keys, "seen": self.seen, "keys_of": self.keys_of}
                await _answer(writer, 200, books)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _pay(self, writer: asyncio.StreamWriter, order: dict[str, str], key: str) -> None:
        invoice = order["invoice"].strip()
        first = self.seen[invoice] == 0
        self.seen[invoice] += 1
        fault = invoice.split("-", 2)[2] if first else "fine"
        if fault in ("503", "429", "409"):
            await _answer(writer, int(fault), {"error": "not now"})
            return
        if not fault.endswith("-before") and not (self.honours_keys and self.keys[key]):
            self.invoices[invoice] += 1
            self.keys[key] += 1
            self.keys_of.setdefault(invoice, []).append(key)
        if fault.startswith("hang"):
            await asyncio.sleep(HANG_S)
        elif fault.startswith("reset"):
            _reset(writer)
        elif fault.startswith("500"):
            await _answer(writer, 500, {"error": "we lost something"})
        elif fault == "cut":
            writer.write(b"HTTP/1.1 20")
        else:
            await asyncio.sleep(SLOW_S if fault == "slow" else 0.01)
            await _answer(writer, 200, {"paid": invoice, "receipt": f"R{self.seen[invoice]}", "more": FILLER})


async def _answer(writer: asyncio.StreamWriter, status: int, what: object) -> None:
    body = json.dumps(what).encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (status, len(body)))
    writer.write(b"Connection: close\r\n\r\n" + body)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN: what a crashed peer or a proxy does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main() -> None:
    """Listen on a free port, print it, serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honours-keys", action="store_true", help="charge once a key")
    service = Service(parser.parse_args().honours_keys)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
