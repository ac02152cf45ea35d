"""Calls: a tool call as the rules of `tools` see it: its facts, its shell line taken apart once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.policy.calls.command import Part, split
from harnessd.policy.conditions import Lookup
from harnessd.policy.language.shape import Entry


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known of a call before it is made. `effect` is filled in by `settings`; `declared` is the tool's own."""

    tool: str  # tool/bash, mcp/SERVER/TOOL
    arguments: Mapping[str, Any] = field(default_factory=dict)
    agent: str = ""
    workspace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    model: str = ""
    path: str | None = None
    effect: EffectClass | None = None
    declared: EffectClass = EffectClass.IRREVERSIBLE


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call and the simple commands of its shell line.

    `line` is None where the tool runs no shell; `parts` then holds one None, so that each rule is asked once.
    """

    facts: CallFacts
    line: str | None
    parts: tuple[Part | None, ...]
    inseparable: bool

    @classmethod
    def of(cls, facts: CallFacts) -> SeenCall:
        """Take the line apart, if there is one."""
        line = facts.arguments.get("command")
        if facts.tool != "tool/bash" or not isinstance(line, str):
            return cls(facts, None, (None,), inseparable=False)
        parts = split(line)
        return cls(facts, line, parts or (None,), inseparable=parts is None)

    def any_part(self, entry: Entry) -> bool:
        """Whether one of the commands fits in one of its forms: what a `deny`, an `ask`, a clock asks."""
        return entry.about((self.facts.tool,)) and any(self.any_form(entry, part) for part in self._asked(entry))

    def every_part(self, entry: Entry) -> bool:
        """Whether all commands fit as they are written: what an `allow` asks."""
        return entry.about((self.facts.tool,)) and all(self.as_written(entry, part) for part in self._asked(entry))

    def any_form(self, entry: Entry, part: Part | None) -> bool:
        """Whether one command fits in one of its forms."""
        forms: tuple[str | None, ...] = part.forms if part is not None else (self.line,)
        return any(entry.holds(self.lookup(form)) for form in forms)

    def as_written(self, entry: Entry, part: Part | None) -> bool:
        """Whether one command fits as it is written."""
        return entry.holds(self.lookup(part.written if part is not None else self.line))

    def _asked(self, entry: Entry) -> tuple[Part | None, ...]:
        """The parts that make a difference to an entry."""
        by_command = "command" in entry.when.asks or "command" in entry.unless.asks
        return self.parts if by_command else self.parts[:1]

    def lookup(self, command: str | None) -> Lookup:
        """The facts under the names of conditions, with one command in place of the whole line."""
        facts = self.facts

        def look(name: str) -> Any:
            if name == "command":
                return command
            if name.startswith("label."):
                return facts.labels.get(name[len("label.") :])
            if name.startswith("arg."):
                return argument(facts.arguments, name[len("arg.") :])
            if name == "path":
                return None if facts.path is None else plain_path(facts.path, facts.workspace)
            if name == "effect":
                return facts.effect.value if facts.effect is not None else None
            value = getattr(facts, name, None)
            return value if value != "" else None

        return look


def plain_path(path: str, workspace: str) -> str:
    """A path in one spelling, seen from the workspace: `./a/../b//c` is `b/c`; one that leaves it keeps its `..`.

    Links are not followed here: whoever opens the file sees to that.
    """
    root = workspace.rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :].lstrip("/")
    steps: list[str] = []
    for step in path.split("/"):
        if step == ".." and steps and steps[-1] != "..":
            steps.pop()
        elif step == ".." and path.startswith("/"):
            continue
        elif step not in ("", "."):
            steps.append(step)
    return ("/" if path.startswith("/") else "") + "/".join(steps) or "."


def argument(arguments: Any, path: str) -> Any:
    """The value at a dotted path of the arguments, or None."""
    for step in path.split("."):
        if isinstance(arguments, Mapping) and step in arguments:
            arguments = arguments[step]
        elif isinstance(arguments, list | tuple) and step.isdigit() and int(step) < len(arguments):
            arguments = arguments[int(step)]
        else:
            return None
    return arguments
