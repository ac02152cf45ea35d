"""Recovery: the routes of rollbacks, checkpoints and what changed in a workspace."""
