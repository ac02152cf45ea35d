"""What the control API needs of the running daemon besides the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from harnessd.domain.failure import HarnessError
from harnessd.domain.ports import History, Refused
from harnessd.domain.task import TaskDraft

Told = Literal["cancel", "pause", "pause_now", "unpause", "message", "policies"]


class Live(Protocol):
    """The daemon as the control API sees it. Nothing here waits."""

    def wake(self) -> None:
        """Something became claimable."""

    def tell(self, task: str, what: Told, by: str = "") -> None:
        """A running task shall look at its row, or act at once; `by` is who wants it. Others are ignored."""

    def lost(self, fault: HarnessError) -> None:
        """The store is lost: the daemon stops, whether or not a task runs that would notice."""

    def progress(self, task: str) -> Mapping[str, Any] | None:
        """Of a task that runs here: `doing`, `phase`, `since`, `life_s` (seconds since its last sign of life).

        And `until` (seconds since the Unix epoch), where it waits for a moment of its own choice (phase `backoff`);
        `in_line`: a limit holds its model call back.
        """

    def status(self) -> Mapping[str, Any]:
        """Facts of the daemon.

        `version`, `pid`, `node`, `started_at`, `ready`, `workers`, `running`, `draining`, `warnings`, and `policies`
        with `revision`, `since`, `source`.
        """

    def check_draft(self, body: Mapping[str, Any]) -> TaskDraft | Refused:
        """The draft behind the body of a submit, or which name, folder or limit of it is wrong."""

    def effective(self, draft: TaskDraft, task: str | None) -> Mapping[str, Any]:
        """What is in force for a task (None: not submitted yet).

        `limits`: budget -> limit or None, in base units; `model`: alias; `policies`: kind -> `{name, why}`;
        `revision`.
        """

    def context(self, history: History) -> Mapping[str, Any] | Refused:
        """What fills a task's window: the document of `harnessctl context`; a refusal where nothing can be said."""

    def policies(self) -> Mapping[str, Any]:
        """What is in force: `revision`, `hash`, `since`, `source`, `hold`; `held` and `refused` where there is such.

        And what it comes from: `config`, `folder` (absolute paths), `guard`, `agents` (name -> kind -> policy).
        """

    async def reload_policies(self, *, by: str, note: str, yes: bool, expect: str) -> Mapping[str, Any] | Refused:
        """Read the files now: `{result, revision, sentence, problems, stops}`."""

    async def revert_policies(self, number: int, *, by: str, note: str) -> Mapping[str, Any] | Refused:
        """Put a kept revision in force and hold it."""

    async def test_channel(self, name: str, *, by: str) -> Mapping[str, Any] | Refused:
        """Send one message to a channel of notify: `{channel, delivered, said}`."""

    def standing(self) -> Sequence[Mapping[str, Any]]:
        """The running tasks: id, draft, what they have used, warnings they were given, `wishes` of their agents."""
