"""Pairs: every call with its one result; which belong together, how they are called, and where they stand."""
