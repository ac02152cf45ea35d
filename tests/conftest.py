"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

from tests.stores.postgres_server import remove_servers

# Processors are shared with daemons of other tests: how long a draw took says nothing of the strategy.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# A shell that starts a job in the background lets it ignore SIGINT, and a child inherits that. Tests press Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    """Servers are started by whoever needs one first, and last as long as this process."""
    remove_servers()
