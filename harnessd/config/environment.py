"""Environment: `HARNESSD_` + key path over harness.yaml, a mistyped one refused; secrets read at each use."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from harnessd.config.files import read_bytes
from harnessd.config.settings import Settings
from harnessd.config.strict_yaml import parse
from harnessd.policy.language.shape import model_at
from harnessd.policy.language.source import MapNode, Place, Problem, Scalar, find
from harnessd.policy.values import SecretRef

PREFIX = str(Settings.model_config["env_prefix"])
NESTED = str(Settings.model_config["env_nested_delimiter"])
NO_KEY_PATHS = frozenset({"HARNESSD_CONFIG", "HARNESSD_SOCKET", "HARNESSD_URL", "HARNESSD_CRASH"})


def with_environment(tree: MapNode, environ: Mapping[str, str]) -> tuple[MapNode, list[Problem]]:
    """The tree of harness.yaml with the variables on top, and the variables that name no key."""
    problems: list[Problem] = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NO_KEY_PATHS:
            continue
        path = _path(tree, name)
        if path is None:
            near = difflib.get_close_matches(name, [*key_paths(tree), *NO_KEY_PATHS], n=1, cutoff=0.6)
            remedy = f"did you mean {near[0]}?" if near else "unset it: it names no key of harness.yaml"
            problems.append(Problem(name, 0, 0, "no such setting", remedy))
            continue
        tree = _put(tree, path, _node(name, environ[name], problems), Place(name))
    return tree, problems


def _path(tree: MapNode, name: str) -> tuple[str, ...] | None:
    """The key path that a variable means, or None."""
    path: list[str] = []
    for step in name.removeprefix(PREFIX).lower().split(NESTED):
        owner = model_at(Settings, tuple(path))
        if owner is not None:
            known = {field.alias or key for key, field in owner.model_fields.items()}
            if step not in known:
                return None
            path.append(step)
            continue
        there = find(tree, path)
        if not step or not (path and path[0] in ("models", "agents", "tools", "features") and len(path) == 1):
            return None
        keys = list(there) if isinstance(there, MapNode) else []
        path.append(next((key for key in keys if key.lower() == step), step))
    return tuple(path) if path else None


def _node(name: str, value: str, problems: list[Problem]) -> Any:
    """A variable's value: `[a, b]` and `{a: b}` as YAML, anything else one word."""
    place = Place(name)
    if value[:1] in ("[", "{"):
        parsed = parse(value.encode("utf-8", "surrogateescape"), name)
        problems.extend(Problem.at(place, problem.message, problem.remedy) for problem in parsed.problems)
        if parsed.documents:
            return parsed.documents[0]
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return Scalar(value[1:-1], plain=False, place=place)
    return Scalar(value, plain=True, place=place)


def _put(tree: MapNode, path: tuple[str, ...], node: Any, place: Place) -> MapNode:
    copy = tree.copy()
    if len(path) == 1:
        copy.put(path[0], node, place)
        return copy
    below = tree.get(path[0])
    child = below if isinstance(below, MapNode) else MapNode(place)
    copy.put(path[0], _put(child, path[1:], node, place), tree.keys_at.get(path[0], place))
    return copy


def key_paths(tree: MapNode) -> Iterator[str]:
    """Every variable that would name a key, with the names that harness.yaml declares."""
    yield from _key_paths(Settings, tree, PREFIX)


def _key_paths(model: type[BaseModel], tree: Any, prefix: str) -> Iterator[str]:
    for key, field in model.model_fields.items():
        name = field.alias or key
        variable = prefix + name.upper()
        yield variable
        below = find(tree, (name,))
        inner = model_at(model, (name,))
        if inner is not None:
            yield from _key_paths(inner, below, variable + NESTED)
            continue
        item = model_at(model, (name, "*"))
        for declared in below if item is not None and isinstance(below, MapNode) else ():
            yield f"{variable}{NESTED}{declared.upper()}"
            if item is not None:
                yield from _key_paths(item, find(below, (declared,)), f"{variable}{NESTED}{declared.upper()}{NESTED}")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A secret's value, or a sentence and a remedy. Neither ever holds the value."""

    value: str | None
    sentence: str = ""
    remedy: str = ""

    def __repr__(self) -> str:
        return f"Resolved({'set' if self.value else self.sentence!r})"


def resolve_secret(secret: SecretRef, environ: Mapping[str, str], owner: str) -> Resolved:
    """Read a secret now; never kept, so that a new key needs no restart. `owner` begins the sentence: `model primary`.

    A credential is a file of that name in the folder that systemd hands over, else in the user's or the system's
    `harnessd/credentials`.
    """
    if secret.source == "env":
        value = environ.get(secret.name, "").strip()
        if value:
            return _checked(value, f"{owner}: {secret.name}")
        remedy = f"set {secret.name} in the daemon's environment, or write {{credential: NAME}} in harness.yaml"
        return Resolved(None, f"{owner}: {secret.name} is not set", remedy)
    folders = credential_folders(environ)
    for folder in folders:
        path = folder / secret.name
        try:
            value = read_bytes(path).decode("utf-8").strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            return Resolved(None, f"{owner}: credential {secret.name} cannot be read: {reason}", f"mend {path}")
        if value:
            return _checked(value, f"{owner}: credential {secret.name}")
        return Resolved(None, f"{owner}: credential {secret.name} is empty", f"put the key into {path}")
    remedy = f"put the key into {folders[0] / secret.name}"
    return Resolved(None, f"{owner}: there is no credential {secret.name}", remedy)


def _checked(value: str, what: str) -> Resolved:
    if value.isprintable() and value.isascii():
        return Resolved(value)
    return Resolved(None, f"{what} holds characters that no key has", "store the key alone, on one line")


def credential_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where credential files are looked for, in order."""
    folders = [Path(environ["CREDENTIALS_DIRECTORY"])] if environ.get("CREDENTIALS_DIRECTORY") else []
    folders.extend(folder / "credentials" for folder in configuration_folders(environ))
    return tuple(folders)


def configuration_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The user's and the system's configuration folder."""
    folders = []
    if environ.get("XDG_CONFIG_HOME"):
        folders.append(Path(environ["XDG_CONFIG_HOME"]) / "harnessd")
    elif environ.get("HOME"):
        folders.append(Path(environ["HOME"]) / ".config" / "harnessd")
    folders.append(Path("/etc/harnessd"))
    return tuple(folders)
