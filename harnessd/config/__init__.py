"""Config: from text to Settings and PolicySet, or all problems at once; reload with the last good one kept.

FLOOR 3. The only room that reads configuration files.
"""
