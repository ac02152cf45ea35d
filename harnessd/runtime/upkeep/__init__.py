"""Upkeep: what keeps an installation in order: backups, what policy keeps no longer, what a look at it finds."""
