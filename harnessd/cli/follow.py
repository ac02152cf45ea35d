"""Waiting for tasks: progress while they run, and their own result as exit status at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import DONE, FAILED, INTERRUPTED, TIMED_OUT, UNREACHABLE, WAITS, Client, Problem, task_path
from harnessd.cli.options import (
    connect,
    connection,
    ids,
    json_option,
    quiet_option,
    seconds,
    task_argument,
    tasks_argument,
)

_RECONNECT_S = 30.0
_POLL_S = 0.2
_LOOK_AT = {"waiting": "harnessctl inbox", "stopped": "harnessctl list --state stopped"}


@click.command()
@task_argument
@click.option("--timeout", metavar="TIME", help="Stop looking after so much time; the task goes on.")
@json_option
@connection
@click.pass_context
def attach(ctx: click.Context, task: str, timeout: str | None, as_json: bool) -> int:
    """Follow a running task until it ends or waits for a person.

    Prints its events and shows progress; ends with the task's result as exit status. Ctrl-C detaches, the task goes on.
    """
    deadline = _deadline(timeout)
    client = connect(ctx)
    found = client.get(task_path(task))
    return watch_one(client, found["task"], as_json, events=not as_json, deadline=deadline, since=time.time() - 1)


@click.command()
@tasks_argument
@click.option("--timeout", metavar="TIME", help="Stop waiting after so much time; the tasks go on.")
@quiet_option
@json_option
@connection
@click.pass_context
def wait(ctx: click.Context, tasks: tuple[str, ...], timeout: str | None, quiet: bool, as_json: bool) -> int:
    """Wait until all tasks ended or wait for a person.

    0: all completed; 1: some did not; 6: the rest waits for a person.
    """
    deadline = _deadline(timeout)
    client = connect(ctx)
    found = [client.get(task_path(word))["task"] for word in ids(tasks)]
    if len(found) == 1:
        return watch_one(client, found[0], as_json, quiet=quiet, deadline=deadline)
    return _watch_many(client, list(dict.fromkeys(found)), as_json, quiet=quiet, deadline=deadline)


def watch_one(  # noqa: PLR0913 - how a wait can look
    client: Client,
    task: str,
    as_json: bool,
    *,
    events: bool = False,
    quiet: bool = False,
    deadline: float | None = None,
    since: float = 0.0,
) -> int:
    """Follow one task to its end or to a wait for a person; gives its result as exit status."""
    line = _Line(shown=not quiet and not as_json)
    try:
        for event in _steps(client, [("task", task), ("follow", 1), ("until_end", 1), ("heartbeat", 1)], line):
            if events and event is not None and event.get("at", 0.0) >= since:
                from harnessd.cli.sessions import event_line

                line.clear()
                render.out_json(event, line=True) if as_json else render.out(event_line(event))
            if _over(deadline):
                line.clear()
                return _timed_out([task])
            line.show(client, task)
    except KeyboardInterrupt:
        line.clear()
        return _detached(task)
    line.clear()
    final = client.get(task_path(task))
    if as_json:
        render.out_json(final, line=events)
    elif not quiet:
        render.out_lines(result_lines(final))
    return result_of(final)


def result_of(task: Mapping[str, Any]) -> int:
    """0 completed, 6 waits for a person or is paused, 1 anything else that ended."""
    if task["state"] in ("waiting", "paused"):
        return WAITS
    return DONE if task["state"] == "completed" else FAILED


def result_lines(task: Mapping[str, Any]) -> list[str]:
    """How a task ended, in its own sentence, and what can be done next."""
    reason = f" ({task['reason']})" if task["reason"] and task["reason"] != task["state"] else ""
    took = ""
    if task["ended_at"] and task["started_at"]:
        took = f" after {render.duration(task['ended_at'] - task['started_at'])}"
    facts = f"{task['turns']} turns, {task['tool_calls']} tool calls, {task['cost_usd']:.2f} USD"
    lines = [f"{task['task']}  {render.paint_state(task['state'])}{reason}{took}: {facts}"]
    lines += [render.one_line(text) for text in (task["sentence"], task["why"] if not task["sentence"] else "") if text]
    if task.get("safe"):
        lines.append("degraded: no answer had the wanted form; this is the agent's declared safe one")
    for question in task.get("questions", []):
        lines.append(f"asks     {render.one_line(question['sentence'])}")
        lines += [f"         harnessctl answer {question['id']} {choice}" for choice in question["choices"]]
    if task["state"] != "completed":
        lines += [f"you can  {render.command(step)}" for step in task["next"]]
    return lines


def _steps(client: Client, query: Sequence[tuple[str, object]], line: _Line) -> Iterator[Mapping[str, Any] | None]:
    """Each event, and None for each heartbeat. A daemon that restarts is waited for."""
    after, silent_since = 0, None
    while True:
        try:
            for frame in client.stream([*query, ("after", after)]):
                silent_since = None
                if frame.name == "end":
                    return
                if frame.name == "bye":
                    break
                if frame.name:
                    after = max(after, int(frame.data.get("seq", 0)))
                yield frame.data if frame.name else None
        except Problem as problem:
            if problem.exit_code != UNREACHABLE:
                raise
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > _RECONNECT_S:
                raise
        if silent_since is None or time.monotonic() - silent_since < 1:
            line.say("harnessd is restarting: waiting for it")
        silent_since = silent_since or time.monotonic()
        time.sleep(_POLL_S * 2)
        yield None


def _watch_many(client: Client, tasks: list[str], as_json: bool, *, quiet: bool, deadline: float | None) -> int:
    line = _Line(shown=not quiet and not as_json)
    began, looked, rows = time.monotonic(), 0.0, list[Mapping[str, Any]]()
    try:
        rows = _rows(client, tasks)
        for _ in _steps(client, [("follow", 1), ("heartbeat", 1)], line):
            if _over(deadline):
                line.clear()
                return _timed_out(tasks)
            if time.monotonic() - looked < 1 and looked:
                continue
            looked = time.monotonic()
            rows = _rows(client, tasks)
            if all(_settled(row) for row in rows):
                break
            line.say(_summary(rows))
    except KeyboardInterrupt:
        line.clear()
        return _detached(*tasks)
    line.clear()
    if as_json:
        render.out_json({"tasks": [client.get(task_path(task)) for task in tasks]})
    elif not quiet:
        spent = sum(row["cost_usd"] for row in rows)
        render.out(f"{_summary(rows)}  {render.duration(time.monotonic() - began)}, {spent:.2f} USD")
        states = {row["state"] for row in rows}
        steps = [step for state, step in _LOOK_AT.items() if state in states]
        if steps:
            render.out(" · ".join(steps))
    results = {result_of(row) for row in rows}
    return FAILED if FAILED in results else max(results, default=DONE)


def _rows(client: Client, tasks: Sequence[str]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for start in range(0, len(tasks), 200):
        rows += client.get("/v1/tasks", [("id", task) for task in tasks[start : start + 200]])["tasks"]
    return rows


def _settled(row: Mapping[str, Any]) -> bool:
    return row["state"] in ("completed", "stopped", "waiting", "paused")


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    words = Counter(row["reason"] if row["state"] == "stopped" and row["reason"] else row["state"] for row in rows)
    settled = sum(1 for row in rows if _settled(row))
    return f"{settled}/{len(rows)}  " + " · ".join(f"{word} {number}" for word, number in words.most_common())


class _Line:
    """One line of progress: rewritten on a terminal, else printed when it says something new."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._live = sys.stderr.isatty()
        self._last = ""
        self._looked = 0.0

    def show(self, client: Client, task: str) -> None:
        """Look at the task, at most a few times a second, and say where it is."""
        if not self._shown or time.monotonic() - self._looked < _POLL_S:
            return
        self._looked = time.monotonic()
        try:
            self.say(progress_line(client.get(task_path(task)), timed=self._live))
        except Problem as problem:
            # Between two looks the daemon may be restarting; the stream is what waits for it.
            if problem.exit_code != UNREACHABLE:
                raise

    def say(self, text: str) -> None:
        if not self._shown or (text == self._last and not self._live):
            return
        self._last = text
        if self._live:
            width = render.terminal_width() or render.WIDTH
            render.write(sys.stderr, f"\r\x1b[K{render.cut(render.one_line(text), width - 1)}")
        else:
            render.note(text)

    def clear(self) -> None:
        if self._live and self._last:
            render.write(sys.stderr, "\r\x1b[K")


def progress_line(task: Mapping[str, Any], *, timed: bool) -> str:
    """`8k3v6q running  turn 3  calls 5/90  0.12/5.00 USD  bash: make all`."""
    limits = {row["budget"]: row["limit"] for row in task.get("budgets", [])}

    def of(budget: str, used: float) -> str:
        limit = limits.get(budget)
        return render.amount(budget, used) + (f"/{render.amount(budget, limit)}" if limit is not None else "")

    parts = [
        f"{task['task']} {task['state']}",
        f"turn {of('turns', task['turns'])}",
        f"calls {of('tool_calls', task['tool_calls'])}",
        f"{of('cost_usd', task['cost_usd'])} USD",
    ]
    if stands := _stands(task):
        parts.append(stands)
    since = (task.get("progress") or {}).get("since")
    if timed and since:
        parts.append(f"for {render.duration(time.time() - since)}")
    return "  ".join(parts)


def _stands(task: Mapping[str, Any]) -> str:
    """What the task does or waits for; nothing once it has ended, though its row still tells what it did last."""
    if task["ended_at"]:
        return ""
    if task["state"] == "queued" and task.get("waits_behind"):
        return f"behind {task['waits_behind']}"
    words = str(
        (task["why"] if task["state"] in ("parked", "waiting", "paused") else render.doing(task["doing"])) or ""
    )
    until = f" until {render.clock_time(task['until'])}" if task["state"] == "parked" and task["until"] else ""
    return f"{words}{until}".strip()


def _deadline(timeout: str | None) -> float | None:
    return time.monotonic() + seconds("--timeout", timeout) if timeout else None


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _timed_out(tasks: Sequence[str]) -> int:
    what = f"{tasks[0]} goes on" if len(tasks) == 1 else f"{len(tasks)} tasks go on"
    render.note(f"Time is up; {what}. Wait again: harnessctl wait {' '.join(tasks[:3])}{' ...' if tasks[3:] else ''}")
    return TIMED_OUT


def _detached(*tasks: str) -> int:
    if len(tasks) == 1:
        render.note(f"Detached; {tasks[0]} goes on.")
        render.note(f"Attach again: harnessctl attach {tasks[0]} · stop it: harnessctl cancel {tasks[0]}")
    else:
        render.note(f"Detached; {len(tasks)} tasks go on.")
        render.note("Wait again with the same command · see: harnessctl list")
    return INTERRUPTED
