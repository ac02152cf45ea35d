"""Status: where the daemon and its queue stand, and what can be done next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, Client
from harnessd.cli.looking.task import show_task
from harnessd.cli.options import connect, connection, json_option, strict_option

_STATES = ("running", "queued", "parked", "waiting", "paused", "rolling_back")
_STATE_WORDS = {"waiting": "waiting for a person", "rolling_back": "rolling back"}


@click.command()
@click.argument("task", required=False)
@click.option("--ready", is_flag=True, help="For probes: exit status 0 if the daemon takes work, else 1.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds until Ctrl-C.")
@strict_option
@json_option
@connection
@click.pass_context
def status(ctx: click.Context, task: str | None, ready: bool, watch: bool, strict: bool, as_json: bool) -> int:
    """How the daemon, or one task, stands.

    Without TASK: the daemon, the policies in force, the queue, what runs, warnings, next commands. With TASK: its
    state or end, budgets used, what it waits for, and what can be done next.
    """
    client = connect(ctx)
    if task is None:
        return _repeated(watch, lambda: _daemon(client, ready, strict, as_json))
    return _repeated(watch, lambda: show_task(client, task, as_json))


def _repeated(watch: bool, look: Any) -> int:
    while True:
        if watch:
            render.clear_screen()
        exit_code: int = look()
        if not watch:
            return exit_code
        time.sleep(2)


def _daemon(client: Client, ready: bool, strict: bool, as_json: bool) -> int:
    found = client.get("/v1/status")
    warnings = _warnings(found)
    if as_json:
        render.out_json(found)
    elif ready:
        render.out("ready" if found.get("ready") else "not ready")
    else:
        _show_daemon(found, warnings)
    unready = ready and not found.get("ready")
    return FAILED if unready or (strict and warnings) else 0


def _warnings(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one if isinstance(one, Mapping) else {"sentence": one} for one in found.get("warnings") or []]


def _show_daemon(found: Mapping[str, Any], warnings: Sequence[Mapping[str, Any]]) -> None:
    now = found["now"]
    mood = "draining" if found.get("draining") else "ready" if found.get("ready") else "not ready"
    node = f" on {found['node']}" if found.get("node") else ""
    up = f", up {render.duration(now - found['started_at'])}" if found.get("started_at") else ""
    head = render.one_line(f"harnessd {found.get('version', '?')}{node}, {mood}{up}")
    render.out(f"{render.pad(head, 60)}  {render.full_time(now)}")
    _show_policies_in_force(found.get("policies") or {}, now)
    tasks = found["tasks"]
    workers = f" of {found['workers']}" if found.get("workers") else ""
    parts = [f"{_STATE_WORDS.get(name, name)} {tasks.get(name, 0)}" for name in _STATES if tasks.get(name)]
    parts = [f"{part}{workers}" if part.startswith("running") else part for part in parts]
    render.out(f"tasks      {'   '.join(parts) or 'none under way'}")
    ends = sorted(found["last_day"].items(), key=lambda pair: -pair[1])
    render.out(f"           last 24h: {', '.join(f'{word} {number}' for word, number in ends) or 'no ends'}")
    if disk := found.get("disk"):
        kept = disk.get("checkpoint_bytes", 0)
        most = f" of {render.size(disk['checkpoint_bytes_max'])}" if disk.get("checkpoint_bytes_max") else ""
        checkpoints = f"   checkpoints {render.size(kept)}{most}" if kept else ""
        render.out(f"disk       {disk['free']:.0%} free   store {render.size(disk['store_bytes'])}{checkpoints}")
    _show_rows(
        "BREAKER STATE SINCE WHY NEXT", found.get("breakers") or [], ("name", "state", "since", "why", "next"), now
    )
    if warnings:
        _show_rows("WARNING SINCE WHAT", warnings, ("what", "since", "sentence"), now)
    _show_running(found["running_tasks"], tasks.get("running", 0), now)
    _show_next(found)


def _show_policies_in_force(policies: Mapping[str, Any], now: float) -> None:
    note = f'; note "{policies["note"]}"' if policies.get("note") else ""
    source = f" ({policies['source']}{note})" if policies.get("source") else ""
    since = f" since {render.clock_time(policies['since'], now)}" if policies.get("since") else ""
    hold = ", HELD by a revert" if policies.get("hold") else ""
    render.out(render.one_line(f"policies   r{policies.get('revision', '?')} in force{since}{source}{hold}"))
    indent = " " * 11
    if refused := policies.get("refused"):
        many = f"{refused['count']} problem{'s' if refused['count'] != 1 else ''}"
        at = render.clock_time(refused["at"], now)
        first = render.one_line(refused["problems"][0])
        render.out(f"         ! r{refused['revision']} refused at {at}: {many}, first {first}")
        render.out(f"{indent}harnessctl policy check")
    if held := policies.get("held"):
        name = f"r{held['revision']} waits" if held.get("revision") else "the files wait"
        render.out(render.one_line(f"         ! {name}: {held['why']}"))
        render.out(
            f"{indent}harnessctl policy diff files · harnessctl policy reload{'' if policies.get('hold') else ' --yes'}"
        )
    for key in policies.get("restart_needed") or []:
        render.out(render.one_line(f"         ! {key} changed in harness.yaml: it needs a restart"))


def _show_rows(head: str, rows: Sequence[Mapping[str, Any]], keys: Sequence[str], now: float) -> None:
    if not rows:
        return
    render.out()
    cells = [
        [render.clock_time(row.get(key), now) if key == "since" else row.get(key) or "-" for key in keys]
        for row in rows
    ]
    render.out_lines(render.table(cells, head.split()))


def _show_running(running: Sequence[Mapping[str, Any]], total: int, now: float) -> None:
    if not running:
        return
    rows = []
    for task in running:
        progress = task.get("progress") or {}
        rows.append(
            [
                task["task"],
                task["agent"],
                render.duration(now - progress["since"]) if progress.get("since") else "-",
                _life(progress),
                str(task["tool_calls"]),
                f"{task['cost_usd']:.2f}",
                _nearest_limit(task.get("budgets") or ()),
                _doing(task, progress),
            ]
        )
    render.out()
    head = ["RUNNING", "AGENT", "FOR", "LIFE", "CALLS", "USD", "NEXT LIMIT", "DOING"]
    render.out_lines(render.table(rows, head, (2, 3, 4, 5)))
    if total > len(running):
        render.out(f"         {total - len(running)} more: harnessctl list --state running")


def _doing(task: Mapping[str, Any], progress: Mapping[str, Any]) -> str:
    words = render.doing(task["doing"]) or str(task["title"])
    return f"in line: {words}" if progress.get("in_line") else words


def _life(progress: Mapping[str, Any]) -> str:
    """Since the last sign of life; none is owed while we wait by our own will."""
    ours = progress.get("phase") == "backoff" or progress.get("in_line")
    return "-" if ours else render.duration(progress.get("life_s"))


def _nearest_limit(budgets: Sequence[Mapping[str, Any]]) -> str:
    """The budget of which most is used: `tool_calls 71 of 90`."""
    parts = [(row["used"] / row["limit"], row) for row in budgets if row["used"] is not None and row["limit"]]
    if not parts:
        return "-"
    _, row = max(parts, key=lambda part: part[0])
    name = row["budget"]
    return f"{name} {render.amount(name, row['used'])} of {render.amount(name, row['limit'])}"


def _show_next(found: Mapping[str, Any]) -> None:
    steps = []
    if found["inbox"]:
        steps.append(f"harnessctl inbox ({found['inbox']} waiting)")
    if found["last_day"].keys() - {"completed", "aborted"}:
        steps.append("harnessctl list --state stopped --since 24h")
    if not any(found["tasks"].values()):
        steps.append('harnessctl submit "what shall be done"')
    if steps:
        render.out()
        render.out(f"next: {' · '.join(steps)}")
