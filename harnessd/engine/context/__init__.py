"""The context of a turn: how much of the window a request takes, and how the history is made smaller in time."""
