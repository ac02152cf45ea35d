"""Calls: a tool call as the rules of `tools` see it, its shell line taken apart."""
