"""Rollbacks: pointer and workspace of a task go back together, as one operation that a crash cannot leave half done."""
