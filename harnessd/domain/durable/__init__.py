"""Durable: what outlives every process beside the tasks themselves: breakers, the outbox, revisions of policies."""
