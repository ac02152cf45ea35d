"""What holds for every test."""

from __future__ import annotations

import signal

# A shell that starts a job in the background lets it ignore SIGINT, and a child inherits that. Tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
