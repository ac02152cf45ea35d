"""Configuration: files, folders, services and channels that harness.yaml and the policies name, as doctor sees them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harnessd.cli.client import Client, Problem
from harnessd.cli.upkeep.line import FAIL, OK, WARN, Line
from harnessd.config.advice import unset_secrets
from harnessd.config.load import find_config, read_policies, read_settings, shown_folder
from harnessd.config.settings import Settings
from harnessd.domain.durable.file_systems import NETWORK_FILE_SYSTEMS, file_system_of
from harnessd.domain.failure import HarnessError
from harnessd.policy import PolicySet
from harnessd.policy.retention import disk

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(slots=True)
class Found:
    """What was read, and what is said of it. `settings` is None where nothing more can be looked at."""

    path: Path | None = None
    settings: Settings | None = None
    policies: PolicySet | None = None
    lines: list[Line] = field(default_factory=list)


def read(client: Client | None, config: Path | None) -> Found:
    """The running daemon's own files where it tells them and nobody names others."""
    found = Found()
    try:
        told = client.get("/v1/policies").get("config") if client is not None and config is None else None
        found.path = Path(told) if told else find_config(config, os.environ)
    except (HarnessError, Problem) as wrong:
        sentence = getattr(wrong, "sentence", str(wrong))
        remedy = getattr(wrong, "remedy", "") or getattr(wrong, "hint", "")
        found.lines.append(Line("config", "harness.yaml", FAIL, sentence, remedy))
        return found
    settings = read_settings(found.path, os.environ)
    found.settings = settings.settings
    if settings.settings is None:
        first = settings.problems[0]
        says = f"{len(settings.problems)} problems, the first: {first}"
        found.lines.append(Line("config", "harness.yaml", FAIL, says, "Mend it; see: harnessd check"))
        return found
    found.lines.append(_guarded("harness.yaml", found.path, "config"))
    folder = Path(settings.settings.policies.dir)
    policies = read_policies(folder, shown_folder(folder, found.path, None), settings.settings)
    found.policies = policies.policies
    if policies.problems:
        says = f"{len(policies.problems)} problems, the first: {policies.problems[0]}"
        found.lines.append(Line("config", "policies", FAIL, says, "Mend them; see: harnessctl policy check"))
    elif not folder.is_dir():
        says = f"there is no {folder}: the shipped policies are in force"
        found.lines.append(Line("config", "policies", OK, says))
    else:
        found.lines.append(_guarded("policies", folder, "config"))
    return found


def _guarded(name: str, path: Path, area: str) -> Line:
    """What decides over agents must not be theirs, or anybody's, to write."""
    try:
        status = path.stat()
    except OSError as error:
        return Line(area, name, WARN, f"{path}: {error.strerror}", "Look at it as the daemon's user.")
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IWOTH:
        return Line(area, name, FAIL, f"{path} has mode {mode:04o}: anybody may change it", f"chmod o-w {path}")
    if mode & stat.S_IWGRP:
        return Line(area, name, WARN, f"{path} has mode {mode:04o}: its group may change it", f"chmod g-w {path}")
    return Line(area, name, OK, f"{path}, mode {mode:04o}")


def folders(found: Found) -> Iterator[Line]:
    """Where the store lies, and where agents work."""
    settings = found.settings
    assert settings is not None  # noqa: S101 - asked before
    url = settings.store.url
    if not isinstance(url, str):
        yield Line("store", "url", OK, "a secret holds it")
    elif url.startswith("sqlite:"):
        yield from _state(Path(url.removeprefix("sqlite:").replace("///", "/", 1)).absolute().parent, found.policies)
    else:
        yield Line("store", "url", OK, url.partition("@")[2] or url)
    for root in settings.workspaces.roots:
        path = Path(root).expanduser()
        if path.is_dir():
            yield Line("workspaces", str(path), OK, "there")
        else:
            yield Line("workspaces", str(path), WARN, "no such folder: no task can work there", f"mkdir -p {path}")


def _state(folder: Path, policies: PolicySet | None) -> Iterator[Line]:
    above = next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))
    try:
        mode = stat.S_IMODE(above.stat().st_mode)
    except OSError as error:
        yield Line("store", "folder", WARN, f"{folder}: {error.strerror}", "Look at it as the daemon's user.")
        return
    if above != folder:
        yield Line("store", "folder", OK, f"{folder} will be made at the first start")
    elif mode & 0o077:
        says = f"{folder} has mode {mode:04o}: others can look into what tasks were told"
        yield Line("store", "folder", FAIL if mode & _OTHERS_WRITE else WARN, says, f"chmod 700 {folder}")
    elif not os.access(folder, os.R_OK):
        yield Line("store", "folder", OK, f"{folder}, mode {mode:04o}, not open to this user")
    else:
        yield Line("store", "folder", OK, f"{folder}, mode {mode:04o}")
    yield _mount(above)
    yield _room(above, policies)


def _mount(folder: Path) -> Line:
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Line("store", "file system", WARN, f"/proc/self/mountinfo: {error.strerror}", "Mount /proc.")
    kind = file_system_of(str(folder.resolve()), table)
    if kind in NETWORK_FILE_SYSTEMS:
        says = f"{folder} lies on a network file system ({kind}), where locks keep nobody out"
        return Line("store", "file system", FAIL, says, "Put the store on a local disk (store.url).")
    if kind in ("tmpfs", "ramfs"):
        says = f"{folder} lies in memory ({kind}): a restart of the machine loses it"
        return Line("store", "file system", WARN, says, "Put the store on a disk (store.url).")
    return Line("store", "file system", OK, f"{kind}, local")


def _room(folder: Path, policies: PolicySet | None) -> Line:
    status = os.statvfs(folder)
    free = status.f_bavail / status.f_blocks if status.f_blocks else 1.0
    says = f"{free:.1%} free"
    if policies is None:
        return Line("store", "room", OK, says)
    state, rule = disk(policies.retention, free)
    if state == "ok":
        return Line("store", "room", OK, says)
    remedy = f"Free some, or see: harnessctl gc --dry-run   ({rule.file}:{rule.line})"
    return Line("store", "room", FAIL if state == "stop" else WARN, says, remedy)


def services(found: Found, *, running: bool) -> Iterator[Line]:
    """Keys of models and secrets of channels: can they be read? Their values go nowhere."""
    settings, policies = found.settings, found.policies
    assert settings is not None  # noqa: S101 - asked before
    if policies is None:
        return
    wrong: dict[str, Any] = {}
    for problem in unset_secrets(settings, policies, os.environ, "harness.yaml"):
        wrong[str(problem)] = problem
    for text in wrong:
        # The daemon's environment is its own: what is missing here may well be there.
        says = text.removeprefix("harness.yaml:1:1: ")
        hint = "Seen from this shell; the daemon reads its own environment and credentials." if running else ""
        yield Line("secrets", "unset", WARN, says, hint or "Set it where the daemon is started.")
    if not wrong:
        yield Line("secrets", "keys", OK, f"of {len(settings.models)} models and all channels: readable")
    channels = policies.notify.shape.channels
    if channels:
        yield Line("channels", "notify", OK, f"{', '.join(sorted(channels))} (try one: harnessctl notify test NAME)")
    else:
        remedy = "Write one into policies/notify.yaml: else people hear of nothing unless they look."
        yield Line("channels", "notify", WARN, "no channel tells people of what happens", remedy)
