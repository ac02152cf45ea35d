"""Toolbox: performs one tool call: its folder, its environment built from nothing, its crash points."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harnessd.domain.effect import canonical_json
from harnessd.domain.failure import ErrorClass, Failure
from harnessd.domain.ports import JobKeeper, Tool, ToolContext, ToolOutcome
from harnessd.domain.task import Task
from harnessd.engine.protocol import CallTool
from harnessd.runtime.crashpoints import Crashpoint, nowhere
from harnessd.runtime.observing.calls import UNSEEN, Calls
from harnessd.runtime.traffic.caller import NOBODY, Caller
from harnessd.runtime.traffic.passage import Traffic

PartialOutput = Callable[[ToolContext], str]


class Toolbox:
    """The tools of the daemon, by name, and what a call of one needs."""

    def __init__(  # noqa: PLR0913 - each is a different thing that a call needs
        self,
        tools: Mapping[str, Tool],
        *,
        partial_output: PartialOutput,
        environment: Callable[[str, Path], Mapping[str, str]],
        artefacts: Path,
        jobs: JobKeeper,
        crashpoint: Crashpoint = nowhere,
        traffic: Traffic | None = None,
        redact: Callable[[str], str] = str,
        protected: tuple[str, ...] = (),
        calls: Calls = UNSEEN,
    ) -> None:
        """`environment` gives an agent's child environment; `artefacts` is the folder of all tasks' whole outputs.

        `redact` takes the daemon's own secrets out of what tools say, before the journal or the model sees it.
        `protected` are paths of the daemon's configuration and state: a call that names one is refused. A guard rail
        against mistakes, not a boundary: file permissions are (docs/deployment.md).
        """
        self.tools = dict(tools)
        self.jobs = jobs
        self._partial_output = partial_output
        self._environment = environment
        self._artefacts = artefacts
        self._crashpoint = crashpoint
        self._traffic = traffic
        self.redact = redact
        self._protected = protected
        self._calls = calls
        self.make_sure: Callable[[Task], Awaitable[None]] = _sure  # raises LeaseLost: the task is another's by now

    async def perform(
        self, task: Task, command: CallTool, caller: Caller = NOBODY, begun: Callable[[], None] = lambda: None
    ) -> ToolOutcome | Failure:
        """One call, once limits and breaker let it through (R3.5, R3.15).

        What the tool cannot do is a Failure; an exception is a fault of ours. `begun` is called once nothing holds the
        call back any more.
        """
        name, traffic = f"tool/{command.tool}", self._traffic
        if traffic is None or not traffic.concerns(name):
            begun()
            return await self._call(task, command, caller)
        passed = await traffic.enter(name, caller, source="tool")
        if isinstance(passed, Failure):
            return passed
        outcome: ToolOutcome | Failure | None = None
        try:
            begun()
            outcome = await self._call(task, command, caller)
        finally:
            if outcome is None:
                await traffic.cancelled(passed)
        await traffic.left(passed, outcome if isinstance(outcome, Failure) else None)
        return outcome

    async def _call(self, task: Task, command: CallTool, caller: Caller) -> ToolOutcome | Failure:
        with self._calls.tool(command) as call:
            return call.ended(await self._performed(task, command, caller))

    async def _performed(self, task: Task, command: CallTool, caller: Caller) -> ToolOutcome | Failure:
        tool = self.tools[command.tool]
        words = canonical_json(dict(command.arguments))
        if any(path in words for path in self._protected):
            return Failure(
                source="tool",
                dependency=f"tool/{command.tool}",
                message="it names harnessd's own configuration or state, which is not for agents",
                hint=ErrorClass.PERMISSION_DENIED,
                advice="Do the task without it; limits and permissions are changed by people only.",
            )
        self._crashpoint("J9")
        await self.make_sure(task)
        chaos = self._traffic.chaos if self._traffic is not None else None

        async def run() -> ToolOutcome | Failure:
            return await tool.run(command.arguments, self.context(task, command))

        outcome = await (run() if chaos is None else chaos.tool(f"tool/{command.tool}", caller, run))
        self._crashpoint("J12")
        return self._redacted(outcome)

    def _redacted(self, outcome: ToolOutcome | Failure) -> ToolOutcome | Failure:
        if isinstance(outcome, ToolOutcome):
            return replace(outcome, text=self.redact(outcome.text))
        return replace(
            outcome,
            message=self.redact(outcome.message),
            output=self.redact(outcome.output),
            advice=self.redact(outcome.advice),
        )

    def context(self, task: Task, command: CallTool) -> ToolContext:
        """Where a call runs."""
        artefacts = self._artefacts / task.id
        artefacts.mkdir(mode=0o700, parents=True, exist_ok=True)
        return ToolContext(
            task=task.id,
            # Effect ids are ours (e7) and name files; a model's call ids are its own invention and must not.
            call_id=command.call,
            workspace=task.draft.workspace,
            artefacts=os.fspath(artefacts),
            limits=command.limits,
            environment=self._environment(command.agent or task.draft.agent, artefacts),
            key=command.key,
            notes=command.notes,
        )

    def keep(self, task: Task, texts: Sequence[tuple[str, str]]) -> None:
        """Lay whole texts that a view shows cut among the task's artefacts, where `job_output` finds them by name.

        The session has them all the same: a full disk costs the model a look, and nothing else.
        """
        folder = self._artefacts / task.id
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in texts:
                path = folder / f"{name}.out"
                if not path.exists():
                    path.write_bytes(text.encode("utf-8", "replace"))

    def partial(self, task: Task, command: CallTool) -> str:
        """What a call that was cut off had written until then."""
        return self.redact(self._partial_output(self.context(task, command)))


async def _sure(task: Task) -> None:
    """Where nobody leases tasks."""
    del task
