"""Assembly: documents into one set: heads, `extends`, names across kinds, warnings, differences between sets."""
