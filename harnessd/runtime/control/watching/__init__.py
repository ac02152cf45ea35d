"""Watching: the routes of metrics and of the tasks at work, for whoever looks again and again."""
