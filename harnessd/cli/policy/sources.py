"""Sources: what `r47`, a folder and `files` mean: a policy set with its texts, from the daemon or from disk."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, NOT_FOUND, UNREACHABLE, USAGE, Client, Problem
from harnessd.config.files import Snapshot, read_builtin
from harnessd.config.load import (
    ReadPolicies,
    ReadSettings,
    builtin_policies,
    find_config,
    read_policies,
    read_settings,
    shown_folder,
)
from harnessd.config.stored import policies_of
from harnessd.config.strict_yaml import parse
from harnessd.domain.failure import ConfigError
from harnessd.policy import PolicySet
from harnessd.policy import Problem as Fault
from harnessd.policy.assembly.kinds import KINDS
from harnessd.policy.language.source import MapNode, Place, Scalar, did_you_mean

_REVISION = re.compile(r"r[0-9]{1,18}")
FILES = "files"

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="harness.yaml to read; else HARNESSD_CONFIG, ./harness.yaml, then the configuration folders.",
)


@dataclass(frozen=True, slots=True)
class Texts:
    """The files of a set by the name that messages use, and the same of the shipped part."""

    files: Mapping[str, str] = field(default_factory=dict)
    builtin: Mapping[str, str] = field(default_factory=dict)

    def note_at(self, place: Place) -> str | None:
        """The note of the document in which a value stands."""
        text = (self.builtin if place.builtin else self.files).get(place.file)
        if text is None:
            return None
        note = None
        for root in parse(text.encode(), place.file).documents:
            if not isinstance(root, MapNode) or root.place.line > place.line:
                break
            written = root.get("note")
            note = written.text if isinstance(written, Scalar) else None
        return note


@dataclass(frozen=True, slots=True)
class Source:
    """One policy set. `title` names it, `about` says how it stands; `policies` is None where it has problems."""

    title: str
    about: str
    policies: PolicySet | None
    problems: tuple[Fault, ...] = ()
    texts: Texts = field(default_factory=Texts)
    agents: Mapping[str, Mapping[str, str]] | None = None  # agent -> kind -> policy, where it is known

    @property
    def whole(self) -> PolicySet:
        """The set. Raises Problem where it has problems, which were printed."""
        if self.policies is None:
            raise Problem(FAILED, f"{self.title}: {problems_in(self.problems)}.", "Find them: harnessctl policy check")
        return self.policies

    def builtin(self) -> PolicySet:
        """The shipped part alone, of the program that the set was made with."""
        if not self.texts.builtin:
            return builtin_policies()
        return policies_of({"files": {}, "builtin": self.texts.builtin})[0]


def problems_in(faults: Sequence[Fault]) -> str:
    """`13 problems in 5 files`."""
    files = len({fault.file for fault in faults})
    return f"{counted(len(faults), 'problem')} in {counted(files, 'file')}"


def counted(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def tell_problems(faults: Sequence[Fault]) -> None:
    """All problems on standard output, a line each, as compilers print them."""
    render.out_lines(render.one_line(fault) for fault in faults)


# --- from the daemon --------------------------------------------------------------------------------------------------


def in_force(client: Client) -> Source:
    """The set in force."""
    facts = client.get("/v1/policies")
    source = stored(client, int(facts["revision"]))
    hold = ", HELD by a revert" if facts.get("hold") else ""
    about = f"in force since {render.clock_time(facts.get('since'))}{hold}"
    return Source(source.title, about, source.policies, (), source.texts, facts.get("agents"))


def stored(client: Client, number: int) -> Source:
    """A kept revision. Raises Problem where there is none, or where it was refused and never kept."""
    row = client.get(f"/v1/policies/revisions/{number}")
    title = f"r{number}"
    content = row.get("content")
    if not isinstance(content, dict):
        raise Problem(NOT_FOUND, f"{title} was refused: it never was a policy set.", "See: harnessctl policy history")
    policies, problems = policies_of(content)
    if problems:
        tell_problems(problems)
        message = f"{title} was made by harnessd {row.get('program', '?')} and does not fit this harnessctl."
        raise Problem(FAILED, message, "Use the harnessctl of that version.")
    texts = Texts(content.get("files", {}), content.get("builtin", {}))
    about = f"{str(row.get('state')).replace('_', ' ')}, from {render.clock_time(row.get('at'))}"
    return Source(title, about, policies.at(number), (), texts)


# --- from disk --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A folder of policies and the harness.yaml beside it, where there is one."""

    folder: Path
    shown: str
    read: ReadPolicies
    settings: ReadSettings | None

    @property
    def problems(self) -> tuple[Fault, ...]:
        """All problems of harness.yaml and of all policy files."""
        own = self.settings.problems if self.settings is not None else ()
        return tuple(sorted({*own, *self.read.problems}))

    def source(self, title: str, *, about: str = "") -> Source:
        """The folder as one side of a comparison."""
        problems = self.problems
        policies = None if problems else self.read.policies
        how = about or (problems_in(problems) if problems else "valid")
        agents = None
        if self.settings is not None and self.settings.settings is not None:
            agents = {name: dict(agent.policies) for name, agent in self.settings.settings.agents.items()}
        return Source(title, how, policies, problems, texts_of(self.read.snapshot), agents)


def texts_of(snapshot: Snapshot) -> Texts:
    """What a folder's bytes say."""
    files = {file.shown: file.data.decode("utf-8", "replace") for file in snapshot.files}
    return Texts(files, {file.shown: file.data.decode() for file in read_builtin().files})


def config_of(config: Path | None) -> ReadSettings | None:
    """The harness.yaml that holds here, read; None where there is none. Raises Problem where a named one is missing."""
    try:
        path = find_config(config, os.environ)
    except ConfigError as missing:
        if config is not None or os.environ.get("HARNESSD_CONFIG"):
            raise Problem(USAGE, str(missing), "Write it, or name another file.") from None
        return None
    return read_settings(path, os.environ)


def on_disk(folder: Path | None, config: Path | None, *, lenient: bool = False) -> OnDisk:
    """A folder, or the one that harness.yaml names. `lenient`: names that lead nowhere are no problems.

    Raises Problem where a named folder is missing, or where nothing says which folder is meant.
    """
    if folder is not None and not folder.exists():
        raise Problem(USAGE, f"There is no folder {render.one_line(folder)}.", "Name the folder that holds the files.")
    settings = None if lenient else config_of(config)
    known = settings.settings if settings is not None else None
    if folder is not None:
        read = read_policies(folder, str(folder), known, alone=settings is None and not lenient)
        return OnDisk(folder, str(folder), read, settings)
    if settings is None:
        if not Path("policies").is_dir():
            message = "There is no harness.yaml and no folder named policies here."
            raise Problem(USAGE, message, "Name the folder, or harness.yaml: --config FILE.")
        return OnDisk(Path("policies"), "policies", read_policies(Path("policies"), "policies", None, alone=True), None)
    place = Path(known.policies.dir) if known is not None else settings.path.absolute().parent / "policies"
    shown = shown_folder(place, settings.path, None)
    return OnDisk(place, shown, read_policies(place, shown, known), settings)


def daemons_files(client: Client | None, config: Path | None) -> OnDisk:
    """The files that the daemon reads, as this process sees them; without a daemon those that harness.yaml names."""
    facts = _facts(client) if config is None and client is not None else None
    if facts is None:
        return on_disk(None, config)
    if not (facts.get("config") and facts.get("folder")):
        return on_disk(None, None)
    path, folder = Path(facts["config"]), Path(facts["folder"])
    if not path.exists():
        message = f"The daemon reads {render.one_line(path)}, which is not there on this machine."
        raise Problem(USAGE, message, "Ask on its machine, or name the file: --config FILE.")
    settings = read_settings(path, os.environ)
    shown = shown_folder(folder, _seen_from_here(path), None)
    return OnDisk(folder, shown, read_policies(folder, shown, settings.settings), settings)


def _facts(client: Client) -> dict[str, Any] | None:
    try:
        return client.get("/v1/policies")
    except Problem as problem:
        if problem.exit_code != UNREACHABLE:
            raise
        return None


def _seen_from_here(path: Path) -> Path:
    """An absolute path as a person here would write it: from the working folder where it lies below it."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def is_revision(word: str) -> bool:
    """`r47`. A folder of such a name is written `./r47`."""
    return _REVISION.fullmatch(word) is not None


def source_named(word: str, client: Client | None, config: Path | None) -> Source:
    """`rN`, `files`, or a folder. Raises Problem."""
    if is_revision(word):
        if client is None:
            raise Problem(USAGE, f"{word} is kept by the daemon.", "Name a folder, or start the daemon.")
        return stored(client, int(word[1:]))
    if word == FILES:
        disk = daemons_files(client, config)
        how = problems_in(disk.problems) if disk.problems else "valid"
        return disk.source(FILES, about=f"as of {render.clock_time(_now())} ({how})")
    path = Path(word)
    if not path.is_dir():
        message = f'"{render.one_line(word)}" is no revision, and there is no such folder.'
        raise Problem(USAGE, message, "Write r47, a folder, or files.")
    return on_disk(path, None, lenient=True).source(word)


def _now() -> float:
    import time

    return time.time()


# --- names ------------------------------------------------------------------------------------------------------------


def kind_and_name(word: str) -> tuple[str, str | None]:
    """`KIND` or `KIND/NAME`. Raises Problem for a kind that does not exist."""
    kind, _, name = word.partition("/")
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise Problem(USAGE, f'There is no policy kind "{render.one_line(kind)}".', f"{hint[:1].upper()}{hint[1:]}")
    return kind, name or None


def no_such_policy(kind: str, name: str, policies: PolicySet) -> Problem:
    """Nobody has written it."""
    hint = did_you_mean(name, policies.names(kind))
    return Problem(NOT_FOUND, f"There is no policy {kind}/{render.one_line(name)}.", f"{hint[:1].upper()}{hint[1:]}")


def plain(place: Place) -> dict[str, Any]:
    """A place as JSON data."""
    return {"file": place.file, "line": place.line, "column": place.column}
