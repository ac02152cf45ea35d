"""Tools: things an agent can do, and the registry that makes them from what `app` hands in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harnessd.domain.effect import EffectClass
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.messages import ToolSpec
from harnessd.domain.places import Allowed
from harnessd.domain.ports import Confine, Tool, ToolContext, ToolOutcome
from harnessd.domain.workspace import Touches
from harnessd.net.strangers import Strangers
from harnessd.tools.answers import failed
from harnessd.tools.arguments import cleaned, misfits, validate, without_time
from harnessd.tools.command import CommandTool, Declared
from harnessd.tools.files import EditFile, ReadFile, WriteFile
from harnessd.tools.http import HttpRequest, act_of
from harnessd.tools.job_tools import JobOutput, JobStop
from harnessd.tools.jobs import Jobs, partial_output
from harnessd.tools.plan import TaskList
from harnessd.tools.search import ListFiles, SearchFiles
from harnessd.tools.shell import Bash

__all__ = [
    "ACTS",
    "TOUCHES",
    "Checked",
    "Declared",
    "Jobs",
    "builtin_tools",
    "command_tools",
    "misfits",
    "partial_output",
    "validate",
]

# What they may write of a workspace, where that is not anything.
TOUCHES: Mapping[str, Touches] = {
    "write_file": "path",
    "edit_file": "path",
    "job_stop": "nothing",
    "task_list": "nothing",
    "http_request": "nothing",
}
# What of their arguments makes the act, where that is not all of them: how long a call may take is none of it.
ACTS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "bash": without_time,
    "http_request": act_of,
}


class Checked(Tool):
    """A tool whose arguments are cleaned and checked against its schema before it sees them."""

    def __init__(self, tool: Tool) -> None:
        self.spec: ToolSpec = tool.spec
        self.effect: EffectClass = tool.effect
        self._tool = tool

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome | Failure:
        sound = cleaned(dict(arguments))
        if problems := validate(self.spec, sound):
            return failed(
                self.spec.name,
                ErrorClass.INVALID_ARGUMENTS,
                "; ".join(problems),
                "Correct the arguments and call again.",
            )
        return await self._tool.run(sound, context)


def builtin_tools(confine: Confine, jobs: Jobs, private: Sequence[str] = ()) -> Mapping[str, Tool]:
    """The tools of the product, by name.

    `confine` opens a workspace; `jobs` keeps what runs in the background; `private` are the places beside the public
    internet that http_request may reach.
    """
    tools: tuple[Tool, ...] = (
        Bash(jobs),
        ReadFile(confine),
        WriteFile(confine),
        EditFile(confine),
        ListFiles(confine),
        SearchFiles(confine),
        JobOutput(jobs),
        JobStop(jobs),
        TaskList(),
        HttpRequest(Strangers([Allowed.parse(place) for place in private])),
    )
    return {tool.spec.name: Checked(tool) for tool in tools}


def command_tools(declared: Mapping[str, Declared], jobs: Jobs) -> Mapping[str, Tool]:
    """The tools that harness.yaml declares, by name."""
    return {name: Checked(CommandTool(name, one, jobs)) for name, one in declared.items()}
