"""Pricing: what a model is charged by: its own price, a listed one of the extra `prices`, else the dearest (R3.9)."""
