"""Draining: a daemon that is to be empty, because a person or a stop wants it so."""
