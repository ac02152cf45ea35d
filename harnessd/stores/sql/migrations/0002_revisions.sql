-- Policy revisions: numbered, hashed, kept with their contents, so that going back is one command.
-- `state`: in_force, held (the guard waits for a person), refused (never valid), left (was in force, or overtaken).

CREATE TABLE revisions (
    number INTEGER PRIMARY KEY,
    hash TEXT NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL,
    source TEXT NOT NULL,
    by TEXT NOT NULL,
    note TEXT NOT NULL,
    what TEXT NOT NULL,
    program TEXT NOT NULL
);

-- The effective set of a hash: the operator's files and the shipped part of that day. Many revisions may share one.
CREATE TABLE policy_sets (
    hash TEXT PRIMARY KEY,
    content TEXT NOT NULL
) WITHOUT ROWID;

-- One row. `hold` keeps later file changes out after a revert, over restarts too.
CREATE TABLE policy_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    in_force INTEGER NOT NULL,
    hold INTEGER NOT NULL
);
INSERT INTO policy_state (one, in_force, hold) VALUES (1, 0, 0)
