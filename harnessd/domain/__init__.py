"""The nouns: frozen values of the standard library that every other room may import."""
