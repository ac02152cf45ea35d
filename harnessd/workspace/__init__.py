"""Workspace: checkpoints and restore of the files a task works on, and the confinement of paths to them."""
