-- Background jobs, and the daemon's own starts.

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    command TEXT NOT NULL,
    kind TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL,
    boot TEXT NOT NULL,
    began_at REAL NOT NULL,
    output TEXT NOT NULL,
    life_s REAL,
    ended_at REAL,
    code INTEGER,
    why TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX jobs_of ON jobs (task, id);
CREATE INDEX jobs_open ON jobs (seq) WHERE ended_at IS NULL;

-- 'person'; or our own words, which are no act of a person: 'notice', and 'aside', for which nobody goes on.
ALTER TABLE messages ADD COLUMN kind TEXT NOT NULL DEFAULT 'person';

CREATE TABLE starts (
    epoch INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    ended_at REAL
);
