"""Doctor: looks at installation, permissions, store, processes, clock, services and channels; says what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from harnessd import __version__
from harnessd.cli import render
from harnessd.cli.client import FAILED, Client, Problem
from harnessd.cli.options import connect, connection, json_option, strict_option
from harnessd.cli.policy.sources import config_option
from harnessd.cli.upkeep import configuration, premises
from harnessd.cli.upkeep.line import FAIL, OK, WARN, Line

_MARKS = {OK: ("ok", "green"), WARN: ("warn", "yellow"), FAIL: ("FAIL", "red")}
_SKEW_S = 2.0


@click.command()
@config_option
@click.option("--online", is_flag=True, help="Ask every model service too: one cheap real call each.")
@strict_option
@json_option
@connection
@click.pass_context
def doctor(ctx: click.Context, config: Path | None, online: bool, strict: bool, as_json: bool) -> int:
    """Look at the installation, and say the remedy of what is not in order. Works without a daemon too.

    Ends with 0 where nothing fails, else with 1; with --strict on warnings too. Nothing is changed.
    """
    client = connect(ctx)
    client.patience_s = None
    lines = list(_look(client, config, online=online))
    failed = [line for line in lines if line.state == FAIL or (strict and line.state == WARN)]
    if as_json:
        render.out_json({"ok": not failed, "checks": [asdict(line) for line in lines]})
    else:
        render.out_lines(_shown(lines))
        counts = [f"{sum(line.state == state for line in lines)} {_MARKS[state][0]}" for state in (OK, WARN, FAIL)]
        render.note(", ".join(counts))
    return FAILED if failed else 0


def _shown(lines: Sequence[Line]) -> Iterator[str]:
    areas = max(len(line.area) for line in lines)
    names = max(len(line.name) for line in lines)
    for line in lines:
        word, colour = _MARKS[line.state]
        where = f"{line.area:<{areas}}  {render.one_line(line.name):<{names}}"
        yield f"{render.paint(word.ljust(4), colour)}  {where}  {render.one_line(line.says)}"
        if line.remedy:
            yield f"{' ' * (areas + names + 10)}{render.one_line(line.remedy)}"


def _look(client: Client, config: Path | None, *, online: bool) -> Iterator[Line]:
    yield from premises.installation()
    running, told = _daemon(client)
    yield from told
    found = configuration.read(client if running else None, config)
    yield from found.lines
    if found.settings is not None:
        yield from configuration.folders(found)
        yield from configuration.services(found, running=running)
    yield from premises.clock()
    if running:
        yield from _of_daemon(client)
        yield from _asked(client, online=online)
    else:
        yield from premises.limits()
        yield Line("store", "integrity", WARN, "not looked at: only the daemon opens its store", "Start the daemon.")


def _daemon(client: Client) -> tuple[bool, list[Line]]:
    try:
        status = client.get("/v1/status")
    except Problem as problem:
        return False, [Line("daemon", "running", WARN, problem.message, problem.hint)]
    lines = [Line("daemon", "running", OK, f"harnessd {status['version']}, pid {status['pid']}, on {client.place}")]
    if status["version"] != __version__:
        says = f"the daemon is {status['version']}, this harnessctl {__version__}"
        lines.append(Line("daemon", "version", WARN, says, "Restart the daemon after an upgrade."))
    if not client.place.startswith("http"):
        lines.append(premises.socket(client.place))
    skew_s = abs(time.time() - float(status["now"]))
    if skew_s > _SKEW_S:
        says = f"the daemon's clock differs from this one by {skew_s:.0f} s"
        lines.append(Line("clock", "skew", WARN, says, "Set both clocks by a time service."))
    lines += [_warning(one) for one in status.get("warnings", ())]
    return True, lines


def _warning(told: object) -> Line:
    """What `status` warns of, with its own next step where it has one."""
    if not isinstance(told, dict):
        return Line("daemon", "warning", WARN, str(told), "See: harnessctl policy check")
    return Line(
        "daemon", str(told.get("what", "warning")), WARN, str(told.get("sentence", "")), "See: harnessctl status"
    )


def _of_daemon(client: Client) -> Iterator[Line]:
    try:
        checks = client.get("/v1/doctor")["checks"]
    except Problem as problem:
        yield Line("daemon", "checks", FAIL, problem.message, problem.hint)
        return
    for check in checks:
        yield Line(**check)


def _asked(client: Client, *, online: bool) -> Iterator[Line]:
    """Breakers and speed as the daemon knows them; with `online` one call of each model."""
    try:
        models = client.get("/v1/models")["models"]
    except Problem:
        return
    for model in models:
        name = str(model["model"])
        if not online:
            state = OK if model["breaker"] == "closed" else WARN
            says = f"breaker {model['breaker']}; not asked now (--online asks)"
            yield Line("services", name, state, says, "" if state == OK else f"harnessctl model check {name}")
            continue
        try:
            answer = client.post(f"/v1/models/{name}/check", {})
        except Problem as problem:
            yield Line("services", name, FAIL, problem.message, problem.hint)
            continue
        if answer.get("ok"):
            yield Line("services", name, OK, f"answered after {answer['took_s']} s")
        else:
            says = str(answer.get("sentence") or answer.get("class") or "it did not answer")
            yield Line("services", name, FAIL, says, f"harnessctl model check {name}; key and base_url: harness.yaml")
