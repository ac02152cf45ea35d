"""Handlers of backups, collecting and the daemon's part of `doctor`."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import Response

from harnessd.runtime.control import asked
from harnessd.runtime.control.answers import Bad, Json, accept, read_object
from harnessd.runtime.control.peer import Caller
from harnessd.runtime.control.upkeep.port import Upkeep


class UpkeepHandlers:
    """The routes /v1/backup, /v1/gc and /v1/doctor."""

    upkeep: Upkeep | None = None

    async def back_up(self, request: Request) -> Response:
        """A whole copy in one file. It holds everything that every task was ever told: not for the group."""
        body = await read_object(request)
        path = body.get("file")
        if not isinstance(path, str) or not path.strip() or "\0" in path:
            raise Bad("invalid", "file is not the path of a file.", 'Send {"file": "/var/backups/harnessd.backup"}.')
        caller: Caller = request.scope["harnessd.caller"]
        if caller.uid not in (0, os.geteuid()):
            hint = "It is written with the daemon's rights, and holds what every task was told."
            raise Bad("forbidden", "Only harnessd's own user and root may make a backup.", hint)
        return Json(dict(accept(await self._caretaker().back_up(path, caller.name))))

    async def collect(self, request: Request) -> Response:
        """Let go what policy keeps no longer; `dry_run` says what that would be."""
        body = await read_object(request)
        dry = asked.Query(request.query_params).flag("dry_run") or body.pop("dry_run", False) is True
        return Json(dict(await self._caretaker().collect(only_plan=dry)))

    async def doctor(self, _: Request) -> Response:
        """What the daemon finds when it looks at itself."""
        return Json({"checks": [dict(check) for check in await self._caretaker().examine()]})

    def _caretaker(self) -> Upkeep:
        if self.upkeep is None:
            raise Bad("refused", "This daemon keeps nothing that could be looked after.")
        return self.upkeep
