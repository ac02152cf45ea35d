"""systemd: ready, stopping, reloading, watchdog and status notices, and the socket it listens on for us; no library."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping

from harnessd.domain.failure import ConfigError

# sd_listen_fds(3): the first descriptor that is handed over.
_FIRST = 3


class ServiceManager:
    """Speaks sd_notify(3) to whoever NOTIFY_SOCKET names; silent without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC. A leading `@` means the abstract namespace."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environ.get("WATCHDOG_USEC", "0") if mine else "0"
        self.watchdog_s: float | None = int(interval) / 1_000_000 / 2 if interval.isdigit() and int(interval) else None

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            # Nobody listens any more; a notice is never worth a daemon.
            return

    def ready(self, status: str) -> None:
        """The daemon serves."""
        self._tell("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._tell(f"STATUS={status}")

    def reloading(self) -> None:
        """Policies are being read; `ready` ends it. The time stamp is what Type=notify-reload wants."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, extend_s: float) -> None:
        """The daemon drains and may need this long."""
        self._tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(extend_s * 1_000_000)}")

    def alive(self) -> None:
        """A watchdog ping."""
        self._tell("WATCHDOG=1")


def socket_handed_over(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The control socket of a .socket unit, as sd_listen_fds(3) hands it over; None without one.

    The variables are taken away, so that no child takes them for its own. Raises ConfigError for anything but one
    listening Unix socket: callers are known by what the kernel says of them, and it says it of no other kind.
    """
    told = {name: environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if told["LISTEN_PID"] != str(os.getpid()) or not told["LISTEN_FDS"].isdigit() or told["LISTEN_FDS"] == "0":
        return None
    remedy = "Let the .socket unit have one line: ListenStream=/run/harnessd/api.sock"
    if told["LISTEN_FDS"] != "1":
        raise ConfigError(f"systemd hands over {told['LISTEN_FDS']} sockets, and harnessd takes one.", remedy=remedy)
    os.set_inheritable(_FIRST, False)
    handed = socket.socket(fileno=_FIRST)
    listens = handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    if handed.family != socket.AF_UNIX or handed.type != socket.SOCK_STREAM or not listens:
        handed.close()
        raise ConfigError("The socket that systemd hands over is not a listening Unix socket.", remedy=remedy)
    handed.setblocking(False)
    return handed
