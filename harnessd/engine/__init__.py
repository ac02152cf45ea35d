"""The plan: one run of a task as a sans-IO state machine; events in, commands out."""
