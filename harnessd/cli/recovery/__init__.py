"""Recovery: taking a task back to a trusted moment, and what differs between two."""
