-- What people are to be told. History from before this table is not told.

CREATE TABLE notified (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    cursor INTEGER NOT NULL
);
INSERT INTO notified (one, cursor) SELECT 1, coalesce(max(seq), 0) FROM events;

CREATE TABLE incidents (
    key TEXT PRIMARY KEY,
    event TEXT NOT NULL,
    since REAL NOT NULL,
    about TEXT NOT NULL,
    count INTEGER NOT NULL,
    told_count INTEGER NOT NULL,
    told TEXT NOT NULL,
    holders TEXT NOT NULL,
    next_at REAL
) WITHOUT ROWID;

CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    channel TEXT NOT NULL,
    alert TEXT NOT NULL,
    at REAL NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    said TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX outbox_of ON outbox (channel, key)
