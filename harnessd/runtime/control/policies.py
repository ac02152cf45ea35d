"""Policies over the control API: what is in force, the revisions, reload and revert, and whom a change would touch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from harnessd.domain.durable.revision import Revision
from harnessd.domain.ports import Store
from harnessd.runtime.control.answers import Bad, Json, accept, read_object
from harnessd.runtime.control.live import Live
from harnessd.runtime.control.peer import Caller

_SHOWN_MAX = 500


class PolicyHandlers:
    """The routes under /v1/policies and /v1/notify."""

    _store: Store
    _live: Live

    async def policies(self, _: Request) -> Response:
        """What is in force, held or refused."""
        return Json(self._live.policies())

    async def revisions(self, _: Request) -> Response:
        """All revisions, newest first."""
        return Json({"revisions": [_shown(one) for one in await self._store.revisions(_SHOWN_MAX)]})

    async def revision(self, request: Request) -> Response:
        """One revision with the texts it is made of."""
        number = _number(request.path_params["number"])
        found = await self._store.revision(number)
        if found is None:
            raise Bad("not_found", f"There is no revision r{number}.", "See which there are: harnessctl policy history")
        return Json({**_shown(found[0]), "content": found[1]})

    async def reload_policies(self, request: Request) -> Response:
        """Read the files now; `yes` applies what the guard holds, `expect` names the hash that must come out."""
        body = await read_object(request)
        done = await self._live.reload_policies(
            by=_caller(request), note=_text(body, "note"), yes=body.get("yes") is True, expect=_text(body, "expect")
        )
        return Json(accept(done))

    async def revert_policies(self, request: Request) -> Response:
        """A kept revision comes into force and is held."""
        body = await read_object(request)
        number = _number(str(body.get("revision", "")))
        return Json(accept(await self._live.revert_policies(number, by=_caller(request), note=_text(body, "note"))))

    async def test_channel(self, request: Request) -> Response:
        """One message to a channel of notify, and what it answered."""
        return Json(dict(accept(await self._live.test_channel(request.path_params["channel"], by=_caller(request)))))

    async def standing(self, _: Request) -> Response:
        """The running tasks with what they have used: what a new set is held against."""
        return Json({"tasks": list(self._live.standing())})


def _shown(revision: Revision) -> dict[str, Any]:
    return asdict(revision) | {"state": revision.state.value}


def _number(text: str) -> int:
    digits = text.removeprefix("r")
    if not digits.isdigit():
        raise Bad("invalid", f"{text[:40]!r} is no revision.", "Write r47, as harnessctl policy history shows it.")
    return int(digits)


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key, "")
    if not isinstance(value, str):
        raise Bad("invalid", f"{key} must be a text.", "")
    return value[:500]


def _caller(request: Request) -> str:
    caller: Caller = request.scope["harnessd.caller"]
    return caller.name
