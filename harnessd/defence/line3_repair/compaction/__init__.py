"""Compaction: what a smaller history holds, who says what was in it, and how it is judged; pure."""
