"""Handlers of breakers, models and tools."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from harnessd.runtime.control.answers import Bad, Json, accept, read_object
from harnessd.runtime.control.dependencies.port import Dependencies
from harnessd.runtime.control.peer import Caller

_LONGEST_TRIP_S = 30 * 86400.0


class DependencyHandlers:
    """The routes under /v1/breakers, /v1/models and /v1/tools."""

    _dependencies: Dependencies | None

    async def breakers(self, _: Request) -> Response:
        """All breakers."""
        return Json({"breakers": list(self._known().breakers())})

    async def change_breaker(self, request: Request) -> Response:
        """Trip or reset a breaker by hand."""
        body, name = await read_object(request), request.path_params["name"]
        by, note = _by(request), body.get("note", "")
        if not isinstance(note, str):
            raise Bad("invalid", "note is not a text.", 'Send {"note": "..."}.')
        match body.get("do"):
            case "trip":
                done = await self._known().trip(name, _seconds(body.get("for", 3600)), by, note[:500])
            case "reset":
                done = await self._known().reset(name, by, note[:500])
            case other:
                raise Bad("invalid", f"A breaker cannot {other!r}.", "There are: trip, reset.")
        return Json(dict(accept(done)))

    async def models(self, _: Request) -> Response:
        """All models."""
        return Json({"models": list(self._known().models())})

    async def check_model(self, request: Request) -> Response:
        """One cheap real call of a model."""
        return Json(dict(accept(await self._known().check_model(request.path_params["alias"]))))

    async def tools(self, _: Request) -> Response:
        """All tools."""
        return Json({"tools": list(self._known().tools())})

    async def check_tool(self, request: Request) -> Response:
        """Whether a tool can be called now."""
        return Json(dict(accept(await self._known().check_tool(request.path_params["tool"]))))

    def _known(self) -> Dependencies:
        if self._dependencies is None:
            raise Bad("refused", "This daemon knows of no dependencies.")
        return self._dependencies


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_TRIP_S:
        raise Bad("invalid", f"for: {str(value)[:40]} is not a time in seconds up to 30 days.", 'Send {"for": 7200}.')
    return float(value)


def _by(request: Request) -> str:
    caller: Caller = request.scope["harnessd.caller"]
    return caller.name
