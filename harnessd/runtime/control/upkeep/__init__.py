"""Upkeep: the routes of backups, of what policy keeps no longer, and of the daemon's part of a look at it all."""
