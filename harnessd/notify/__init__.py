"""Notify: tells people: webhook, command, log, apprise."""

from harnessd.notify.apprise_channel import Apprise
from harnessd.notify.command import Command
from harnessd.notify.log import Log
from harnessd.notify.webhook import Webhook

__all__ = ["Apprise", "Command", "Log", "Webhook"]
