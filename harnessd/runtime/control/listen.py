"""The listening socket: made by us, so that mode, owner and left-overs of a killed daemon are ours to decide."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from harnessd.domain.failure import ConfigError, HarnessError
from harnessd.runtime.host.socket_path import daemon_socket_path, for_group, too_long
from harnessd.runtime.host.systemd import socket_handed_over

# Somebody who accepts nothing for this long still listens: the file is not stale.
_PROBE_S = 1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket and the file it stands at. `group` may call besides the owner, if it is not None."""

    connection: socket.socket
    path: Path
    identity: tuple[int, ...] | None  # None: the file is somebody else's to take away
    group: int | None

    def remove(self) -> None:
        """Take the file away, unless another daemon has put its own there."""
        with contextlib.suppress(OSError):
            if self.identity is not None and _identity(self.path.lstat()) == self.identity:
                self.path.unlink()


def open_control_socket(configured: str | None, environ: MutableMapping[str, str]) -> Listener:
    """The socket that systemd hands over; else one at the configured place, or where daemons of this user listen."""
    handed = socket_handed_over(environ)
    if handed is not None:
        return adopt(handed)
    if configured:
        return listen(Path(configured))
    path, uid = daemon_socket_path(environ, os.geteuid()), os.geteuid()
    return listen(Path(path), for_group=for_group(path, environ, uid))


def adopt(connection: socket.socket) -> Listener:
    """The socket that a service manager bound: it stays where it is, and its mode says whether its group may call.

    Raises ConfigError for one without a file, or with one that everybody may connect to.
    """
    place = Path(os.fsdecode(connection.getsockname() or ""))
    try:
        facts = place.lstat()
    except (OSError, ValueError) as fault:
        raise ConfigError(
            "The socket that systemd hands over stands at no file.",
            remedy="Let the .socket unit say ListenStream=/run/harnessd/api.sock.",
        ) from fault
    if facts.st_mode & stat.S_IWOTH:
        raise ConfigError(f"Anybody may connect to {place}.", remedy="Set SocketMode=0660 in the .socket unit.")
    return Listener(connection, place, None, facts.st_gid if facts.st_mode & stat.S_IWGRP else None)


def listen(path: Path, *, for_group: bool = False) -> Listener:
    """Bind the control socket: 0600, or 0660 for the group of its folder.

    A missing folder is made (0700, or 0750 for the group). A file that nobody listens on is removed.
    Raises ConfigError where the path or its folder cannot be trusted, HarnessError where somebody else listens.
    """
    if sentence := too_long(str(path)):
        raise ConfigError(_sentence(sentence), remedy="Set a shorter socket.path in harness.yaml.")
    folder = _folder(path.parent, for_group=for_group)
    place = folder / path.name
    _clear(place)
    mode = 0o660 if for_group else 0o600
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux makes the file with the mode of the unbound socket's inode less the umask, so that there is no
        # moment in which others could connect; chmod() afterwards undoes a stricter umask.
        os.fchmod(connection.fileno(), mode)
        connection.bind(str(place))
        place.chmod(mode)
        connection.listen(512)
        connection.setblocking(False)
    except OSError as fault:
        connection.close()
        raise ConfigError(
            f"The control socket {place} cannot be made: {fault.strerror}.",
            remedy="Set socket.path in harness.yaml to a folder of the daemon's own user.",
        ) from fault
    made = place.lstat()
    return Listener(connection, place, _identity(made), made.st_gid if for_group else None)


def _folder(folder: Path, *, for_group: bool) -> Path:
    try:
        if not folder.exists():
            folder.mkdir(mode=0o750 if for_group else 0o700, parents=True)
        real = folder.resolve(strict=True)
        facts = real.stat()
    except OSError as fault:
        raise ConfigError(
            f"The socket's folder {folder} cannot be used: {fault.strerror}.",
            remedy="Set socket.path in harness.yaml to a folder of the daemon's own user.",
        ) from fault
    remedy = "Set socket.path in harness.yaml to a folder that only the daemon's user can write to."
    if not stat.S_ISDIR(facts.st_mode):
        raise ConfigError(f"The socket's folder {folder} is not a folder.", remedy=remedy)
    # Whoever may write to the folder may put a socket of his own in our place and read what clients send.
    if facts.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"The socket's folder {real} belongs to another user.", remedy=remedy)
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"Others may write to the socket's folder {real}.", remedy=remedy)
    return real


def _clear(place: Path) -> None:
    try:
        facts = place.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(facts.st_mode):
        what = "a link" if stat.S_ISLNK(facts.st_mode) else "not a socket"
        raise ConfigError(f"{place} is {what}.", remedy="Remove it, or set another socket.path in harness.yaml.")
    if facts.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{place} belongs to another user.", remedy="Remove it, or set another socket.path.")
    if _answers(place):
        raise HarnessError(
            f"Another daemon listens on {place}.",
            remedy="Stop it first, or set another socket.path in harness.yaml.",
        )
    place.unlink()


def _answers(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(place))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


def _identity(facts: os.stat_result) -> tuple[int, ...]:
    # A freed inode number is given out again at once; the time of making tells two files apart.
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
