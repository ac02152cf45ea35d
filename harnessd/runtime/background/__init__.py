"""Background: what runs for tasks beside their workers: jobs written down, told of, and ended with their tasks."""
