"""Observing: what people and machines see of a running daemon: figures, traces, where its log goes, its loop."""
