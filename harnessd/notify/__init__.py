"""Notify: tells people: webhook, command, log, apprise. Its channels come with the policies of that kind."""
