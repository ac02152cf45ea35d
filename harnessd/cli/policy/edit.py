"""Edit: copy, edit, check, compare, ask, replace in one step; a draft that is not valid is kept, never lost."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click

from harnessd.cli import render
from harnessd.cli.client import DONE, FAILED, REFUSED, UNREACHABLE, USAGE, Client, Problem
from harnessd.cli.options import connect, connection
from harnessd.cli.policy import comparison
from harnessd.cli.policy.draft import Draft, begin, target_of
from harnessd.cli.policy.sources import (
    OnDisk,
    Source,
    config_option,
    daemons_files,
    in_force,
    kind_and_name,
    on_disk,
    problems_in,
    tell_problems,
)
from harnessd.cli.policy.standing import felt, felt_lines, held_sentence
from harnessd.policy import PolicySet

_WAIT_S = 5.0  # a save is in force within a few hundred milliseconds; a folder that nobody watches never is
_LOOK_S = 0.05


@click.command()
@click.argument("policy", metavar="KIND[/NAME]")
@click.option("--yes", is_flag=True, help="Replace the file without asking, if all is valid.")
@click.option("--from", "begun", type=click.Path(path_type=Path), metavar="DRAFT", help="Go on with a draft.")
@config_option
@connection
@click.pass_context
def edit(ctx: click.Context, policy: str, yes: bool, begun: Path | None, config: Path | None) -> int:
    """Edit a policy safely.

    The file that holds it is copied; $VISUAL or $EDITOR opens the copy; then all files are checked with it, what would
    change is shown, and after your word the file is replaced in one step. A new file is made where there is none.
    """
    kind, name = kind_and_name(policy)
    client = _client(ctx)
    disk = daemons_files(client, config) if client is not None else on_disk(None, config)
    target = target_of(disk, kind, name or "default")
    draft = begin(target, begun)
    try:
        return _edit(draft, disk, client, yes=yes)
    finally:
        draft.tidy()


def _client(ctx: click.Context) -> Client | None:
    """The daemon, where there is one; files are edited without one too."""
    client = connect(ctx)
    try:
        client.get("/v1/policies")
    except Problem as problem:
        if problem.exit_code != UNREACHABLE:
            raise
        return None
    return client


def _edit(draft: Draft, disk: OnDisk, client: Client | None, *, yes: bool) -> int:
    """Rounds of editing until the draft is saved or left."""
    while True:
        _open_editor(draft)
        if not draft.changed:
            draft.drop()
            render.out(f"Nothing was changed in {render.one_line(draft.target.shown)}.")
            return DONE
        judged = draft.judged(disk)
        if judged.refused:
            tell_problems(judged.problems)
            render.note(f"{problems_in(judged.problems)}; {draft.target.shown} was not touched.")
            answer = _ask("Edit again, or keep the draft for later?", {"e": "edit again", "k": "keep", "d": "delete"})
        else:
            if judged.problems:
                others = problems_in(judged.problems)
                render.note(f"The set stays invalid after this: {others}, none of them in {draft.target.shown}.")
            _tell_changes(judged.policies, disk, client)
            if yes:
                return _save(draft, client, judged.policies)
            answer = _ask("Replace the file?", {"y": "yes", "e": "edit again", "k": "keep the draft", "d": "delete it"})
        if answer == "y":
            return _save(draft, client, judged.policies)
        if answer == "d":
            draft.drop()
            render.note(f"The draft was deleted; {draft.target.shown} was not touched.")
            return DONE
        if answer == "k":
            draft.keep()
            return FAILED if judged.refused else REFUSED


def _open_editor(draft: Draft) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), str(draft.path)], check=False)
    except (OSError, ValueError) as fault:
        draft.keep_if_changed()
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
        message = f"The editor {render.one_line(editor)} cannot be started: {why}."
        raise Problem(USAGE, message, "Set VISUAL or EDITOR to your editor.") from None
    if done.returncode != 0:
        draft.keep_if_changed()
        message = f"The editor ended with {done.returncode}; {draft.target.shown} was not touched."
        raise Problem(FAILED, message, "Edit again.")


def _ask(question: str, choices: dict[str, str]) -> str:
    """One letter. Nobody there to ask: keep."""
    if not sys.stdin.isatty():
        render.note("Nobody can be asked here; say --yes to replace a valid file without asking.")
        return "k"
    shown = ", ".join(f"[{letter}] {words}" for letter, words in choices.items())
    while True:
        render.note(f"{question} {shown}")
        line = sys.stdin.readline()
        letter = line.strip().lower()[:1]
        if not line:
            return "k"
        if letter in choices:
            return letter


def _tell_changes(new: PolicySet | None, disk: OnDisk, client: Client | None) -> None:
    before = disk.source("files")
    if new is None:
        return
    if before.policies is None and client is not None:
        before = in_force(client)
    if before.policies is None:
        render.note("The files were not valid before: there is nothing to compare with.")
        return
    rows = comparison.rows(before.policies, new)
    render.out_lines(comparison.lines(rows) if rows else ("No value differs: only the text.",))
    if client is not None:
        now: Source = in_force(client)
        render.out_lines(felt_lines(felt(client, now.whole, new, disk.source("").agents)))


def _save(draft: Draft, client: Client | None, new: PolicySet | None) -> int:
    draft.replace()
    render.out(f"{render.one_line(draft.target.shown)} was replaced.")
    if client is None:
        render.note("No daemon answers: the file counts from its next start.")
        return DONE
    return _follow(client, new)


def _follow(client: Client, new: PolicySet | None) -> int:
    """Wait until the daemon has judged the set, and say what became of it. None: a set that is not valid yet."""
    if new is None:
        render.note("The daemon stays with the last good set until the other files are mended.")
        return DONE
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        facts = client.get("/v1/policies")
        held = facts.get("held") or {}
        if facts.get("hash") == new.hash:
            render.out(f"r{facts['revision']} is in force.")
            return DONE
        if held.get("hash") == new.hash:
            number = held.get("revision")
            why = held_sentence(client, int(number)) if number else None
            hint = "Apply it: harnessctl policy reload" + (" --yes" if number else "")
            render.note(why or f"It waits: {held['why']}.\n{hint}")
            return REFUSED
        time.sleep(_LOOK_S)
    render.note("The daemon has not taken it yet. If it does not watch its files: harnessctl policy reload")
    return DONE
