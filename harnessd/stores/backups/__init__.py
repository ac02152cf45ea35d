"""Backups: a whole store in one file, complete or absent, and the way back from it."""
