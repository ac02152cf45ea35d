"""Load: harness.yaml and policies/ -> Settings and PolicySet, or all problems of all files at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from harnessd.config.advice import settings_warnings
from harnessd.config.environment import configuration_folders, with_environment
from harnessd.config.files import Snapshot, read_builtin, read_bytes, read_folder
from harnessd.config.settings import Settings, Written
from harnessd.config.settings_check import settings_problems
from harnessd.config.strict_yaml import parse
from harnessd.domain.failure import ConfigError
from harnessd.policy import PolicySet, Problem
from harnessd.policy.assembly.assemble import Shipped, assemble, read_shipped
from harnessd.policy.assembly.references import BUILTIN_TOOLS, Known
from harnessd.policy.language.shape import read_shape
from harnessd.policy.language.source import MapNode, Place, did_you_mean


class ConfigProblems(ConfigError):  # noqa: N818 - named as what it carries
    """The configuration has problems; nothing was changed."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A whole valid configuration. Paths in `settings` are absolute; `files` are those that were read, as shown."""

    path: Path
    settings: Settings
    policies: PolicySet
    policies_dir: Path
    warnings: tuple[Problem, ...] = ()
    files: tuple[str, ...] = ()
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(()))
    config_bytes: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """harness.yaml, read and checked by itself. `settings` is None where it has problems."""

    path: Path
    settings: Settings | None
    tree: MapNode | None
    problems: tuple[Problem, ...]
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReadPolicies:
    """A policy folder, read and checked. `policies` is None where it has problems."""

    policies: PolicySet | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    snapshot: Snapshot


def load(config: Path | None, environ: Mapping[str, str], *, policies_dir: Path | None = None) -> Loaded:
    """The whole configuration. Raises ConfigError where there is no harness.yaml, ConfigProblems with all problems.

    `policies_dir` is read instead of the folder that harness.yaml names.
    """
    path = find_config(config, environ)
    read = read_settings(path, environ)
    problems = list(read.problems)
    if read.settings is None:
        folder, shown = _default_folder(read, policies_dir)
        known = declared(read.tree) if read.tree is not None else None
        policies = judge_snapshot(read_folder(folder, shown), None, known)
        raise ConfigProblems(tuple(sorted({*problems, *policies.problems})))
    folder = policies_dir or Path(read.settings.policies.dir)
    policies = read_policies(folder, shown_folder(folder, path, policies_dir), read.settings)
    problems.extend(policies.problems)
    if problems or policies.policies is None:
        raise ConfigProblems(tuple(sorted(set(problems))))
    files = (str(path), *(file.shown for file in policies.snapshot.files))
    advice = tuple(settings_warnings(read.settings, read.tree)) if read.tree is not None else ()
    warnings = tuple(sorted({*policies.warnings, *advice}))
    return Loaded(path, read.settings, policies.policies, folder, warnings, files, policies.snapshot, read.data)


def declared(tree: MapNode) -> Known:
    """The names that a harness.yaml declares, whatever else is wrong with it."""

    def names(section: str) -> tuple[str, ...]:
        node = tree.get(section)
        return tuple(node) if isinstance(node, MapNode) else ()

    return Known(names("models"), names("agents"), (*BUILTIN_TOOLS, *names("tools")), names("features"))


def find_config(config: Path | None, environ: Mapping[str, str]) -> Path:
    """The harness.yaml to use: --config, HARNESSD_CONFIG, here, the user's, the system's folder."""
    named = config or (Path(environ["HARNESSD_CONFIG"]) if environ.get("HARNESSD_CONFIG") else None)
    if named is not None:
        path = named / "harness.yaml" if named.is_dir() else named
        if path.is_file():
            return path
        by = "--config" if config else "HARNESSD_CONFIG"
        raise ConfigError(f"There is no {path} ({by}).", remedy="Write it, or name another file.")
    candidates = [Path("harness.yaml"), *(folder / "harness.yaml" for folder in configuration_folders(environ))]
    for path in candidates:
        if path.is_file():
            return path
    looked = ", ".join(map(str, candidates))
    raise ConfigError(f"There is no harness.yaml: looked for {looked}.", remedy="Write one, or name it: --config FILE.")


def read_settings(path: Path, environ: Mapping[str, str]) -> ReadSettings:
    """harness.yaml with the environment on top; all its problems."""
    try:
        data = read_bytes(path)
    except OSError as error:
        problem = Problem(str(path), 1, 1, f"cannot be read: {error.strerror or error}", "make it a readable file")
        return ReadSettings(path, None, None, (problem,))
    return parse_settings(path, data, environ)


def parse_settings(path: Path, data: bytes, environ: Mapping[str, str]) -> ReadSettings:
    """The settings that a harness.yaml's bytes mean, with the environment on top."""
    shown = str(path)
    parsed = parse(data, shown)
    problems = list(parsed.problems)
    if len(parsed.documents) > 1:
        place = getattr(parsed.documents[1], "place", None)
        problems.append(Problem(shown, place.line if place else 1, 1, "a second document", "keep one document"))
    tree = parsed.documents[0] if parsed.documents else None
    if not isinstance(tree, MapNode):
        if not problems:
            problems.append(Problem(shown, 1, 1, "this is no map", "write models:, agents: and the other keys"))
        return ReadSettings(path, None, None, tuple(problems))
    tree, faults = with_environment(tree, environ)
    problems.extend(faults)
    settings, faults_of_shape = read_shape(Settings, tree)
    problems.extend(faults_of_shape)
    if settings is not None:
        problems.extend(settings_problems(settings, tree))
    if problems or settings is None:
        return ReadSettings(path, None, tree, tuple(sorted(set(problems))), data)
    return ReadSettings(path, absolute(settings, path, environ), tree, (), data)


def read_policies(folder: Path, shown: str, settings: Settings | None, *, alone: bool = False) -> ReadPolicies:
    """A policy folder over the shipped policies.

    Without settings, names are not resolved; `alone` says that there is no harness.yaml, and every name is a problem.
    """
    snapshot = read_folder(folder, shown)
    return judge_snapshot(snapshot, settings, Known(there=False) if alone else None)


def judge_snapshot(snapshot: Snapshot, settings: Settings | None, known: Known | None = None) -> ReadPolicies:
    """The policy set that a folder's bytes mean, or all problems."""
    problems = list(snapshot.problems)
    roots: list[Any] = []
    for file in snapshot.files:
        parsed = parse(file.data, file.shown)
        problems.extend(parsed.problems)
        roots.extend(parsed.documents)
    assembled = assemble(roots, shipped())
    problems.extend(assembled.problems)
    policies = PolicySet.of(assembled.policies)
    known = settings.known if settings is not None else known
    if known is not None:
        problems.extend(policies.problems(known))
    if settings is not None:
        problems.extend(_agents_policies(settings, policies))
    if problems or known is None:
        return ReadPolicies(None if problems else policies, tuple(sorted(set(problems))), (), snapshot)
    return ReadPolicies(policies, (), policies.warnings(known), snapshot)


@lru_cache(maxsize=1)
def shipped() -> Shipped:
    """What the shipped policies mean; worked out once, since they come with the program."""
    return read_shipped(builtin_roots())


@lru_cache(maxsize=1)
def builtin_roots() -> tuple[Any, ...]:
    """The shipped documents, parsed."""
    roots: list[Any] = []
    for file in read_builtin().files:
        parsed = parse(file.data, file.shown)
        if parsed.problems:
            raise ConfigProblems(tuple(parsed.problems))
        roots.extend(parsed.documents)
    return tuple(roots)


def builtin_policies() -> PolicySet:
    """The shipped policies alone: what an absent or empty folder means."""
    assembled = assemble((), shipped())
    if assembled.problems:
        raise ConfigProblems(assembled.problems)
    return PolicySet.of(assembled.policies)


def _agents_policies(settings: Settings, policies: PolicySet) -> list[Problem]:
    """Policies that agents name must exist."""
    problems = []
    for agent, declared in settings.agents.items():
        for kind, name in declared.policies.items():
            if policies.get(kind, name) is None:
                message = f'agent {agent}: no {kind} policy "{name}"'
                remedy = did_you_mean(name, policies.names(kind))
                place = name.place if isinstance(name, Written) else Place("harness.yaml")
                problems.append(Problem.at(place, message, remedy))
    return problems


def absolute(settings: Settings, path: Path, environ: Mapping[str, str]) -> Settings:
    """The settings with every path absolute, from the folder of harness.yaml."""
    base = path.absolute().parent

    def resolve(text: str) -> str:
        home = environ.get("HOME")
        if text == "~" or text.startswith("~/"):
            text = (home or str(Path.home())) + text[1:]
        return os.path.normpath(base / text)

    store = settings.store
    if isinstance(store.url, str) and store.url.startswith("sqlite:"):
        store = store.model_copy(update={"url": "sqlite:" + resolve(store.url.removeprefix("sqlite:"))})
    store = store.model_copy(update={"state": resolve(store.state)})
    socket = settings.socket
    if socket.path is not None:
        socket = socket.model_copy(update={"path": resolve(socket.path)})
    workspaces = settings.workspaces
    roots = tuple(resolve(root) for root in workspaces.roots)
    tools = {
        name: tool.model_copy(update={"command": (_program(tool.command[0], resolve), *tool.command[1:])})
        for name, tool in settings.tools.items()
    }
    return settings.model_copy(
        update={
            "store": store,
            "socket": socket,
            "policies": settings.policies.model_copy(update={"dir": resolve(settings.policies.dir)}),
            "workspaces": workspaces.model_copy(update={"roots": roots}),
            "tools": tools,
        }
    )


def _program(word: str, resolve: Any) -> str:
    return str(resolve(word)) if "/" in word and not word.startswith("/") else word


def shown_folder(folder: Path, config: Path, named: Path | None) -> str:
    """The folder as messages show it: as named on the command line, else seen from harness.yaml's place."""
    if named is not None:
        return str(named)
    base = config.parent.absolute()
    inside = os.path.relpath(folder, base)
    if inside.startswith(".."):
        return str(folder)
    return inside if str(config.parent) == "." else str(config.parent / inside)


def _default_folder(read: ReadSettings, named: Path | None) -> tuple[Path, str]:
    folder = named or read.path.absolute().parent / "policies"
    return folder, shown_folder(folder, read.path, named)
