"""Workspaces: the runtime's side of checkpoints: they are taken off the loop, and given back when nobody needs them."""
