"""Revisions: read the files now, look at what was, go back to it. Light: nothing here reads a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from harnessd.cli import render
from harnessd.cli.client import FAILED, REFUSED, Client
from harnessd.cli.options import connect, connection, json_option

_note_option = click.option(
    "--note", default="", metavar="TEXT", help="Kept with the revision: the reason, the ticket."
)
_STATES = {"in_force": "in force", "held": "HELD"}
EXIT_OF: Mapping[str, int] = {"refused": FAILED, "held": REFUSED, "kept_out": REFUSED}


@click.command(name="reload")
@click.option("--yes", is_flag=True, help="Apply also what the guard would hold, and an empty folder.")
@click.option("--expect", default="", metavar="HASH", help="Only if the files have this hash (policy check prints it).")
@_note_option
@json_option
@connection
@click.pass_context
def reload_(ctx: click.Context, yes: bool, expect: str, note: str, as_json: bool) -> int:
    """Read the files now, and end a hold.

    Exit status 1 where the files have problems, 5 where the set waits for a person: the last good one stays in force.
    """
    client = connect(ctx)
    done = client.post("/v1/policies/reload", {"yes": yes, "expect": expect, "note": note})
    if as_json:
        render.out_json(done)
    else:
        _tell_reload(client, done)
    return EXIT_OF.get(str(done.get("result")), 0)


def _tell_reload(client: Client, done: Mapping[str, Any]) -> None:
    problems = [str(problem) for problem in done.get("problems") or []]
    word = done.get("result")
    if word == "refused":
        render.out_lines(render.one_line(problem) for problem in problems)
        kept = client.get("/v1/policies").get("revision")
        what = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        render.note(f"r{done['revision']} was refused: {what}; r{kept} stays in force. Mend the files and save.")
    elif word == "held" and done.get("stops"):
        # What it takes to judge policies is loaded only here: at the time of an incident the rest shall be quick.
        from harnessd.cli.policy.standing import held_sentence

        render.note(held_sentence(client, int(done["revision"])) or str(done["sentence"]))
    elif word in ("held", "kept_out"):
        render.note(str(done["sentence"]))
    else:
        render.out(render.one_line(done["sentence"]))


@click.command()
@json_option
@connection
@click.pass_context
def history(ctx: click.Context, as_json: bool) -> int:
    """All revisions, newest first: when, in which state, by whom, and what they were."""
    found = connect(ctx).get("/v1/policies/revisions")["revisions"]
    if as_json:
        render.out_json({"revisions": found})
        return 0
    rows = [
        [
            f"r{row['number']}",
            render.clock_time(row["at"]),
            _STATES.get(row["state"], row["state"]),
            ", ".join(word for word in (row["source"], row["by"]) if word),
            f'"{row["note"]}"  {row["what"]}' if row["note"] else row["what"],
        ]
        for row in found
    ]
    render.out_lines(render.table(rows, ["REV", "WHEN", "STATE", "BY", "WHAT"]))
    return 0


@click.command()
@click.argument("revision", metavar="REV")
@_note_option
@json_option
@connection
@click.pass_context
def revert(ctx: click.Context, revision: str, note: str, as_json: bool) -> int:
    """Put an earlier revision in force and hold it there.

    Files are read and checked from then on, not applied, also after a restart, until `harnessctl policy reload`.
    """
    client = connect(ctx)
    done = client.post("/v1/policies/revert", {"revision": revision, "note": note})
    if as_json:
        render.out_json(done)
        return 0
    render.out(f"r{done['revision']} is in force and HELD there: files on disk are read and checked, not applied, also")
    render.out("after a restart. When they are right: harnessctl policy reload")
    return 0
