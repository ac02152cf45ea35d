"""Drain: a daemon takes no new work and becomes empty; what still holds it up is shown until it is, or is cut."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import DONE, FAILED, Client
from harnessd.cli.options import connect, connection, json_option, seconds

_LOOK_S = 0.3
_FIRST_S = 2.0  # what still runs after this is named
_UNDO = "harnessctl drain --cancel"


@click.command()
@click.option("--timeout", metavar="D", help="How long tasks and jobs may take; `drain` of harness.yaml if not said.")
@click.option("--node", default="", metavar="N", help="The daemon of this name; else the one that answers.")
@click.option("--cancel", is_flag=True, help="Take work again.")
@json_option
@connection
@click.pass_context
def drain(ctx: click.Context, timeout: str | None, node: str, cancel: bool, as_json: bool) -> int:
    """Take no new work and become empty; wait until it is so.

    Each task stops at its step border and is handed back; background jobs are waited for. At the timeout the rest is
    cut as after a crash, and no attempt is charged. Ends with 0: nothing runs any more; with 1: something was cut, and
    is listed. The daemon stays, and takes no work until it is started anew, or until --cancel.
    """
    limit_s = None if timeout is None else seconds("--timeout", timeout)
    client = connect(ctx)
    named = {"node": node} if node else {}
    if cancel:
        back = client.post("/v1/drain", {**named, "cancel": True})
        if as_json:
            render.out_json(back)
        else:
            render.out(f"{_name(back)} takes work again.")
        return DONE
    state: Mapping[str, Any] = client.post("/v1/drain", {**named, **({} if limit_s is None else {"timeout": limit_s})})
    if "over" not in state:  # another daemon of the same store, which answers nobody here
        words = (
            f"{_name(state)} takes no new tasks; {_many(state['tasks'], 'task')} at work there end in their own time."
        )
        render.out_json(state) if as_json else render.out(words)
        return DONE
    state = _json(client, state) if as_json else _Watch(client, state).until_over()
    return FAILED if state.get("cut") or state.get("cut_jobs") else DONE


def _json(client: Client, state: Mapping[str, Any]) -> Mapping[str, Any]:
    while not state["over"]:
        time.sleep(_LOOK_S)
        state = client.get("/v1/drain")
        if not state["draining"]:
            break
    render.out_json(state)
    return state


class _Watch:
    """A drain as a person sees it: what still runs, and each thing that ended."""

    def __init__(self, client: Client, state: Mapping[str, Any]) -> None:
        self._client, self._state = client, state
        self._left: dict[tuple[str, str], str] = {}
        self._told = False

    def until_over(self) -> Mapping[str, Any]:
        """Wait; gives the last state."""
        begun, state = time.monotonic(), self._state
        render.out(f"{_name(state)} takes no new work; {_many(state['began_with'], 'task')} at work.")
        self._left = _left(state)
        while not state["over"]:
            time.sleep(_LOOK_S)
            state = self._client.get("/v1/drain")
            if not state["draining"]:
                render.note(f"The drain was taken back: {_name(state)} takes work again.")
                return state
            if self._told:
                self._tell_ended(_left(state), state)
            elif time.monotonic() - begun > _FIRST_S and not state["over"]:
                self._told = True
                self._left = _left(state)
                render.out_lines(self._still(state))
        _tell_end(state)
        return state

    def _still(self, state: Mapping[str, Any]) -> list[str]:
        until = render.clock_time(state["until"])
        rows = [("still" if not number else "", *row) for number, row in enumerate(_rows(state))]
        return [*render.table(rows), f"       What runs at {until} is cut. Undo: {_UNDO}"]

    def _tell_ended(self, left: dict[tuple[str, str], str], state: Mapping[str, Any]) -> None:
        cut = {*state["cut"], *(one["task"] for one in state["cut_jobs"])}
        for (task, job), what in self._left.items():
            if (task, job) not in left and task not in cut:
                render.out(f"{time.strftime('%H:%M:%S')}  {task} {what}")
        self._left = left


def _left(state: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    tasks = {(one["task"], ""): "handed back" for one in state["running"]}
    return tasks | {(one["task"], one["job"]): f"{one['job']} ended" for one in state["jobs"]}


def _rows(state: Mapping[str, Any]) -> list[tuple[str, str]]:
    now = time.time()
    tasks = [
        (one["task"], f"{render.doing(one['doing']) or 'is taken up'}, {render.duration(one['for_s'])}")
        for one in state["running"]
    ]
    jobs = []
    for one in state["jobs"]:
        ends = f", life ends in {render.duration(one['ends_at'] - now)}" if one.get("ends_at") else ""
        jobs.append((one["task"], f"{one['job']} in background, {render.duration(now - one['since'])}{ends}"))
    return tasks + jobs


def _tell_end(state: Mapping[str, Any]) -> None:
    cut, jobs = state["cut"], state["cut_jobs"]
    took = render.duration(state["took_s"])
    if not cut and not jobs:
        render.out(f"{_name(state)} is empty after {took}; nothing was cut, no attempt charged. Undo: {_UNDO}")
        return
    rows = [("cut", task, "in the middle of a step") for task in cut]
    rows += [("cut", one["task"], f"{one['job']} in background") for one in jobs]
    render.out_lines(render.table(rows))
    what = ", ".join(_many(len(of), word) for of, word in ((cut, "task"), (jobs, "job")) if of)
    render.out(f"{_name(state)} is empty after {took}; {what} cut, no attempt charged. Undo: {_UNDO}")


def _name(state: Mapping[str, Any]) -> str:
    return render.one_line(state.get("node") or "harnessd")


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
