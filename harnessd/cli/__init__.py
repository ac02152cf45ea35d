"""Commands: the table of both programs, loaded on use, and the one way in and out of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from harnessd import __version__
from harnessd.cli import render
from harnessd.cli.client import FAILED, FAULT, INTERRUPTED, NO_READER, USAGE, Problem

# name -> ("module:attribute" of a click command, one line of help). A row is all that a new command needs here.
Rows = Mapping[str, tuple[str, str]]

DAEMON: Rows = {
    "run": ("harnessd.cli.daemon:run_daemon", "Run the daemon in the foreground."),
    "check": ("harnessd.cli.daemon:check", "Read all configuration and policies and print problems; touch nothing."),
    "demo": ("harnessd.cli.demo.show:demo", "Show the defences at work: no key, no network, nothing to set up."),
    "restore": ("harnessd.cli.daemon:restore", "Make a backup the store."),
}
CLIENT: Rows = {
    "submit": ("harnessd.cli.submit:submit", "Queue tasks."),
    "set": ("harnessd.cli.submit:set_", "Change limits, policies, model, priority or labels of tasks that exist."),
    "status": ("harnessd.cli.status:status", "How the daemon, or one task, stands and what can be done next."),
    "top": ("harnessd.cli.looking.top:top", "The tasks at work, live: step, use, what they wait for."),
    "list": ("harnessd.cli.looking.lists:list_", "Tasks, newest first, filtered and counted."),
    "logs": ("harnessd.cli.sessions:logs", "The events of a task, readable."),
    "attach": ("harnessd.cli.follow:attach", "Follow a running task until it ends or waits for a person."),
    "wait": ("harnessd.cli.follow:wait", "Wait until all tasks ended or wait for a person."),
    "send": ("harnessd.cli.tasks:send", "Say a word to the agent at the next turn."),
    "cancel": ("harnessd.cli.tasks:cancel", "Stop tasks; everything they did is kept."),
    "resume": ("harnessd.cli.tasks:resume", "Go on from where tasks stand."),
    "retry": ("harnessd.cli.tasks:retry", "Go on in a new branch before the failed turn."),
    "pause": ("harnessd.cli.tasks:pause", "Hold tasks at the next step border."),
    "inbox": ("harnessd.cli.tasks:inbox", "Everything that waits for a person."),
    "answer": ("harnessd.cli.tasks:answer", "Answer questions of the inbox."),
    "approve": ("harnessd.cli.tasks:approve", "Allow calls that wait for approval."),
    "deny": ("harnessd.cli.tasks:deny", "Deny calls that wait for approval."),
    "why": ("harnessd.cli.why:why", "The decisions of a task: evidence, rule, outcome, alternatives."),
    "tree": ("harnessd.cli.sessions:tree", "The session tree of a task: branches and the pointer."),
    "show": ("harnessd.cli.sessions:show", "One node of a session: what was said, asked and answered."),
    "effects": ("harnessd.cli.looking.effects:effects", "What a task did to the world, and what could undo it."),
    "context": ("harnessd.cli.looking.context:context", "What fills the window of a task, and the last compaction."),
    "session": ("harnessd.cli.session:session", "Transcripts as files: find what a service would refuse, repair it."),
    "export": ("harnessd.cli.transfer.commands:export", "A whole session as JSON lines, or as HTML to read."),
    "import": ("harnessd.cli.transfer.commands:import_", "Make a session from a file a new task, paused."),
    "rollback": ("harnessd.cli.recovery.rollback:rollback", "Take a task back to a trusted moment, files and all."),
    "diff": ("harnessd.cli.recovery.diff:diff", "What differs in the workspace between two nodes."),
    "policy": ("harnessd.cli.policy:policy", "Check, explain, compare, change and revert policies."),
    "config": ("harnessd.cli.configuration:config", "What harness.yaml says, and where each value comes from."),
    "breaker": ("harnessd.cli.dependencies:breaker", "Circuit breakers: look, open and close by hand."),
    "model": ("harnessd.cli.dependencies:model", "Models: how they are, and whether they answer."),
    "tool": ("harnessd.cli.dependencies:tool", "Tools: how they are, and whether they can be called."),
    "notify": ("harnessd.cli.notify:notify", "Channels that tell people: try one."),
    "chaos": ("harnessd.cli.chaos:chaos", "Faults on purpose: availability measured layer by layer."),
    "doctor": ("harnessd.cli.upkeep.doctor:doctor", "Look at the installation and say what to do about it."),
    "backup": ("harnessd.cli.upkeep.commands:backup", "A whole copy of what the daemon keeps, in one file."),
    "drain": ("harnessd.cli.upkeep.drain:drain", "Take no new work and become empty, and wait for it."),
    "nodes": ("harnessd.cli.upkeep.nodes:nodes", "The daemons that share this store."),
    "service": ("harnessd.cli.service:service", "The daemon as a service of systemd: install, uninstall, print."),
    "gc": ("harnessd.cli.upkeep.commands:gc", "Let go what policy keeps no longer."),
    "bench": ("harnessd.cli.bench:bench", "What this machine's disk makes of the store: durable steps a second."),
    "completion": ("harnessd.cli.operations:completion", "Print the completion script of a shell."),
}
_FLAGS_OF_ALL = ("--json", "--debug")


class ReaderGoneError(Exception):
    """Whoever read what we print went away. click takes a BrokenPipeError for a failure of its own, with status 1."""


class Table(click.Group):
    """A group whose commands are imported when they are called."""

    def __init__(self, rows: Rows, name: str, about: str) -> None:
        settings = {"help_option_names": ["-h", "--help"]}
        super().__init__(name=name, help=about, context_settings=settings, no_args_is_help=True)
        self.rows = rows
        version = click.version_option(
            __version__, "--version", message=f"{name} %(version)s", help="Print the version."
        )
        version(self)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError as gone:
            raise ReaderGoneError from gone

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as gone:
            raise ReaderGoneError from gone

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.rows:
            return None
        module, _, attribute = self.rows[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        command.context_settings.setdefault("help_option_names", ["-h", "--help"])
        del ctx
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.rows and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], list(self.rows), n=1)
            hint = f"Did you mean: {self.name} {close[0]}" if close else f"See: {self.name} --help"
            raise Problem(USAGE, f'There is no command "{render.one_line(args[0])}".', hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.rows.items()])


def daemon_table() -> Table:
    """The commands of `harnessd`."""
    return Table(DAEMON, "harnessd", "The daemon that runs AI-agent tasks unattended and makes them survive.")


def client_table() -> Table:
    """The commands of `harnessctl`."""
    table = Table(CLIENT, "harnessctl", "Talk to a running harnessd: submit tasks, look at them, decide for them.")
    from harnessd.cli.options import connection

    connection(table)
    return table


def harnessd() -> None:
    """Entry point of the daemon's program."""
    sys.exit(run(daemon_table(), fault=FAILED))


def harnessctl() -> None:
    """Entry point of the client."""
    sys.exit(run(client_table(), fault=FAULT))


def run(table: Table, arguments: Sequence[str] | None = None, *, fault: int = FAULT) -> int:
    """Run a command line; gives the exit status. Bad input is told in two lines, never with a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = table.main(args=list(arguments), prog_name=table.name, standalone_mode=False)
    except ReaderGoneError:
        # As with `head`: there is nobody to tell, and the shell sees what it sees of any tool that SIGPIPE ends.
        # Python would complain again at its exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return NO_READER
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as wrong:
        if "--debug" in arguments:
            raise
        problem = _problem(wrong, table.name or "", fault)
        _tell(problem, as_json="--json" in arguments)
        return problem.exit_code
    return status if isinstance(status, int) else 0


def _problem(wrong: Exception, name: str, fault: int) -> Problem:
    if isinstance(wrong, Problem):
        return wrong
    if isinstance(wrong, click.ClickException):
        ctx = getattr(wrong, "ctx", None)
        where = ctx.command_path if ctx is not None else name
        return Problem(USAGE, wrong.format_message(), f"See: {where} --help")
    sentence = getattr(wrong, "sentence", None)
    if sentence is not None:  # a HarnessError, told by its shape: the client need not load the domain
        return Problem(getattr(wrong, "exit_code", 1), sentence, getattr(wrong, "remedy", ""))
    what = f"{type(wrong).__name__}: {wrong}" if str(wrong) else type(wrong).__name__
    return Problem(
        fault, f"{name} has a fault: {what}", "Run it again with --debug, and report what it prints.", "fault"
    )


def _tell(problem: Problem, *, as_json: bool) -> None:
    if as_json:
        document = {"error": {"code": problem.code, "message": problem.message, "hint": problem.hint}}
        render.write(sys.stderr, f"{render.to_json(document, line=True)}\n")
        return
    for line in (problem.message, problem.hint):
        if line:
            render.note(line)
