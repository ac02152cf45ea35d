"""Options that many commands share, what they mean, and how a command says what it did to each task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, USAGE, Client, Problem

F = TypeVar("F", bound=Callable[..., Any] | click.Command)

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_STORED = "harnessd.cli."


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name:
        ctx.meta[_STORED + parameter.name] = value


def connection(command: F) -> F:
    """`--socket`, `--url` and `--debug`; allowed before and after the command's name."""
    for option in (
        click.option(
            "--debug", is_flag=True, expose_value=False, callback=_remember, help="Show tracebacks of faults."
        ),
        click.option(
            "--url", expose_value=False, callback=_remember, help="Daemon's URL: unix:/path or http://host:port."
        ),
        click.option("--socket", expose_value=False, callback=_remember, help="Path of the daemon's socket."),
    ):
        command = option(command)
    return command


def connect(ctx: click.Context) -> Client:
    """A client of the daemon that the options name."""
    client = Client(ctx.meta.get(f"{_STORED}socket"), ctx.meta.get(f"{_STORED}url"))
    ctx.call_on_close(client.close)
    return client


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen; change nothing.")
strict_option = click.option("--strict", is_flag=True, help="Warnings make the exit status 1.")
tasks_argument = click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
task_argument = click.argument("task", metavar="TASK")
label_option = click.option("--label", "labels", multiple=True, metavar="K=V", help="A label; may stand several times.")


def pairs(option: str, values: Iterable[str]) -> dict[str, str]:
    """`k=v` words as a dict."""
    found: dict[str, str] = {}
    for value in values:
        name, sign, text = value.partition("=")
        if not (sign and name):
            raise Problem(USAGE, f'{option} "{value}" is not a pair.', f"Write {option} NAME=VALUE.")
        found[name] = text
    return found


def ids(words: Sequence[str]) -> list[str]:
    """Ids as given; `-` stands for the first word of each line of standard input."""
    found: list[str] = []
    for word in words:
        if word == "-":
            found.extend(line.split()[0] for line in sys.stdin if line.strip())
        else:
            found.append(word)
    return found


def seconds(option: str, text: str) -> float:
    """`30m`, `1h30m`, `2d` or plain seconds with unit."""
    total, number = 0.0, ""
    for letter in text:
        if letter.isdigit() or letter == ".":
            number += letter
        elif letter in _UNITS and number and number.count(".") < 2:
            total += float(number) * _UNITS[letter]
            number = ""
        else:
            break
    else:
        if text and not number:
            return total
    raise Problem(USAGE, f'{option} "{text}" is not a duration.', f"Write {option} 90s, 30m, 1h30m or 2d.")


def moment(option: str, text: str, *, ago: bool = False) -> float:
    """A time as people write it: `2026-11-30 03:12`, `03:12` (today), or with `ago` also `24h`.

    It is printed back as understood, with its zone.
    """
    at = _moment(option, text, ago=ago)
    past = ", which has passed: it starts at once" if not ago and at < time.time() else ""
    render.note(f"{option.lstrip('-')} {render.full_time(at)}{past}")
    return at


def _moment(option: str, text: str, *, ago: bool) -> float:
    from datetime import datetime

    if ago and text and text[-1] in _UNITS and "-" not in text and ":" not in text:
        return time.time() - seconds(option, text)
    try:
        if len(text) in (5, 8) and text[2] == ":":
            text = f"{time.strftime('%Y-%m-%d')} {text}"
        asked = datetime.fromisoformat(text)
        at = asked.astimezone().timestamp()
        # Where clocks are put forward an hour is skipped: a time within it is the one as far after the jump (RFC 5545,
        # 3.3.5), so that nothing begins before it was asked to.
        missing = asked.tzinfo is None and datetime.fromtimestamp(at) < asked  # noqa: DTZ006 - local on both sides
        return asked.replace(fold=0 if asked.fold else 1).astimezone().timestamp() if missing else at
    except (ValueError, OverflowError):
        also = ", or 24h" if ago else ""
        hint = f'Write {option} "2026-11-30 03:12", 2026-11-30T03:12+02:00, 03:12{also}.'
        raise Problem(USAGE, f'{option} "{text}" is not a time.', hint) from None


def for_each(
    words: Sequence[str],
    act: Callable[[str], Mapping[str, Any]],
    say: Callable[[Mapping[str, Any]], str],
    *,
    as_json: bool,
    many: str = "tasks",
) -> int:
    """Do the same to each id: one line each, 1 if one failed; a single id ends with its own exit status."""
    wanted = ids(words)
    done: list[Mapping[str, Any]] = []
    failed: list[dict[str, str]] = []
    for word in wanted:
        try:
            answer = act(word)
        except Problem as problem:
            # No daemon: nothing else will work either. One id: its status is the command's.
            if problem.exit_code == 3 or len(wanted) == 1:
                raise
            failed.append({"id": word, "code": problem.code, "message": problem.message, "hint": problem.hint})
            if not as_json:
                render.note(f"{word}  {problem.message} {problem.hint}".rstrip())
            continue
        done.append(answer)
        if not as_json:
            render.out(say(answer))
    if as_json:
        render.out_json({many: done, "failed": failed})
    return FAILED if failed else 0
