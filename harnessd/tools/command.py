"""Command tools: programs that harness.yaml declares; arguments of a call fill the places of a command line.

There is no shell: a value fills one argument of the program, whatever stands in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.ports import ToolContext, ToolOutcome
from harnessd.tools.answers import failed
from harnessd.tools.jobs import Jobs
from harnessd.tools.shell import carry_out

KEY_VARIABLE = "HARNESSD_IDEMPOTENCY_KEY"  # where the program finds the key of the act it is asked for
_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


@dataclass(frozen=True, slots=True)
class Declared:
    """A command tool as harness.yaml has it. `folder`: where a program named by a relative path is found."""

    command: Sequence[str]
    schema: Mapping[str, Any]
    about: str
    folder: Path


class CommandTool:
    """One declared command."""

    effect = EffectClass.IRREVERSIBLE  # nobody knows what a program does, unless a rule of `tools` says so

    def __init__(self, name: str, declared: Declared, jobs: Jobs) -> None:
        # A misspelt argument must not be dropped silently: it would run the program without it.
        schema = {"additionalProperties": False, **declared.schema}
        self.spec = ToolSpec(name, declared.about, schema)
        self._declared = declared
        self._jobs = jobs

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        filled = list(fill(self._declared.command, arguments))
        if any("\0" in part for part in filled):
            return failed(
                self.spec.name, ErrorClass.INVALID_ARGUMENTS, "a value holds a NUL character", "Leave it out."
            )
        program = filled[0]
        if "/" in program:
            # Relative to harness.yaml, never to the workspace: what an agent can write is no program of the operator's.
            program = str((self._declared.folder / program).absolute())
        if context.key is not None:
            context = replace(context, environment={**context.environment, KEY_VARIABLE: context.key})
        argv = [program, *filled[1:]]
        outcome = await carry_out(self.spec.name, argv, " ".join(filled), context, self._jobs, context.limits.timeout_s)
        if isinstance(outcome, ToolOutcome) and outcome.artefact is None and not outcome.is_error:
            return replace(outcome, facts={**outcome.facts, "result": _result(outcome.text)})
        return outcome


def fill(command: Sequence[str], arguments: Mapping[str, Any]) -> Iterator[str]:
    """The command line of a call.

    `{name}` in a part is the argument's text, `{{` and `}}` are braces. A part that is only `{name}` is left out where
    the call has no such argument, and becomes one part for each item of a list.
    """
    for part in command:
        alone = _PLACE.fullmatch(part)
        value = arguments.get(alone.group(1)) if alone is not None and alone.group(1) else None
        if alone is not None and alone.group(1) and value is None:
            continue
        if isinstance(value, list):
            yield from map(_text, value)
        else:
            yield _PLACE.sub(lambda found: _filled(found, arguments), part)


def _filled(found: re.Match[str], arguments: Mapping[str, Any]) -> str:
    name = found.group(1)
    return found.group()[0] if name is None else _text(arguments.get(name, ""))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _result(text: str) -> Any:
    """The output for conditions on `result.*`, where it is JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
