"""Operations: what keeps an installation in order."""

from __future__ import annotations

import click

from harnessd.cli import render


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.option(
    "--program", type=click.Choice(["harnessctl", "harnessd"]), default="harnessctl", help="Of which program."
)
def completion(shell: str, program: str) -> int:
    """Print the completion script of a shell.

    For bash: harnessctl completion bash > ~/.local/share/bash-completion/completions/harnessctl
    """
    from click.shell_completion import get_completion_class

    from harnessd.cli import client_table, daemon_table

    table = client_table() if program == "harnessctl" else daemon_table()
    maker = get_completion_class(shell)
    if maker is None:  # click knows these three
        raise click.UsageError(f"click does not know {shell}")
    render.out(maker(table, {}, program, f"_{program.upper()}_COMPLETE").source())
    return 0
