"""Upkeep: what keeps an installation in order: doctor, backup, gc."""
