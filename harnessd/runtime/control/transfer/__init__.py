"""Transfer: the routes by which whole sessions leave as JSON lines and come in again."""
