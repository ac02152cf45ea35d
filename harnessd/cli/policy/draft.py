"""Draft: the copy of a policy file that is edited; it replaces the file in one step, or is kept and named."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from harnessd.cli import render
from harnessd.cli.client import NOT_FOUND, REFUSED, USAGE, Problem
from harnessd.cli.policy.sources import OnDisk
from harnessd.config.files import Snapshot, SourceFile, read_bytes
from harnessd.config.load import judge_snapshot
from harnessd.config.strict_yaml import parse
from harnessd.policy import PolicySet
from harnessd.policy import Problem as Fault
from harnessd.policy.assembly.kinds import DAEMON_KINDS
from harnessd.policy.assembly.references import Known
from harnessd.policy.language.shape import NAME_PATTERN
from harnessd.policy.language.source import MapNode, Scalar


@dataclass(frozen=True, slots=True)
class Target:
    """The file that holds a policy, or will. `before` is what it holds now, None where there is no such file."""

    path: Path
    shown: str
    before: bytes | None
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Judged:
    """All files with the draft in its place. `refused`: the draft has problems, or makes new ones elsewhere."""

    policies: PolicySet | None
    problems: tuple[Fault, ...]
    refused: bool


@dataclass(slots=True)
class Draft:
    """The copy."""

    target: Target
    path: Path
    _kept: bool = field(default=False)

    @property
    def changed(self) -> bool:
        """The copy says something else than the file."""
        return self.text() != (self.target.before if self.target.before is not None else _first_text(self.target))

    def text(self) -> bytes:
        """What it holds now. Raises Problem where the editor has left nothing readable."""
        try:
            return read_bytes(self.path)
        except OSError as fault:
            message = f"The draft {render.one_line(self.path)} cannot be read: {fault.strerror or fault}."
            raise Problem(REFUSED, message, "Nothing was changed; edit again.") from None

    def judged(self, disk: OnDisk) -> Judged:
        """All files, with the draft in the place of its file."""
        own = SourceFile(self.target.shown, self.text())
        others = [file for file in disk.read.snapshot.files if file.shown != own.shown]
        files = tuple(sorted([*others, own], key=lambda file: file.shown))
        snapshot = Snapshot(files, disk.read.snapshot.problems)
        settings = disk.settings.settings if disk.settings is not None else None
        judged = judge_snapshot(snapshot, settings, Known(there=False) if disk.settings is None else None)
        already = {str(problem) for problem in disk.problems}
        outside = disk.settings.problems if disk.settings is not None else ()
        new = [one for one in judged.problems if one.file == own.shown or str(one) not in already]
        problems = tuple(sorted({*judged.problems, *outside}))
        return Judged(judged.policies if not problems else None, problems, bool(new))

    def replace(self) -> None:
        """Put the draft in the place of the file: one rename. Raises Problem where the file changed meanwhile."""
        target = self.target
        folder = os.open(target.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Two editors that save in the same instant: the second finds that the file is not what it copied.
            fcntl.flock(folder, fcntl.LOCK_EX)
            if _read(target.path) != target.before:
                self.keep()
                message = f"{render.one_line(target.shown)} was changed by somebody else meanwhile; it was not touched."
                raise Problem(REFUSED, message, f"Look at both, then: {self.go_on()}")
            _take_after(self.path, target.path)
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            self.path.replace(target.path)
            os.fsync(folder)
        except OSError as fault:
            self.keep()
            message = f"{render.one_line(target.shown)} cannot be replaced: {fault.strerror or fault}."
            raise Problem(REFUSED, message, f"Mend that, then: {self.go_on()}") from None
        finally:
            os.close(folder)

    def keep(self) -> None:
        """Leave the draft where it is and say where."""
        self._kept = True
        render.note(f"The draft is kept: {render.one_line(self.path)}\nGo on with it: {self.go_on()}")

    def go_on(self) -> str:
        """The command that takes the draft up again."""
        word = self.target.kind if self.target.name == "default" else f"{self.target.kind}/{self.target.name}"
        return render.command(["harnessctl", "policy", "edit", word, "--from", str(self.path)])

    def keep_if_changed(self) -> None:
        """Something was written: it is not thrown away."""
        with contextlib.suppress(Problem):
            if self.changed:
                self.keep()

    def drop(self) -> None:
        """Delete the draft."""
        self._kept = False
        self.path.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Whatever ended the editing: what was written stays, an untouched copy goes."""
        if self._kept or not self.path.exists():
            return
        with contextlib.suppress(Problem):
            if self.changed:
                self.keep()
                return
        self.drop()


def target_of(disk: OnDisk, kind: str, name: str) -> Target:
    """The file that holds a policy; else a new one. Raises Problem where it cannot be written."""
    if kind in DAEMON_KINDS and name != "default":
        hint = f"Write: harnessctl policy edit {kind}"
        raise Problem(USAGE, f"{kind} is for the whole daemon: it has no names.", hint)
    if not re.fullmatch(NAME_PATTERN, name):
        message = f'"{render.one_line(name)}" is not a name of a policy.'
        raise Problem(USAGE, message, "Write small letters, digits, - and _, a letter first.")
    for file in disk.read.snapshot.files:
        if (kind, name) in _documents(file):
            path = disk.folder / Path(file.shown).name
            target = Target(path.resolve(), file.shown, file.data, kind, name)
            break
    else:
        word = _free_name(disk.folder, kind, name)
        target = Target(disk.folder / word, f"{disk.shown}/{word}", None, kind, name)
    _must_be_writable(disk, target)
    return target


def _documents(file: SourceFile) -> set[tuple[str, str]]:
    """The policies that a file holds, or seems to hold where it cannot be parsed."""
    found: set[tuple[str, str]] = set()
    for root in parse(file.data, file.shown).documents:
        if not isinstance(root, MapNode):
            continue
        kind, name = root.get("kind"), root.get("name")
        if isinstance(kind, Scalar):
            found.add((kind.text, name.text if isinstance(name, Scalar) else "default"))
    if found:
        return found
    words = [line.split() for line in file.data.decode("utf-8", "replace").splitlines()]
    return {(line[1], "default") for line in words if len(line) > 1 and line[0] == "kind:"}


def _free_name(folder: Path, kind: str, name: str) -> str:
    stem = kind if name == "default" else f"{kind}-{name}"
    names = [f"{stem}.yaml", *(f"{stem}-{number}.yaml" for number in range(2, 1000))]
    return next(word for word in names if not (folder / word).exists())


def _must_be_writable(disk: OnDisk, target: Target) -> None:
    folder = target.path.parent
    if not folder.exists() and target.before is None and folder.parent.is_dir():
        try:
            folder.mkdir()
        except OSError as fault:
            message = f"The folder {render.one_line(folder)} cannot be made: {fault.strerror}."
            raise Problem(REFUSED, message, "Make it, or ask its owner.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"You may not write in {render.one_line(disk.shown)}."
        raise Problem(REFUSED, message, "Edit where the files come from, or ask their owner.")


def begin(target: Target, begun: Path | None) -> Draft:
    """A copy beside the file. Its name begins with a dot, so that the daemon does not read it."""
    if begun is not None:
        try:
            text = read_bytes(begun)
        except OSError as fault:
            message = f"The draft {render.one_line(begun)} cannot be read: {fault.strerror or fault}."
            raise Problem(NOT_FOUND, message, "Name the draft that was kept.") from None
        if begun.absolute().parent == target.path.parent.absolute() and begun.name.startswith("."):
            return Draft(target, begun.absolute())
    else:
        text = target.before if target.before is not None else _first_text(target)
    stem = target.path.name.removesuffix(".yaml")
    try:
        number, path = tempfile.mkstemp(prefix=f".{stem}.draft-", suffix=".yaml", dir=target.path.parent)
    except OSError as fault:
        message = f"No draft can be written in {render.one_line(target.path.parent)}: {fault.strerror}."
        raise Problem(REFUSED, message, "Edit where the files come from, or ask their owner.") from None
    with os.fdopen(number, "wb") as file:
        file.write(text)
    return Draft(target, Path(path))


def _first_text(target: Target) -> bytes:
    name = "" if target.name == "default" else f"name: {target.name}\n"
    about = "Write only what differs from the built-in defaults; one note says why."
    keys = f"# Keys: harnessctl policy explain {target.kind}\n"
    return f"# {about}\n{keys}kind: {target.kind}\n{name}".encode()


def _read(path: Path) -> bytes | None:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return None


def _take_after(draft: Path, target: Path) -> None:
    """The new file has the mode and owner of the old one; a new one those that the umask gives."""
    try:
        old = target.stat()
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        return
    draft.chmod(stat.S_IMODE(old.st_mode))
    with contextlib.suppress(PermissionError):  # only root may give files away; the mode was kept
        os.chown(draft, old.st_uid, old.st_gid)
