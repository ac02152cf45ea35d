"""Status and list: where the daemon and its tasks stand, and what can be done next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, Client, task_path
from harnessd.cli.options import connect, connection, json_option, label_option, moment, quiet_option, strict_option

_STATES = ("running", "queued", "parked", "waiting", "paused", "rolling_back")
# What the commands of `you can` do, in the words of their help.
_STEP_WORDS = {
    "attach": "follow it",
    "send": "a word at the next turn",
    "pause": "hold it at its next step border",
    "cancel": "stop it; everything is kept",
    "resume": "go on from where it stands",
    "retry": "again from before the failed turn, in a new branch",
    "show": "its last word in full",
    "logs": "what happened, event by event",
    "why": "what was decided, and by which line",
}
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
    return _repeated(watch, lambda: _task(client, task, as_json))


@click.command(name="list")
@click.option("--state", "states", multiple=True, help="Only in this state; several with commas.")
@click.option("--reason", "reasons", multiple=True, help="Only ended for this reason; several with commas.")
@click.option("--class", "error_class", help="Only with this error class.")
@click.option("--agent", help="Only of this agent.")
@label_option
@click.option("--policy", "policies", multiple=True, metavar="KIND=NAME", help="Only under this policy.")
@click.option("--since", metavar="TIME", help='Only since then: 24h (ago) or "2026-11-30 03:12".')
@click.option("--until", metavar="TIME", help="Only until then.")
@click.option("--sort", type=click.Choice(["cost", "age", "life"]), help="Dearest, oldest or longest running first.")
@click.option("--limit", type=click.IntRange(1, 10000), default=1000, show_default=True, help="At most so many.")
@click.option("--stats", is_flag=True, help="Count ends, median cost and turns instead of listing.")
@quiet_option
@json_option
@connection
@click.pass_context
def list_(ctx: click.Context, /, quiet: bool, as_json: bool, stats: bool, **given: Any) -> int:
    """Tasks, newest first."""
    query: list[tuple[str, object]] = [("limit", given["limit"])]
    query += [("state", word) for word in given["states"]]
    query += [("reason", word) for word in given["reasons"]]
    query += [("label", pair) for pair in given["labels"]]
    query += [("policy", pair) for pair in given["policies"]]
    query += [(name, moment(f"--{name}", given[name], ago=True)) for name in ("since", "until") if given[name]]
    query += [(name, value) for name, value in (("class", given["error_class"]), ("agent", given["agent"])) if value]
    tasks = connect(ctx).get("/v1/tasks", query)["tasks"]
    if given["sort"]:
        tasks.sort(key=_sorting(given["sort"]))
    if stats:
        _show_stats(tasks, as_json)
    elif quiet:
        render.out_lines(task["task"] for task in tasks)
    elif as_json:
        render.out_json({"tasks": tasks})
    else:
        _show_list(tasks)
    return 0


def _sorting(order: str) -> Any:
    now = time.time()
    return {
        "cost": lambda task: -task["cost_usd"],
        "age": lambda task: task["submitted_at"],
        "life": lambda task: -((task["ended_at"] or now) - task["started_at"]) if task["started_at"] else 0.0,
    }[order]


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
                render.duration(progress.get("life_s")),
                str(task["tool_calls"]),
                f"{task['cost_usd']:.2f}",
                _nearest_limit(task.get("budgets") or ()),
                task["doing"] or task["title"],
            ]
        )
    render.out()
    head = ["RUNNING", "AGENT", "FOR", "LIFE", "CALLS", "USD", "NEXT LIMIT", "DOING"]
    render.out_lines(render.table(rows, head, (2, 3, 4, 5)))
    if total > len(running):
        render.out(f"         {total - len(running)} more: harnessctl list --state running")


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


def _task(client: Client, word: str, as_json: bool) -> int:
    task = client.get(task_path(word))
    if as_json:
        render.out_json(task)
        return 0
    labels = render.labels(task["labels"])
    priority = f"priority {task['priority']}" if task["priority"] else ""
    head = [task["task"], task["agent"], f'"{render.one_line(task["title"])}"', labels, priority]
    render.out("  ".join(render.one_line(word) for word in head if word))
    rows = [*_where(task), *_why(task), *_place(task)]
    render.out_lines(f"{render.pad(name, 8)} {render.one_line(text)}".rstrip() for name, text in rows)
    _show_budgets(task)
    _show_policies(task)
    _show_steps(task)
    return 0


def _where(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    state, submitted = task["state"], render.clock_time(task["submitted_at"])
    if task["ended_at"]:
        life = render.duration(task["ended_at"] - (task["started_at"] or task["submitted_at"]))
        reason = task["reason"] or state
        word = f"{render.clock_time(task['ended_at'])} {reason}"
        # The sentence of a completed task is the agent's last word; of a stopped one, what stopped it.
        name = "said" if state == "completed" else "because"
        return [("ended", f"{word}, after {life}, {task['cost_usd']:.2f} USD"), (name, task["sentence"])]
    asked = f" since {render.clock_time(task['questions'][0]['asked_at'])}" if task["questions"] else ""
    words = {
        "queued": f"queued since {submitted}",
        "parked": f"parked until {render.clock_time(task['until'])}, holds no worker",
        "waiting": f"waits for a person{asked}, holds no worker"
        + (f"; stops by itself {render.clock_time(task['until'])}" if task["until"] else ""),
        "paused": "paused, holds no worker, until a person resumes it",
    }
    since = f" since {render.clock_time(task['started_at'])}" if task["started_at"] else ""
    rows = [("state", words.get(state, f"{state}{since}, submitted {submitted}"))]
    if task["pause_asked"] or task["cancel_asked"]:
        rows.append(("asked", "to stop" if task["cancel_asked"] else "to pause at its step border"))
    if task.get("not_before") and state == "queued":
        rows.append(("starts", f"not before {render.clock_time(task['not_before'])}"))
    if task.get("waits_behind"):
        rows.append(("behind", f"{task['waits_behind']}: it holds the workspace, or is to end first"))
    progress = task.get("progress") or {}
    if task["doing"] and state == "running":
        since = f", for {render.duration(time.time() - progress['since'])}" if progress.get("since") else ""
        life = f", last sign of life {render.duration(progress['life_s'])} ago" if "life_s" in progress else ""
        rows.append(("doing", f"{task['doing']}{since}{life}"))
    return rows


def _why(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("why", task["why"])] if task["why"] and not task["questions"] else []
    for question in task["questions"]:
        rows.append(("asks", f"{question['id']} {question['kind']}: {question['sentence']}"))
        data: Mapping[str, Any] = question.get("data") or {}
        if data.get("rule") and data.get("file"):
            rows.append(("rule", f"{data['rule']}   {render.place(data)}"))
    failure = task.get("last_failure")
    # What was dealt with is for `why`; here stands what the task is up against now.
    over = task["state"] in ("running", "queued") and not task["tries"]
    if not failure or over or task["state"] == "completed":
        return rows
    facts = [failure.get("dependency"), f"HTTP {failure['status']}" if failure.get("status") else None]
    facts += [failure.get("class"), f"request {failure['request']}" if failure.get("request") else None]
    words = f' "{failure["provider_message"]}"' if failure.get("provider_message") else ""
    rows.append(("failed", " ".join(str(fact) for fact in facts if fact) + words))
    rule = failure.get("rule")
    if rule:
        rows.append(("rule", f"{rule['kind']}/{rule['name']} {rule['rule']}   {render.place(rule)}"))
    return rows


def _place(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not task["node"]:
        return []
    recovered = f", {task['recoveries']} recoveries" if task["recoveries"] else ""
    return [("at", f"{task['node']}{recovered}   harnessctl tree {task['task']}"), ("in", task["workspace"])]


def _show_budgets(task: Mapping[str, Any]) -> None:
    rows = []
    for row in task["budgets"]:
        name = row["budget"]
        warned = " ".join(row["warned"]) + (f" + {row['reserved']:.2f} reserved" if row.get("reserved") else "")
        rows.append([name, *(render.amount(name, row[key]) for key in ("used", "limit", "left")), warned])
    if rows:
        render.out()
        render.out_lines(render.table(rows, ["BUDGET", "USED", "LIMIT", "LEFT", "WARNED"], (1, 2, 3)))


def _show_policies(task: Mapping[str, Any]) -> None:
    chosen = [
        f"{kind}/{row['name']}" + (f" ({row['why']})" if row.get("why") else "")
        for kind, row in task["policies"].items()
        if row.get("name") not in (None, "default")
    ]
    pinned = ", pinned" if task["pinned"] else ""
    words = f"{', '.join(chosen)}, the rest default" if chosen else "all default"
    render.out()
    render.out(render.one_line(f"policies r{task['revision']}{pinned}   {words}"))


def _show_steps(task: Mapping[str, Any]) -> None:
    steps = [(render.command(step), _STEP_WORDS.get(step[1] if step[1:] else "", "")) for step in task["next"]]
    for question in task["questions"]:
        answers = [(f"harnessctl answer {question['id']} {choice}", "") for choice in question["choices"]]
        steps = [*answers, *steps]
    if task["state"] in ("running", "queued", "parked", "paused"):
        steps.append((f"harnessctl set {task['task']} --budget tool_calls=+60", "raise a limit"))
    rows = [["you can" if number == 0 else "", *step] for number, step in enumerate(steps)]
    render.out_lines(render.table(rows))


def _show_list(tasks: Sequence[Mapping[str, Any]]) -> None:
    if not tasks:
        render.note("No task fits.")
        return
    now = time.time()
    rows = []
    for task in tasks:
        state = task["reason"] if task["state"] == "stopped" and task["reason"] else task["state"]
        life = (task["ended_at"] or now) - task["started_at"] if task["started_at"] else None
        cells = [task["task"], state, task["agent"], render.clock_time(task["submitted_at"], now)]
        cells += [render.duration(life), task["turns"], task["tool_calls"], f"{task['cost_usd']:.2f}", task["title"]]
        rows.append(cells)
    head = ["TASK", "STATE", "AGENT", "SUBMITTED", "LIFE", "TURNS", "CALLS", "USD", "TITLE"]
    render.out_lines(render.table(rows, head, (4, 5, 6, 7)))


def _show_stats(tasks: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    from statistics import median

    ends = Counter(task["reason"] or task["state"] for task in tasks)
    found = {
        "tasks": len(tasks),
        "ends": dict(ends.most_common()),
        "median_cost_usd": median([task["cost_usd"] for task in tasks]) if tasks else None,
        "median_turns": median([task["turns"] for task in tasks]) if tasks else None,
        "cost_usd": sum(task["cost_usd"] for task in tasks),
    }
    if as_json:
        render.out_json(found)
        return
    render.out_lines(render.table([[word, number] for word, number in ends.most_common()], ["END", "TASKS"], (1,)))
    if tasks:
        middle = f"median {found['median_cost_usd']:.2f} USD and {found['median_turns']:g} turns"
        render.out(f"{len(tasks)} tasks, {found['cost_usd']:.2f} USD in all; {middle}")
