"""Reference: what people and editors are told of every key, read from the shapes that check it."""
