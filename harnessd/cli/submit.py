"""Submit and set: what a task shall do, where, within which limits and under which policies."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Client, Problem
from harnessd.cli.options import (
    connect,
    connection,
    dry_run_option,
    json_option,
    label_option,
    moment,
    pairs,
    quiet_option,
    seconds,
    strict_option,
    tasks_argument,
)
from harnessd.cli.tasks import did, verb

# The keys of a line of --many: the flags of submit by their names.
_LINE_KEYS = frozenset({
    "prompt", "file", "agent", "workspace", "priority", "in", "at", "key", "budget", "policy", "pin-policies", "model",
    "feature", "label", "after",
})  # fmt: skip


@click.command()
@click.argument("prompt", required=False)
@click.option("-f", "--file", "file", metavar="FILE", help="Read the prompt from a file; - is standard input.")
@click.option("--many", metavar="FILE.jsonl", help="One task a line: the flags as JSON; - is standard input.")
@click.option("--agent", help="Agent of harness.yaml; its default_agent if not given.")
@click.option("--workspace", metavar="FOLDER", help="Folder to work in; the current one if not given.")
@click.option("--priority", type=int, help="The highest runs first; 0 if not given.")
@click.option("--in", "in_", metavar="TIME", help="Not before so much time has passed: 30m.")
@click.option("--at", metavar="TIME", help='Not before this time: "2026-11-30 03:12".')
@click.option("--key", help="Same key and text: the same task, however often it is submitted.")
@click.option("--budget", "budgets", multiple=True, metavar="NAME=N", help="A limit of this task: tool_calls=20.")
@click.option("--policy", "policies", multiple=True, metavar="KIND=NAME", help="A policy of this kind, for this task.")
@click.option("--pin-policies", is_flag=True, help="Stay at the policy revision that is in force now.")
@click.option("--model", help="Alias of the model, instead of the agent's own.")
@click.option("--feature", help="The feature of the agent to begin with, instead of its own choice.")
@label_option
@click.option("--after", multiple=True, metavar="TASK", help="Not before this task completed; may stand several times.")
@click.option("--wait", is_flag=True, help="Show progress and end with the task's result as exit status.")
@click.option("--follow", is_flag=True, help="Print the task's events until it ends, then as --wait.")
@dry_run_option
@quiet_option
@strict_option
@json_option
@connection
@click.pass_context
def submit(ctx: click.Context, /, **given: Any) -> int:
    """Queue tasks.

    PROMPT says what shall be done; - reads it from standard input. Prints the id of each task.
    """
    if given["many"] is not None:
        return _submit_many(ctx, given)
    client = connect(ctx)
    body = _body(given) | {"prompt": _prompt(given["prompt"], given["file"])}
    answer = client.post("/v1/tasks", body, dry_run=given["dry_run"])
    if given["dry_run"]:
        if not answer.get("fresh", True):
            _warn_if_known(answer)
        shown = _show_plan(answer, as_json=given["as_json"])
        return FAILED if given["strict"] and not answer.get("fresh", True) else shown
    _warn_if_known(answer)
    watched = given["wait"] or given["follow"]
    if given["quiet"]:
        render.out(answer["task"])
    elif not given["as_json"]:
        render.out(f"{answer['task']}  {answer['state']}  {answer['agent']}  {render.one_line(answer['title'])}")
    elif not watched:
        render.out_json(answer)
    if watched:
        from harnessd.cli.follow import watch_one

        return watch_one(client, answer["task"], given["as_json"], events=given["follow"], quiet=given["quiet"])
    return FAILED if given["strict"] and not answer["fresh"] else 0


@click.command(name="set")
@tasks_argument
@click.option("--budget", "budgets", multiple=True, metavar="NAME=N", help="A new limit (150), or more of it (+60).")
@click.option("--policy", "policies", multiple=True, metavar="KIND=NAME", help="A policy of this kind, for this task.")
@click.option("--pin-policies/--unpin-policies", "pin", default=None, help="Stay at the revision in force, or follow.")
@click.option("--model", help="Alias of the model for the next calls.")
@click.option("--priority", type=int, help="The highest runs first.")
@click.option(
    "--keep", metavar="TIME", help="Keep it so long after its end, whatever retention says: 90d; 0d: no longer."
)
@label_option
@dry_run_option
@json_option
@connection
@click.pass_context
def set_(ctx: click.Context, /, tasks: tuple[str, ...], dry_run: bool, as_json: bool, **given: Any) -> int:
    """Change what was said at submit. Recorded with who and when; running tasks follow at their next decision."""
    body = {
        "budget": pairs("--budget", given["budgets"]),
        "policies": pairs("--policy", given["policies"]),
        "labels": pairs("--label", given["labels"]),
        "model": given["model"],
        "priority": given["priority"],
        "pin_policies": given["pin"],
        "keep": seconds("--keep", given["keep"]) if given["keep"] else None,
    }
    body = {name: value for name, value in body.items() if value not in (None, {})}
    if not body:
        raise Problem(USAGE, "There is nothing to set.", "Write: harnessctl set TASK --budget tool_calls=+60")

    def say(answer: Mapping[str, Any]) -> str:
        return f"{did(answer)}  {_changes(answer.get('changes', {}))}".rstrip()

    return verb(ctx, "set", tasks, body, dry_run=dry_run, as_json=as_json, say=say)


def _changes(changes: Mapping[str, Any]) -> str:
    words = []
    for name, value in changes.items():
        if name == "budget":
            words += [f"{budget}={render.amount(budget, limit)}" for budget, limit in value.items()]
        elif isinstance(value, Mapping):
            words += [f"{key}={text}" for key, text in value.items()]
        elif name == "keep_s":
            words.append(f"keep={render.duration(value)} after its end" if value else "keep=as policy says")
        else:
            words.append(f"{name}={value}")
    return render.one_line(" ".join(words))


def _prompt(words: str | None, file: str | None) -> str:
    if words is not None and file is not None:
        raise Problem(USAGE, "The prompt is given twice, as words and with -f.", "Give one of them.")
    if words is None and file is None:
        raise Problem(USAGE, "There is no prompt.", 'Write: harnessctl submit "what shall be done"')
    if words is not None and words != "-":
        return words
    with _open(file or "-", "-f") as stream:
        return stream.read()


@contextmanager
def _open(name: str, option: str) -> Iterator[TextIO]:
    """A file of text, `-` is standard input; bytes that are not UTF-8 become U+FFFD."""
    try:
        if name == "-":
            yield open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - stdin
            return
        with open(name, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123 - pathlib costs start-up time
            yield stream
    except OSError as fault:
        message = f"{option} {render.one_line(name)} cannot be read: {fault.strerror}."
        raise Problem(USAGE, message, "Name a file that is there.") from None


def _body(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["in_"] and given["at"]:
        raise Problem(USAGE, "--in and --at say the same thing twice.", "Give one of them.")
    not_before = None
    if given["in_"]:
        not_before = time.time() + seconds("--in", given["in_"])
        render.note(f"at {render.full_time(not_before)}")
    elif given["at"]:
        not_before = moment("--at", given["at"])
    body = {
        "agent": given["agent"],
        "workspace": os.path.abspath(given["workspace"] or "."),  # noqa: PTH100 - pathlib costs start-up time
        "priority": given["priority"],
        "not_before": not_before,
        "key": given["key"],
        "budget": pairs("--budget", given["budgets"]),
        "policies": pairs("--policy", given["policies"]),
        "pin_policies": given["pin_policies"] or None,
        "model": given["model"],
        "feature": given["feature"],
        "labels": pairs("--label", given["labels"]),
        "after": list(given["after"]),
    }
    return {name: value for name, value in body.items() if value not in (None, {}, [])}


def _warn_if_known(answer: Mapping[str, Any]) -> None:
    if not answer["fresh"]:
        render.note(f"already submitted {render.clock_time(answer['submitted_at'])}")


def _show_plan(answer: Mapping[str, Any], *, as_json: bool) -> int:
    if as_json:
        render.out_json(answer)
        return 0
    rows = [
        ("agent", answer["agent"]),
        ("model", answer["model"] or "-"),
        ("workspace", answer["workspace"]),
        ("priority", answer["priority"]),
        *[("label", f"{name}={text}") for name, text in answer["labels"].items()],
        *[
            (f"policy {kind}", f"{row.get('name')}  ({row.get('why') or 'default'})")
            for kind, row in answer["policies"].items()
        ],
        *[(f"budget {row['budget']}", render.amount(row["budget"], row["limit"])) for row in answer["budgets"]],
    ]
    render.out_lines(render.table(rows))
    render.out("Nothing was submitted.")
    return 0


def _submit_many(ctx: click.Context, given: Mapping[str, Any]) -> int:
    for name in ("prompt", "file", "key", "wait", "follow"):
        if given[name]:
            raise Problem(USAGE, f"--many does not go together with {name}.", "Put it into the lines.")
    client = connect(ctx)
    defaults = _body(given)
    done: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    with _open(given["many"], "--many") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                _submit_line(client, given, defaults, (number, line), (done, refused))
    fresh = sum(1 for answer in done if answer.get("fresh"))
    known = len(done) - fresh
    total = len(done) + len(refused)
    verdict = "would be submitted" if given["dry_run"] else "submitted"
    summary = f"{total} lines: {fresh} {verdict}, {known} already there (same key), {len(refused)} refused"
    if given["as_json"]:
        render.out_json({"tasks": done, "refused": refused})
    else:
        render.note(summary)
    return FAILED if refused or (given["strict"] and known) else 0


def _submit_line(
    client: Client,
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    numbered: tuple[int, str],
    results: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    number, line = numbered
    done, refused = results
    try:
        answer = client.post("/v1/tasks", {**defaults, **_line(line, defaults)}, dry_run=given["dry_run"])
    except Problem as problem:
        if problem.exit_code == 3:  # nobody answers: the other lines would not be heard either
            raise
        refused.append({"line": number, "code": problem.code, "message": problem.message, "hint": problem.hint})
        render.note(f"{given['many']}:{number}: {problem.message} {problem.hint}".rstrip())
        return
    done.append(answer)
    if given["as_json"]:
        return
    if given["quiet"]:
        render.out(answer["task"])
    elif not given["dry_run"]:
        state = answer["state"] if answer["fresh"] else "already there"
        render.out(f"{answer['task']}  {state}  {render.one_line(answer['title'])}")


def _line(line: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The body of one line of --many; labels, budgets and policies add to those of the command line."""
    try:
        flags = json.loads(line)
    except ValueError as fault:
        raise Problem(USAGE, f"This is not JSON: {fault}.", 'Write {"prompt": "...", "key": "..."}.') from None
    if not isinstance(flags, dict):
        raise Problem(USAGE, "This is not a JSON object.", 'Write {"prompt": "...", "key": "..."}.')
    flags = {str(name).replace("_", "-"): value for name, value in flags.items() if value is not None}
    if unknown := sorted(flags.keys() - _LINE_KEYS):
        raise Problem(USAGE, f'There is no flag "{unknown[0]}".', f"There are: {', '.join(sorted(_LINE_KEYS))}.")
    body: dict[str, Any] = {}
    for flag, name in (("label", "labels"), ("budget", "budget"), ("policy", "policies")):
        if flag in flags:
            body[name] = {**defaults.get(name, {}), **_line_pairs(flag, flags[flag])}
    if "workspace" in flags:
        body["workspace"] = os.path.abspath(str(flags["workspace"]))  # noqa: PTH100 - as above
    if "after" in flags:
        body["after"] = flags["after"] if isinstance(flags["after"], list) else [flags["after"]]
    if "pin-policies" in flags:
        body["pin_policies"] = flags["pin-policies"]
    body["prompt"] = flags["prompt"] if "prompt" in flags else _prompt(None, flags.get("file"))
    copied = {name: flags[name] for name in ("agent", "priority", "key", "model", "feature") if name in flags}
    return {**body, **_line_start(flags), **copied}


def _line_start(flags: Mapping[str, Any]) -> dict[str, float]:
    if "in" in flags:
        return {"not_before": time.time() + seconds("in", str(flags["in"]))}
    return {"not_before": moment("at", str(flags["at"]))} if "at" in flags else {}


def _line_pairs(flag: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    words = value if isinstance(value, list) else [value]
    return dict(pairs(f"--{flag}", [str(word) for word in words]))
