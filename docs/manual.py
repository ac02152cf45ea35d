# noqa: INP001 - a script, not a package
"""Manual pages of both programs in roff, made from their commands: `man harnessctl` says what `--help` says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

ENVIRONMENT = {
    "harnessctl": {
        "HARNESSD_SOCKET": "Path of the daemon's socket.",
        "HARNESSD_URL": "URL of the daemon: unix:/path or http://host:port.",
        "NO_COLOR": "No colour, whatever the terminal can do.",
        "EDITOR": "What policy edit opens.",
    },
    "harnessd": {
        "HARNESSD_CONFIG": "Path of harness.yaml, where --config does not say it.",
        "HARNESSD_...": "A key of harness.yaml by its path: HARNESSD_STORE__URL.",
        "NOTIFY_SOCKET": "Set by systemd: ready, stopping and watchdog notices go there.",
    },
}
SEE_ALSO = {"harnessctl": "harnessd", "harnessd": "harnessctl"}


def page(program: Any, context: Any, statuses: str, version: str) -> str:
    """Return one manual page. `statuses` is the table of exit statuses of docs/cli.md."""
    name = program.name
    lines = [f'.TH {name.upper()} 1 "" "harnessd {version}" "harnessd"', ".SH NAME", f"{name} \\- {text(program.help)}"]
    lines += [".SH SYNOPSIS", f".B {name}", "[OPTIONS] COMMAND [ARGS]...", ".SH OPTIONS", *options(program, context)]
    lines += [".SH COMMANDS", *commands(program, context)]
    lines += [".SH EXIT STATUS"]
    for status, meaning in exit_statuses(name, statuses):
        lines += [".TP", f".B {status}", text(meaning)]
    lines += [".SH ENVIRONMENT"]
    for variable, meaning in ENVIRONMENT[name].items():
        lines += [".TP", f".B {text(variable)}", text(meaning)]
    return "\n".join([*lines, ".SH SEE ALSO", f".BR {SEE_ALSO[name]} (1)"]) + "\n"


def commands(group: Any, context: Any) -> Iterator[str]:
    """Yield each command below a group with its help and options, groups taken apart."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        below = type(context)(command, parent=context, info_name=name, terminal_width=96, max_content_width=96)
        if hasattr(command, "list_commands"):
            yield from commands(command, below)
            continue
        usage = " ".join([below.command_path.partition(" ")[2], *command.collect_usage_pieces(below)])
        yield f'.SS "{text(usage)}"'
        yield from paragraphs(command.help or "")
        yield from options(command, below)


def options(command: Any, context: Any) -> Iterator[str]:
    """Yield the options of a command."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield from (".TP", f".B {text(record[0])}", text(record[1]))


def paragraphs(words: str) -> Iterator[str]:
    """Yield the paragraphs of a help text."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", words.strip())):
        if number:
            yield ".PP"
        yield text(" ".join(paragraph.split()))


def text(words: str) -> str:
    """Return a text as roff reads it: a leading dot or quote is no request, a hyphen can be copied."""
    safe = words.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def exit_statuses(program: str, table: str) -> Iterator[tuple[str, str]]:
    """Yield status and meaning of one program, from the table of both."""
    column = {"harnessctl": 2, "harnessd": 3}[program]
    for line in table.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.split("|")]
        if len(cells) > column and cells[1].isdigit() and cells[column]:
            yield cells[1], cells[column]
