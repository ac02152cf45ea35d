"""Forms: what is each protocol's own way of writing a turn, and how a turn is written so."""
