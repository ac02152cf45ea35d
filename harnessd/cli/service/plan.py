"""Plan: which files a service is made of, from the shipped ones, with the paths of this installation."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MARK = "# Written by `harnessctl service install`: change it by a drop-in, and install again after an upgrade.\n"
DROP_INS = ("sandbox", "workspaces", "memory")
_SYSTEM_UNITS, _SYSTEM_CONFIG, _SYSTEM_STATE = "/etc/systemd/system", "/etc/harnessd", "/var/lib/harnessd"
# What a unit names in its file, and which installation has it elsewhere.
_SHIPPED_PROGRAMS = re.compile(r"(?:/opt/harnessd|%h/\.local/share/harnessd/venv)/bin/")
_CREDENTIAL = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asks for. `root` is the tree that is written to, `prefix` the installation that the unit starts."""

    user: bool = False
    prefix: str = ""
    root: str = ""
    socket: bool = False
    drop_ins: tuple[str, ...] = ()
    start: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A file to write; one to `keep` is written only where there is none."""

    path: str
    text: str
    mode: int = 0o644
    keep: bool = False


@dataclass(slots=True)
class Plan:
    """Folders, files and commands, in order."""

    folders: list[tuple[str, int]] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)


def shipped(name: str) -> str:
    """The text of a file of deploy/: inside an installed wheel, or the repository's own."""
    package = Path(__file__).resolve().parents[2]
    packed = package / "_builtin" / "deploy"
    folder = packed if packed.is_dir() else package.parent / "deploy"
    return (folder / name).read_text(encoding="utf-8")


def units_folder(wanted: Wanted) -> str:
    """Where systemd looks for units that an administrator, or a user, wrote."""
    return f"{_user_config()}/systemd/user" if wanted.user else _SYSTEM_UNITS


def config_folder(wanted: Wanted) -> str:
    """Where harness.yaml lies."""
    return f"{_user_config()}/harnessd" if wanted.user else _SYSTEM_CONFIG


def sysusers_file() -> str:
    """What makes the user and group of the system service."""
    return "/etc/sysusers.d/harnessd.conf"


def install(wanted: Wanted, credentials: Sequence[str]) -> Plan:
    """All of it; `credentials` are the names of the keys that lie in the folder for them."""
    units, config, plan = units_folder(wanted), config_folder(wanted), Plan()
    plan.folders += [(config, 0o755), (f"{config}/policies", 0o755), (f"{config}/credentials", 0o700)]
    if wanted.user:
        plan.folders += [(_user_state(), 0o700), (f"{_user_state()}/state", 0o700), (f"{_user_state()}/work", 0o700)]
    else:
        plan.files.append(File(sysusers_file(), MARK + shipped("harnessd.sysusers")))
    plan.files.append(File(f"{config}/harness.yaml", _configuration(wanted), keep=True))
    plan.files.append(File(f"{units}/harnessd.service", unit(wanted)))
    if wanted.socket:
        plan.files.append(File(f"{units}/harnessd.socket", MARK + shipped("harnessd.socket")))
    for name in wanted.drop_ins:
        plan.files.append(File(f"{units}/harnessd.service.d/{name}.conf", MARK + shipped(f"drop-ins/{name}.conf")))
    names = [name for name in sorted(credentials) if _CREDENTIAL.fullmatch(name)]
    if names:
        lines = "".join(f"LoadCredential={name}:{config}/credentials/{name}\n" for name in names)
        plan.files.append(File(f"{units}/harnessd.service.d/credentials.conf", f"{MARK}[Service]\n{lines}"))
    plan.commands += _install_commands(wanted)
    return plan


def unit(wanted: Wanted) -> str:
    """The service unit, with the programs of this installation."""
    text = shipped("user/harnessd.service" if wanted.user else "harnessd.service")
    return MARK + _SHIPPED_PROGRAMS.sub(lambda _: f"{wanted.prefix}/bin/", text)


def unit_files(wanted: Wanted) -> list[str]:
    """Every file that an install may have written and an uninstall takes away; configuration and state stay."""
    units = units_folder(wanted)
    drop_ins = [f"{units}/harnessd.service.d/{name}.conf" for name in (*DROP_INS, "credentials")]
    own = [] if wanted.user else [sysusers_file()]
    return [f"{units}/harnessd.service", f"{units}/harnessd.socket", *drop_ins, *own]


def systemctl(wanted: Wanted, *words: str) -> list[str]:
    """A call of systemctl for the right manager, or for a tree that no manager runs in."""
    where = [f"--root={wanted.root}"] if wanted.root else ["--user"] if wanted.user else []
    return ["systemctl", *where, *words]


def _install_commands(wanted: Wanted) -> list[list[str]]:
    root = [f"--root={wanted.root}"] if wanted.root else []
    commands = [] if wanted.user else [["systemd-sysusers", *root, sysusers_file().rpartition("/")[2]]]
    if not wanted.root:
        commands.append(systemctl(wanted, "daemon-reload"))
    # With a socket unit the first connection starts the service, not the boot.
    if wanted.socket:
        commands.append(systemctl(wanted, "disable", "harnessd.service"))
    commands.append(systemctl(wanted, "enable", "harnessd.socket" if wanted.socket else "harnessd.service"))
    if wanted.start:
        commands.append(systemctl(wanted, "restart", "harnessd.socket" if wanted.socket else "harnessd.service"))
    return commands


def _configuration(wanted: Wanted) -> str:
    text = shipped("harness.yaml")
    if not wanted.user:
        return text
    head = text.partition("\n")[2]
    head = head.replace(_SYSTEM_STATE, _user_state()).replace(f"{_SYSTEM_CONFIG}/", f"{config_folder(wanted)}/")
    return f"# {config_folder(wanted)}/harness.yaml. Every key is described in docs/configuration.md.\n{head}"


def _user_config() -> str:
    return _folder("XDG_CONFIG_HOME", ".config")


def _user_state() -> str:
    return f"{_folder('XDG_STATE_HOME', '.local/state')}/harnessd"


def _folder(variable: str, below_home: str) -> str:
    named = os.environ.get(variable, "")
    return named.rstrip("/") if named.startswith("/") else str(Path.home() / below_home)
