"""The tool side of a turn: whether a call may run, what it is known by, its way, and its one result."""
