"""Start the simulator: `python -m harnessd.simulator --port 0 --scripts DIR_OR_FILE`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from harnessd.simulator.http import HEAD_MAX, ClientProtocol
from harnessd.simulator.script import load
from harnessd.simulator.service import Service
from harnessd.simulator.values import ScriptError

SHIPPED = Path(__file__).parent / "scripts"
PR_SET_PDEATHSIG = 1


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harnessd.simulator", description="A model service on loopback that plays scripts."
    )
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--scripts", type=Path, action="append", help="a script file or a folder of them; may repeat")
    parser.add_argument("--ready-file", type=Path, help="where to write the address once it listens")
    parser.add_argument("--print-address", action="store_true", help="print the bare address instead of a sentence")
    parser.add_argument(
        "--die-with-parent", action="store_true", help="end when the process that started this one ends"
    )
    parser.add_argument(
        "--lay-out", nargs=2, metavar=("MODEL", "DIR"), help="write the files a script works on, and end"
    )
    return parser.parse_args()


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM at the parent's death; the parent may have died before we asked."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


async def run(service: Service, options: argparse.Namespace) -> None:
    """Listen until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
            task.add_done_callback(connections.discard)
        protocol = writer.transport.get_protocol()
        gone = protocol.gone if isinstance(protocol, ClientProtocol) else asyncio.Event()
        # A connection that we cancel at our own end has nothing more to say.
        with contextlib.suppress(asyncio.CancelledError):
            await service.serve(reader, writer, gone)

    server = await loop.create_server(
        lambda: ClientProtocol(asyncio.StreamReader(limit=HEAD_MAX), connected), "127.0.0.1", options.port
    )
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    announce(address, options)
    await stop.wait()
    server.close()
    for task in list(connections):
        task.cancel()
    await asyncio.gather(*connections, return_exceptions=True)


def announce(address: str, options: argparse.Namespace) -> None:
    """Say where we listen: the line on stdout, and the ready file in one rename."""
    if options.ready_file:
        half = options.ready_file.with_suffix(".tmp")
        half.write_text(f"{address}\n", encoding="utf-8")
        half.replace(options.ready_file)
    sys.stdout.write(f"{address}\n" if options.print_address else f"listening on {address}\n")
    sys.stdout.flush()


def lay_out(service: Service, model: str, folder: Path) -> None:
    """Write the files that a script works on."""
    script = service.scripts.find(model)
    if script is None:
        raise ScriptError(f"no script for model {model}")
    for name, text in script.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> int:
    """Exit status 0 at the end, 2 for a script or an address that cannot be used."""
    options = arguments()
    if options.die_with_parent:
        die_with_parent()
    try:
        scripts = load(SHIPPED)
        for path in options.scripts or []:
            scripts.add(load(path).by_pattern.values())
        service = Service(scripts)
        if options.lay_out:
            lay_out(service, options.lay_out[0], Path(options.lay_out[1]))
            return 0
        asyncio.run(run(service, options))
    except (ScriptError, OSError) as error:
        sys.stderr.write(f"simulator: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
