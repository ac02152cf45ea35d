"""Host: what the daemon asks of the machine itself: the service manager, its own hardening, where its socket lies."""
