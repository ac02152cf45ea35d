"""Socket path: where the daemon listens and where a client looks for it; one choice for both, and import-light."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

NAME = "api.sock"
FOLDER = "harnessd"
SYSTEM_SOCKET = f"/run/{FOLDER}/{NAME}"
# sockaddr_un.sun_path holds 108 bytes on Linux, the closing NUL among them (unix(7)).
MAX_BYTES = 107


def daemon_socket_path(environment: Mapping[str, str], uid: int) -> str:
    """Where a daemon of this user listens when harness.yaml does not say.

    In this order: the folder that systemd made for the unit, the user's runtime folder, the system's for root, and at
    last the user's state folder. Never a folder that others may write to, as /tmp is.
    """
    unit_folder = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if unit_folder.startswith("/"):
        return f"{unit_folder}/{NAME}"
    return client_socket_paths(environment, uid)[0]


def for_group(path: str, environment: Mapping[str, str], uid: int) -> bool:
    """Whether the group of the socket's folder may call: a daemon of the system's, as root or as a unit of its own.

    A unit says so by RuntimeDirectoryMode=: who may not enter the folder shall not be let in by the socket's mode.
    """
    folder = environment.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if folder and os.path.dirname(path) == folder:  # noqa: PTH120 - pathlib costs start-up time
        with contextlib.suppress(OSError):
            return os.stat(folder).st_mode & 0o010 != 0  # noqa: PTH116 - as above
    return uid == 0


def client_socket_paths(environment: Mapping[str, str], uid: int) -> tuple[str, ...]:
    """Where a client of this user looks, in order; the system's daemon is the last resort of a user."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    own = (f"{runtime}/{FOLDER}/{NAME}",) if runtime.startswith("/") else ()
    if uid == 0:
        return (*own, SYSTEM_SOCKET)
    return (*own, _state_socket(environment), SYSTEM_SOCKET)


def find_socket(environment: Mapping[str, str], uid: int) -> str:
    """The first of the client's paths that exists, else the first one: the one to name in a message."""
    paths = client_socket_paths(environment, uid)
    return next((path for path in paths if os.path.exists(path)), paths[0])  # noqa: PTH110 - pathlib costs start-up time


def too_long(path: str) -> str | None:
    """A sentence if the kernel cannot take this path, else None."""
    length = len(os.fsencode(path))
    if length <= MAX_BYTES:
        return None
    return f"the socket path is {length} bytes long, and the kernel takes at most {MAX_BYTES}: {path}"


def _state_socket(environment: Mapping[str, str]) -> str:
    state = environment.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = f"{environment.get('HOME') or os.path.expanduser('~')}/.local/state"  # noqa: PTH111 - as above
    return f"{state}/{FOLDER}/{NAME}"
