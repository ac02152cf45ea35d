"""Dependencies over the control API: breakers, models and tools, and what a person can do about them."""
