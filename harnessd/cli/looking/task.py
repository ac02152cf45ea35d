"""One task: what it does and since when, what it waits for, what it has used, what comes next, what a person can do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harnessd.cli import render
from harnessd.cli.client import Client, task_path

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
    "tree": "its way, node by node",
    "inbox": "what it asks, with all choices",
    "rollback": "files and talk back to before it went wrong; --dry-run shows it",
    "model": "one call: its key and quota as they are now",
}


def show_task(client: Client, word: str, as_json: bool) -> int:
    """Print it; the exit status says that it was found, not how the task stands."""
    task = client.get(task_path(word))
    if as_json:
        render.out_json(task)
        return 0
    if task["state"] == "queued" and task.get("waits_behind") in task["after"]:
        task = {**task, "stopped_before": client.get(task_path(task["waits_behind"]))["state"] == "stopped"}
    labels = render.labels(task["labels"])
    priority = f"priority {task['priority']}" if task["priority"] else ""
    head = [task["task"], task["agent"], f'"{render.one_line(task["title"])}"', labels, priority]
    render.out("  ".join(render.one_line(word) for word in head if word))
    rows = [*_end(task), *_said(task)] if task["ended_at"] else [*_stands(task), *_doing(task)]
    rows += [*_jobs(task), *_degraded(task), *_asks(task), *_failed(task), *_next(task), *_place(task)]
    render.out_lines(f"{render.pad(name, 8)} {render.one_line(text)}".rstrip() for name, text in rows)
    _show_budgets(task)
    _show_policies(task)
    _show_steps(task)
    return 0


def _end(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    life = render.duration(task["ended_at"] - (task["started_at"] or task["submitted_at"]))
    reason = task["reason"] or task["state"]
    yield "ended", f"{render.clock_time(task['ended_at'])} {reason}, after {life}, {task['cost_usd']:.2f} USD"


def _said(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The sentence of a completed task is the agent's last word; of a stopped one, what stopped it."""
    yield "said" if task["state"] == "completed" and not task.get("safe") else "because", _because(task)
    if "output" in task:
        yield "output", json.dumps(task["output"], ensure_ascii=False)
    if task.get("said"):
        yield "said", f'"{task["said"]}"   (last turn, no tools)'


def _because(task: Mapping[str, Any]) -> str:
    if not task.get("safe"):
        return str(task["sentence"])
    return "degraded: no answer had the wanted form; the agent's declared safe one was handed out"


def _degraded(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who answers for whom now (R3.4)."""
    for home, link in (task.get("degraded") or {}).items():
        if not task["ended_at"]:
            yield (
                "degraded",
                f"{link} {'stands in' if home.startswith(('agent/', 'feature/')) else 'answers'} for {home}",
            )


def _stands(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    state, now = task["state"], time.time()
    since = f" since {render.clock_time(task['state_since'], now)}" if task.get("state_since") else ""
    until = render.clock_time(task["until"], now) if task["until"] else ""
    left = f" ({render.duration(task['until'] - now)} left)" if task["until"] else ""
    match state:
        case "parked":
            words = f"parked{since}, holds no worker, until {until}{left}"
        case "waiting":
            words = f"waits for a person{since}, holds no worker"
            words += f"; {_otherwise(task)} {until}{left}" if until else "; as long as it takes"
        case "paused":
            words = f"paused{since}, holds no worker"
        case "queued":
            words = f"queued{since}"
        case _:
            words = f"{state}{since}, submitted {render.clock_time(task['submitted_at'], now)}"
    yield "state", words
    if task["pause_asked"] or task["cancel_asked"]:
        yield "asked", "to stop" if task["cancel_asked"] else "to pause at its step border"
    if task.get("not_before") and task["not_before"] > now and state == "queued":
        wait = render.duration(task["not_before"] - now)
        yield "starts", f"not before {render.clock_time(task['not_before'], now)} (in {wait})"
    if host := task.get("waits_for_host"):
        yield "waits for", f"a daemon on {render.one_line(host)}: its workspace lies there, and none is up"
    if other := task.get("waits_behind"):
        first = other in task["after"]
        stopped = " and has stopped" if task.get("stopped_before") else ""
        yield "behind", f"{other}, which {'is to complete first' if first else 'works in the same workspace'}{stopped}"


def _otherwise(task: Mapping[str, Any]) -> str:
    """What happens by itself when nobody answers."""
    then = {(question.get("data") or {}).get("then") for question in task["questions"]}
    return "denied by itself" if then == {"deny"} else "stops by itself"


def _doing(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if rolling := task.get("rolling_back"):
        checkpoint = f", checkpoint {rolling['checkpoint']}" if rolling["checkpoint"] else ""
        yield "doing", f"rolling back to {rolling['to']}{checkpoint}, by {rolling['by']}"
    if task["state"] != "running" or not task["doing"]:
        return
    now, progress = time.time(), task.get("progress") or {}
    since = f", for {render.duration(now - progress['since'])}" if progress.get("since") else ""
    if progress.get("phase") == "backoff" and progress.get("until"):
        yield "doing", f"{render.doing(task['doing'])}, {render.duration(progress['until'] - now)} left"
    elif progress.get("in_line"):
        yield "doing", f"in line: a limit holds the call back ({task['doing']}){since}"
    else:
        life = f", last sign of life {render.duration(progress['life_s'])} ago" if "life_s" in progress else ""
        yield "doing", f"{render.doing(task['doing'])}{since}{life}"


def _jobs(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for job in task.get("jobs", ()):
        left = "" if job["kind"] == "slow" else ", left behind by a command that ended"
        yield "job", f"{job['job']} runs for {render.duration(time.time() - job['since'])}{left}: {job['command']}"


def _asks(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for question in task["questions"]:
        yield "asks", f"{question['id']} {question['kind']}: {question['sentence']}"
        data: Mapping[str, Any] = question.get("data") or {}
        if data.get("rule") and data.get("file"):
            kind = f"{data['kind']}/{data['name']} " if data.get("kind") else ""
            note = f'   note "{data["note"]}"' if data.get("note") else ""
            yield "rule", f"{kind}{data['rule']}   {render.place(data)}{note}"


def _failed(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the task is up against now; what was dealt with is for `why`."""
    failure: Mapping[str, Any] = task.get("last_failure") or {}
    over = task["state"] in ("running", "queued", "paused") and not task["tries"]
    # A budget's end is no failure of anybody.
    shown = failure and not over and task["state"] != "completed" and failure.get("dependency")
    said = str(failure.get("provider_message") or "")
    if task["why"] and not task["questions"] and not (shown and said and said[:80] in task["why"]):
        yield "why", task["why"]
    if shown and task["reason"] != "aborted":
        facts = [failure["dependency"], f"HTTP {failure['status']}" if failure.get("status") else None]
        facts += [failure.get("class"), f"request {failure['request']}" if failure.get("request") else None]
        yield "failed", " ".join(str(fact) for fact in facts if fact) + (f' "{said}"' if said else "")
    rule = failure.get("rule")
    if rule and not over and task["state"] != "completed" and task["reason"] != "aborted":
        yield "rule", f"{rule['kind']}/{rule['name']} {rule['rule']}   {render.place(rule)}"


_NEXT_OF_PHASES = {
    "awaiting_model": "the answer, then the tools it asks for",
    "awaiting_tools": "the result goes to the model",
    "backoff": "the call is made again by itself",
    "cancelling": "it ends as soon as the calls under way are ended",
}


def _next(task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What happens by itself, if no person does anything."""
    state, progress = task["state"], task.get("progress") or {}
    words = {
        "queued": "a worker takes it as soon as one is free",
        "parked": "it is tried again by itself then, and at once when a person resumes it",
        "waiting": "it goes on as it is answered",
        "paused": "nothing, until a person resumes it",
        "rolling_back": "files first, then the pointer; after a crash too it is carried to its end",
    }
    if task.get("waits_behind") and state == "queued":
        other = task["waits_behind"]
        again = f"nothing, until {other} goes on and completes: harnessctl resume {other}"
        yield "next", again if task.get("stopped_before") else f"it starts by itself after {other}"
    elif state == "queued" and (task.get("not_before") or 0) > time.time():
        yield "next", "it starts by itself then"
    elif state == "running":
        yield "next", _NEXT_OF_PHASES.get(progress.get("phase", ""), "it goes on by itself")
    elif state in words:
        yield "next", words[state]


def _place(task: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not task["node"]:
        return [("in", task["workspace"])]
    recovered = f", {task['recoveries']} recoveries" if task["recoveries"] else ""
    at = f"{task['node']}{_way(task.get('way') or {})}{recovered}"
    rows = [("at", f"{at}   harnessctl tree {task['task']}"), ("in", task["workspace"])]
    if window := task.get("context"):
        full = f"{window['used']:.0%} of {window['effective']:,} tokens"
        rows.append(("context", f"{full}   harnessctl context {task['task']}"))
    return rows


def _way(way: Mapping[str, Any]) -> str:
    """Checkpoints, and branches that rollbacks left behind."""
    newest, rollbacks = way.get("checkpoint"), way.get("rollbacks", 0)
    words = f", checkpoint {newest['ref']} at {newest['node']}" if newest else ""
    if good := way.get("last_good"):
        words += f", last good {good}"
    return words + (f", {rollbacks} branch{'es' * (rollbacks > 1)} left behind" if rollbacks else "")


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
    for sentence in task.get("policies_missing", ()):
        render.out(render.one_line(f"         {sentence}; the next one in line holds instead"))


# What the answers of the inbox mean, in a few words.
_CHOICE_WORDS = {
    "allow": "the call is made",
    "deny": "the agent is told that a person did not allow it",
    "done": "it happened: the task goes on with a receipt",
    "not-done": "it did not happen: the call is made again with the same key",
    "go-on": "the agent goes on; --say TEXT tells it how",
    "rollback": "the agent goes on from before it",
    "stop": "the task ends",
}
_OPTION_WORDS = {
    "--budget": "go on with a higher limit",
    "--model": "again from before the failed turn, with another model",
    "--say": "TEXT tells it what to do differently",
    "--undo": "the last rollback taken back; --dry-run shows it",
}


def _show_steps(task: Mapping[str, Any]) -> None:
    steps = [(render.command(step), _step_words(step)) for step in task["next"]]
    for question in task["questions"]:
        answers = [
            (f"harnessctl answer {question['id']} {choice}", _CHOICE_WORDS.get(choice, ""))
            for choice in question["choices"]
        ]
        steps = [*answers, *steps]
    if task["state"] in ("running", "queued", "parked", "paused"):
        steps.append((f"harnessctl set {task['task']} --budget tool_calls=+60", "raise a limit"))
    rows = [["you can" if number == 0 else "", *step] for number, step in enumerate(steps)]
    render.out_lines(render.table(rows))


def _step_words(step: Sequence[str]) -> str:
    option = next((word for word in step if word in _OPTION_WORDS), None)
    return _OPTION_WORDS[option] if option else _STEP_WORDS.get(step[1] if step[1:] else "", "")
