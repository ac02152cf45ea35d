"""Handlers of a drain."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import Response

from harnessd.runtime.control.answers import Bad, Json, accept, read_object
from harnessd.runtime.control.draining.port import Draining
from harnessd.runtime.control.peer import Caller

_LONGEST_S = 7 * 86400.0


class DrainHandlers:
    """The routes of /v1/drain."""

    draining: Draining | None = None

    async def drain(self, request: Request) -> Response:
        """Begin a drain, or take it back; answers at once."""
        body = await read_object(request)
        drains, caller = self._drains(), request.scope["harnessd.caller"]
        node = body.get("node", "")
        if not isinstance(node, str):
            raise Bad("invalid", "node is not a name.", 'Send {"node": "a1"}, or leave it out.')
        by = caller.name if isinstance(caller, Caller) else ""
        if body.get("cancel") is True:
            return Json(dict(accept(await drains.cancel(node, by))))
        return Json(dict(accept(await drains.begin(node, _timeout(body.get("timeout")), by))))

    async def drain_state(self, _: Request) -> Response:
        """How far it is."""
        return Json(dict(self._drains().state()))

    def _drains(self) -> Draining:
        if self.draining is None:
            raise Bad("refused", "This daemon cannot be drained.")
        return self.draining


def _timeout(value: object) -> float | None:
    if value is None:
        return None
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or not 0 <= value <= _LONGEST_S:  # type: ignore[arg-type,operator]
        raise Bad("invalid", "timeout is not a number of seconds up to a week.", 'Send {"timeout": 900}.')
    return float(value)  # type: ignore[arg-type]
