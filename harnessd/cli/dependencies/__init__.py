"""Dependency commands: breakers, models and tools: how they are, and what a person can do about them."""

from __future__ import annotations

import click

from harnessd.cli import Rows, Table

_ROOM = "harnessd.cli.dependencies"
BREAKER: Rows = {
    "list": (f"{_ROOM}.breakers:list_", "All breakers: state, since when, why, what comes next."),
    "trip": (f"{_ROOM}.breakers:trip", "Open a breaker by hand for a time."),
    "reset": (f"{_ROOM}.breakers:reset", "Close a breaker by hand."),
}
MODEL: Rows = {
    "list": (f"{_ROOM}.models:list_models", "All models: breaker, load, speed, money of the day."),
    "check": (f"{_ROOM}.models:check_models", "One cheap real call; wakes what is parked on a model that answers."),
}
TOOL: Rows = {
    "list": (f"{_ROOM}.models:list_tools", "All tools: effect, breaker, load."),
    "check": (f"{_ROOM}.models:check_tools", "Whether tools can be called now."),
}


class Group(Table):
    """The commands below one word; each is imported when it is called."""

    def __init__(self, name: str, about: str, rows: Rows) -> None:
        click.Group.__init__(self, name=f"harnessctl {name}", help=about, no_args_is_help=True)
        self.rows = rows


breaker = Group("breaker", "Circuit breakers, one for each model and tool: look, open, close.", BREAKER)
model = Group("model", "Models: how they are, and whether they answer.", MODEL)
tool = Group("tool", "Tools: how they are, and whether they can be called.", TOOL)
