"""Command: an alert goes as JSON to a program's standard input; no shell, and never longer than 30 s."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from harnessd.domain.durable.outbox import Alert, Delivery

TIMEOUT_S = 30.0  # policies.md, notify
_SAID_MAX = 300
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Command:
    """`argv` begins with an absolute path; `environment` is the whole environment of the child."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    timeout_s: float = TIMEOUT_S

    async def deliver(self, alert: Alert) -> Delivery:
        """See the port."""
        document = json.dumps(dict(alert), ensure_ascii=False, default=str).encode("utf-8", "replace")
        with _Tail() as tail, _held(document + b"\n") as stdin:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self.argv,
                    stdin=stdin,
                    stdout=tail.for_child,
                    stderr=tail.for_child,
                    cwd="/",
                    env=dict(self.environment),
                    start_new_session=True,
                )
            except (OSError, ValueError) as fault:
                words = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
                return Delivery(done=False, said=f"{self.argv[0]} could not be started: {words}")
            tail.listen()
            try:
                async with asyncio.timeout(self.timeout_s):
                    await process.wait()
            except TimeoutError:
                words = f"{self.argv[0]} did not end within {self.timeout_s:g} s and was killed"
                return Delivery(done=False, said=words)
            finally:
                # Also after a proper end: whatever the program left in its session is not ours to keep.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            tail.read()
        words = f"exit status {process.returncode}" + (f": {tail.words}" if tail.words else "")
        return Delivery(done=process.returncode == 0, said=words)


@contextlib.contextmanager
def _held(document: bytes) -> Iterator[int]:
    """A descriptor to read the document from: no pipe, so a program that reads nothing holds nobody up."""
    descriptor = os.memfd_create("alert", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, document)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


class _Tail:
    """The last words of a program.

    A pipe of our own: asyncio's would count a child as running while a grandchild holds the pipe open.
    """

    def __init__(self) -> None:
        self._ours, self.for_child = os.pipe()
        os.set_blocking(self._ours, False)
        self._bytes = b""
        self._listening = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._deafen()
        os.close(self._ours)
        if self.for_child >= 0:
            os.close(self.for_child)

    def listen(self) -> None:
        """The child has its end now; ours of it is closed."""
        os.close(self.for_child)
        self.for_child = -1
        self._listening = True
        asyncio.get_running_loop().add_reader(self._ours, self.read)

    def read(self) -> None:
        """Take what is there."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._ours, 65536)
            self._bytes = (self._bytes + piece)[-_TAIL_BYTES:]
            if not piece:
                self._deafen()

    @property
    def words(self) -> str:
        """The end of what was said."""
        return self._bytes.decode(errors="replace").strip()[-_SAID_MAX:]

    def _deafen(self) -> None:
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._ours)
            self._listening = False
