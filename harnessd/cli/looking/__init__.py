"""Looking: one task as it stands, and tasks in lists."""
