"""Booted: a machine of systemd's own for tests, made of this one's /usr; harnessd is installed and run in it."""
