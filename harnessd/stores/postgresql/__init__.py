"""PostgreSQL: the dialect for several daemons on one store; asyncpg (extra `postgres`) is loaded where it is used."""
