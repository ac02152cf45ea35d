"""Scripts: their shape, read from YAML or JSON, every mistake named by file and path of keys."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from harnessd.simulator.faults import FaultPlan, read_faults
from harnessd.simulator.protocols.quota import Quota, read_quota
from harnessd.simulator.protocols.wire import Limits
from harnessd.simulator.values import ScriptError, fits, one_of_keys, seconds_of

WHEN_KEYS = (
    *("first", "last_tool", "last_text_matches", "matches", "shown_matches", "user_matches", "system_matches"),
    *("last_call_matches", "results", "turn", "tool_failed", "offered", "no_tools", "equal", "differ"),
)
PATTERN_KEYS = tuple(key for key in WHEN_KEYS if key.endswith("matches"))
TURN_KEYS = ("name", "when", "captures", "say", "think", "call", "finish", "delay", "pace", "usage")
CALL_KEYS = ("tool", "args", "raw_args")
SCRIPT_KEYS = (
    *("model", "about", "turns", "faults", "window", "max_output", "key", "dialect", "history", "allow", "marker"),
    *("ids", "tools_for_history", "files", "prompt", "use", "quota"),
)
LIMIT_KEYS = ("window", "max_output", "key", "dialect", "tools_for_history")
FINISHES = ("stop", "tool_use", "length", "refusal", "content_filter")
USAGE_KEYS = ("input", "output", "cache_read", "cache_write")
ALLOWANCES = ("branch", "compaction", "system", "tools")


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call with templates for arguments. `raw` is sent as it is, JSON or not."""

    tool: str
    args: Mapping[str, Any]
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One entry of a script: when it fits, and what it says. `again` repeats the calls of the last turn."""

    name: str
    when: Mapping[str, Any]
    patterns: Mapping[str, re.Pattern[str]]
    captures: Mapping[str, re.Pattern[str]]
    say: str = ""
    think: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    again: bool = False
    finish: str | None = None
    delay_s: float = 0.0
    pace_s: float = 0.0
    usage: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    """What one model, or every model whose name fits the pattern, does."""

    pattern: str
    turns: tuple[Turn, ...]
    faults: FaultPlan
    limits: Limits
    append_only: bool = False
    allow: frozenset[str] = frozenset()
    marker: re.Pattern[str] | None = None
    fresh_ids: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    about: str = ""
    use: str | None = None
    quota: Quota | None = None
    wild: tuple[str, ...] = ()

    def wildcards(self, model: str) -> tuple[str, ...]:
        """What the stars of the pattern stand for in this model's name."""
        expression = "(.*)".join(re.escape(part) for part in self.pattern.split("*"))
        found = re.fullmatch(expression, model)
        return found.groups() if found else ()


@dataclass(slots=True)
class Scripts:
    """All scripts by pattern: the exact name wins, then the longest pattern that fits."""

    by_pattern: dict[str, Script] = field(default_factory=dict)

    def find(self, model: str) -> Script | None:
        """The script of a model, or None: no such model. With `use` the turns are another's, the rest is its own."""
        script = self.named(model)
        used = self.named(script.use) if script and script.use else None
        return replace(script, turns=used.turns, wild=used.wild, files=used.files) if script and used else script

    def named(self, model: str) -> Script | None:
        """The script whose name or pattern fits."""
        fitting = [pattern for pattern in self.by_pattern if fnmatch.fnmatchcase(model, pattern)]
        if model not in self.by_pattern and not fitting:
            return None
        script = self.by_pattern[model if model in self.by_pattern else max(fitting, key=len)]
        return replace(script, wild=script.wildcards(model))

    def add(self, scripts: Iterable[Script]) -> None:
        """Add scripts; one of the same name is replaced."""
        self.by_pattern |= {script.pattern: script for script in scripts}


def load(path: Path) -> Scripts:
    """All scripts of a file, or of the `*.yaml` and `*.json` files of a folder. Raises ScriptError."""
    files = sorted([*path.glob("*.yaml"), *path.glob("*.json")]) if path.is_dir() else [path]
    if not files:
        raise ScriptError(f"{path}: no script in this folder. Put a *.yaml file there.")
    scripts = Scripts()
    for file in files:
        try:
            document = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise ScriptError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
        scripts.add(read_document(document, str(file), file.stem))
    return scripts


def read_document(document: Any, where: str, stem: str) -> list[Script]:
    """The scripts of one document: `{models: {NAME: script}}`, or one script, named in it or by its file."""
    if not isinstance(document, Mapping):
        raise ScriptError(f"{where}: a script is a map with `models` or `turns`")
    if "models" not in document:
        return [read_script(str(document.get("model", stem)), document, where)]
    one_of_keys(document, ("models",), where)
    models = document["models"]
    if not isinstance(models, Mapping):
        raise ScriptError(f"{where}: models: a map of model name to script")
    return [read_script(str(name), script, f"{where}: models.{name}") for name, script in models.items()]


def read_script(pattern: str, raw: Any, where: str) -> Script:
    """One script."""
    if not isinstance(raw, Mapping):
        raise ScriptError(f"{where}: a script is a map")
    one_of_keys(raw, SCRIPT_KEYS, where)
    turns = raw.get("turns", [])
    if not isinstance(turns, list):
        raise ScriptError(f"{where}.turns: a list of turns")
    if raw.get("history") not in (None, "append_only"):
        raise ScriptError(f"{where}.history: the only check is append_only")
    unknown = set(raw.get("allow", ())) - set(ALLOWANCES)
    if unknown:
        raise ScriptError(f"{where}.allow: {min(unknown)!r} is none of {', '.join(ALLOWANCES)}")
    limits = replace(Limits(), **{key: raw[key] for key in LIMIT_KEYS if key in raw})
    return Script(
        pattern=pattern,
        turns=tuple(read_turn(turn, f"{where}.turns[{n}]", n) for n, turn in enumerate(turns)),
        faults=read_faults(raw.get("faults") or {}, f"{where}.faults"),
        limits=limits,
        append_only=raw.get("history") == "append_only",
        allow=frozenset(raw.get("allow", ())),
        marker=pattern_of(raw["marker"], f"{where}.marker") if "marker" in raw else None,
        fresh_ids=raw.get("ids") == "fresh",
        files={str(name): str(text) for name, text in (raw.get("files") or {}).items()},
        prompt=str(raw.get("prompt", "")),
        about=str(raw.get("about", "")),
        use=None if raw.get("use") is None else str(raw["use"]),
        quota=read_quota(raw["quota"], f"{where}.quota") if "quota" in raw else None,
    )


def read_turn(raw: Any, where: str, n: int) -> Turn:
    """One turn."""
    if not isinstance(raw, Mapping):
        raise ScriptError(f"{where}: a turn is a map")
    one_of_keys(raw, TURN_KEYS, where)
    when = raw.get("when") or {}
    if not isinstance(when, Mapping):
        raise ScriptError(f"{where}.when: a map of conditions")
    one_of_keys(when, WHEN_KEYS, f"{where}.when")
    check_when(when, f"{where}.when")
    finish = raw.get("finish")
    if finish is not None and finish not in FINISHES:
        raise ScriptError(f"{where}.finish: {finish!r} is none of {', '.join(FINISHES)}")
    usage = raw.get("usage") or {}
    one_of_keys(usage, USAGE_KEYS, f"{where}.usage")
    calls, again = read_calls(raw.get("call") or [], f"{where}.call")
    patterns = {key: pattern_of(when[key], f"{where}.when.{key}") for key in PATTERN_KEYS if key in when}
    captures = raw.get("captures") or {}
    return Turn(
        name=str(raw.get("name", f"turn {n}")),
        when=when,
        patterns=patterns,
        captures={str(key): pattern_of(text, f"{where}.captures.{key}") for key, text in captures.items()},
        say=str(raw.get("say", "")),
        think=str(raw.get("think", "")),
        calls=calls,
        again=again,
        finish=finish,
        delay_s=seconds_of(raw.get("delay", 0), f"{where}.delay"),
        pace_s=seconds_of(raw.get("pace", 0), f"{where}.pace"),
        usage={str(key): int(value) for key, value in usage.items()},
    )


def check_when(when: Mapping[str, Any], where: str) -> None:
    """Counts and relations have their form."""
    for key in ("results", "turn"):
        if key in when:
            fits(0, when[key], f"{where}.{key}")
    for key in ("equal", "differ"):
        if key in when and (not isinstance(when[key], list) or len(when[key]) != 2):
            raise ScriptError(f"{where}.{key}: a list of two texts")


def read_calls(raw: Any, where: str) -> tuple[tuple[ScriptedCall, ...], bool]:
    """The calls of a turn; the word `again` repeats those of the turn before."""
    if raw == "again":
        return (), True
    entries = raw if isinstance(raw, list) else [raw]
    calls: list[ScriptedCall] = []
    for n, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or "tool" not in entry:
            raise ScriptError(f"{where}[{n}]: a call is {{tool: NAME, args: {{...}}}}")
        one_of_keys(entry, CALL_KEYS, f"{where}[{n}]")
        args = entry.get("args") or {}
        if not isinstance(args, Mapping):
            raise ScriptError(f"{where}[{n}].args: a map; for words that are no map, write raw_args")
        raw_args = entry.get("raw_args")
        calls.append(ScriptedCall(str(entry["tool"]), args, None if raw_args is None else str(raw_args)))
    return tuple(calls), False


def pattern_of(text: Any, where: str) -> re.Pattern[str]:
    """A regular expression; `.` stays on its line, `^` and `$` hold at lines."""
    try:
        return re.compile(str(text), re.MULTILINE)
    except re.error as error:
        raise ScriptError(f"{where}: not a regular expression: {error}") from error
