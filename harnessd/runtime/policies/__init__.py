"""Policies at run time: which set is in force, what each task gets of it, and how another comes in its place."""
