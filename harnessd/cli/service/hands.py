"""Hands: carry a plan out: look whether it can be, write what differs, call systemd, and say what was done."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.cli import render
from harnessd.cli.client import FAILED, REFUSED, Problem
from harnessd.cli.service import plan
from harnessd.cli.service.plan import MARK, File, Wanted

_MANAGER = "/run/systemd/system"  # sd_booted(3): there while systemd is the machine's init
# What ProtectHome=yes and PrivateTmp=yes of the unit hide from the service.
_HIDDEN = tuple(f"/{folder}/" for folder in ("root", "home", "run/user", "tmp", "var/tmp"))
_COMMAND_S = 120.0


@dataclass(slots=True)
class Done:
    """What was done to each file, which commands were called, and what stands in the way (of a dry run)."""

    dry_run: bool
    files: list[tuple[str, str]] = field(default_factory=list)  # (what, path)
    commands: list[list[str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, str]]:
        """For people."""
        called = "would call" if self.dry_run else "called"
        return [*self.files, *((called, render.command(command)) for command in self.commands)]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "dry_run": self.dry_run,
            "files": [{"path": path, "done": what} for what, path in self.files],
            "commands": self.commands,
            "problems": [{"message": one.message, "hint": one.hint} for one in self.problems],
        }


def credentials(wanted: Wanted) -> list[str]:
    """The names of the keys that lie in the folder for them."""
    folder = Path(wanted.root + plan.config_folder(wanted), "credentials")
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    except OSError:
        return []


def install(wanted: Wanted, *, dry_run: bool) -> Done:
    """Write what differs, and let systemd know. Raises Problem before anything is changed, or where systemd refuses."""
    whole, done = plan.install(wanted, credentials(wanted)), Done(dry_run)
    done.problems = [*_premises(wanted, installing=True), *_foreign(wanted, whole.files)]
    if done.problems and not dry_run:
        raise done.problems[0]
    for path, mode in whole.folders:
        if not dry_run:
            _make_folder(Path(wanted.root + path), mode)
    for file in whole.files:
        done.files.append((_write(wanted, file, dry_run=dry_run), file.path))
    gone = _no_longer(wanted, whole.files)
    if any(path.endswith(".socket") for path in gone):
        _call([_disable(wanted, ["harnessd.socket"])], done)
    done.files += [(_take(wanted, path, dry_run=dry_run), path) for path in gone]
    _call(whole.commands, done)
    done.next = _next(wanted)
    return done


def uninstall(wanted: Wanted, *, dry_run: bool) -> Done:
    """Disable, stop, and take away what `install` wrote. Raises Problem as `install` does."""
    done = Done(dry_run)
    done.problems = _premises(wanted, installing=False)
    if done.problems and not dry_run:
        raise done.problems[0]
    there = _no_longer(wanted, [])
    left = [path for path in plan.unit_files(wanted) if path not in there and Path(wanted.root + path).exists()]
    done.files += [("left, not written by harnessctl", path) for path in left]
    units = [Path(path).name for path in there if Path(path).suffix in (".service", ".socket")]
    if units:
        # The socket first: it would start the service again.
        _call([_disable(wanted, sorted(units, reverse=True))], done)
    done.files += [(_take(wanted, path, dry_run=dry_run), path) for path in there]
    drop_ins = Path(f"{wanted.root}{plan.units_folder(wanted)}/harnessd.service.d")
    if not dry_run and drop_ins.is_dir() and not any(drop_ins.iterdir()):
        drop_ins.rmdir()
    if units and not wanted.root:
        _call([plan.systemctl(wanted, "daemon-reload")], done)
    state = "" if wanted.user else " and /var/lib/harnessd"
    done.next = [f"{plan.config_folder(wanted)}{state} stay."]
    return done


def hidden_from_service(prefix: str) -> list[str]:
    """What of an installation a unit with ProtectHome=yes and PrivateTmp=yes cannot see: its folder, its Python."""
    python = Path(prefix, "bin", "python")
    looked = [prefix, os.path.realpath(prefix), *([os.path.realpath(python)] if python.exists() else [])]
    return [path for path in dict.fromkeys(looked) if f"{path}/".startswith(_HIDDEN)]


def _premises(wanted: Wanted, *, installing: bool) -> list[Problem]:
    found = []
    if installing and not wanted.user and (hidden := hidden_from_service(wanted.prefix)):
        hint = "Build it from the system's Python: /usr/bin/python3 -m venv /opt/harnessd (see docs/deployment.md)."
        message = f"{hidden[0]} cannot be seen by a system service: the unit hides home folders and /tmp."
        found.append(Problem(REFUSED, message, hint))
    if installing and not wanted.root and not Path(wanted.prefix, "bin", "harnessd").exists():
        hint = "Install harnessd with pip there, or name another with --prefix."
        found.append(Problem(FAILED, f"There is no program {wanted.prefix}/bin/harnessd.", hint))
    if wanted.root:
        return found
    if not wanted.user and os.geteuid() != 0:
        found.append(Problem(REFUSED, "A system service is root's to change.", "Call it with sudo, or use --user."))
    if not Path(_MANAGER).is_dir():
        hint = "Start the daemon otherwise: harnessd run. The files: harnessctl service print"
        found.append(Problem(FAILED, "systemd does not run this machine.", hint))
    elif wanted.user and not os.environ.get("XDG_RUNTIME_DIR"):
        hint = "Log in as this user, or let it have one: loginctl enable-linger NAME"
        found.append(Problem(FAILED, "No systemd runs for this user: XDG_RUNTIME_DIR is not set.", hint))
    return found


def _foreign(wanted: Wanted, files: list[File]) -> list[Problem]:
    """Units that a person wrote are not ours to write over."""
    hint = "Move it away, or write over it with --force; your own changes belong into a drop-in."
    found = []
    for file in files:
        there = _read(Path(wanted.root + file.path))
        if there is not None and not file.keep and not there.startswith(MARK) and not wanted.force:
            found.append(Problem(REFUSED, f"{file.path} was not written by harnessctl.", hint))
    return found


def _no_longer(wanted: Wanted, files: list[File]) -> list[str]:
    """What an earlier install wrote and this one does not want."""
    kept = {file.path for file in files}
    there = [(path, _read(Path(wanted.root + path))) for path in plan.unit_files(wanted) if path not in kept]
    return [path for path, text in there if text is not None and text.startswith(MARK)]


def _disable(wanted: Wanted, units: list[str]) -> list[str]:
    return plan.systemctl(wanted, "disable", *([] if wanted.root else ["--now"]), *units)


def _write(wanted: Wanted, file: File, *, dry_run: bool) -> str:
    path = Path(wanted.root + file.path)
    there = _read(path)
    if there is not None and (file.keep or there == file.text):
        return "kept" if file.keep else "as it was"
    if dry_run:
        return "would write"
    _make_folder(path.parent, 0o755)
    # Whole or not at all: systemd may read it at any moment.
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(file.text, encoding="utf-8")
        fresh.chmod(file.mode)
        fresh.replace(path)
    except OSError as fault:
        raise Problem(FAILED, f"{path} cannot be written: {fault.strerror}.") from None
    return "wrote"


def _take(wanted: Wanted, path: str, *, dry_run: bool) -> str:
    if dry_run:
        return "would remove"
    Path(wanted.root + path).unlink(missing_ok=True)
    return "removed"


def _make_folder(folder: Path, mode: int) -> None:
    try:
        for missing in reversed([folder, *folder.parents]):
            if not missing.exists():
                missing.mkdir()
                missing.chmod(mode if missing == folder else 0o755)
    except OSError as fault:
        raise Problem(FAILED, f"{folder} cannot be made: {fault.strerror}.") from None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _call(commands: list[list[str]], done: Done) -> None:
    for command in commands:
        done.commands.append(command)
        if done.dry_run:
            continue
        if shutil.which(command[0]) is None:
            raise Problem(FAILED, f"There is no program {command[0]}.", "Install systemd, or use --dry-run to see all.")
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=_COMMAND_S
            )
        except subprocess.TimeoutExpired:
            raise Problem(FAILED, f"{render.command(command)} did not end within {_COMMAND_S:.0f} s.") from None
        if ended.returncode != 0:
            said = (ended.stderr.strip() or ended.stdout.strip() or f"status {ended.returncode}").splitlines()[0]
            hint = "See: systemctl status harnessd, journalctl -u harnessd"
            raise Problem(FAILED, f"{render.command(command)} failed: {render.one_line(said)}", hint)


def _next(wanted: Wanted) -> list[str]:
    if wanted.root or wanted.start:
        return []
    config, ctl = plan.config_folder(wanted), "systemctl --user" if wanted.user else "systemctl"
    name = "harnessd.socket" if wanted.socket else "harnessd"
    return [
        f"Next: put the key into {config}/credentials/ and call this again; look at {config}/harness.yaml;",
        f"      {wanted.prefix}/bin/harnessd check --config {config}/harness.yaml && {ctl} start {name}",
    ]
