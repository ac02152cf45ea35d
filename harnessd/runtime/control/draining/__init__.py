"""Draining: the routes that let a daemon become empty, and take work again."""
