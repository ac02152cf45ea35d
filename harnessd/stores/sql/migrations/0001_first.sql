-- Everything that a task needs. Names are the contract's; tables of later features come with the migration that uses them.

-- One row: whose file this is, who owns it now, and how far it has got.
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    store TEXT NOT NULL,                    -- identity of this file, so that a swapped one is noticed
    owner TEXT NOT NULL,
    owner_epoch INTEGER NOT NULL,           -- raised at each open; checked in each write transaction
    commits INTEGER NOT NULL                -- global sequence of write transactions
);

CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    key TEXT UNIQUE,                        -- the client's idempotency key
    identity TEXT NOT NULL,                 -- with a key: what must be equal for it to mean the same task
    agent TEXT NOT NULL,
    labels TEXT NOT NULL,
    priority INTEGER NOT NULL,
    not_before REAL,
    after_tasks TEXT NOT NULL,
    workspace TEXT NOT NULL,                -- ends in a slash, so that "lies in" is "starts with"
    submitted_at REAL NOT NULL,
    state TEXT NOT NULL,
    started_at REAL,
    ended_at REAL,
    reason TEXT,
    error_class TEXT,
    sentence TEXT NOT NULL DEFAULT '',
    next_steps TEXT NOT NULL DEFAULT '[]',
    until REAL,
    why TEXT NOT NULL DEFAULT '',
    waits_for TEXT,
    lease_owner TEXT,
    lease_expires REAL,
    epoch INTEGER NOT NULL DEFAULT 0,       -- fencing token, raised by each claim
    claim TEXT,                             -- which statement of which claim took it
    pause_asked INTEGER NOT NULL DEFAULT 0,
    cancel_asked INTEGER NOT NULL DEFAULT 0,
    recoveries INTEGER NOT NULL DEFAULT 0,
    draft TEXT NOT NULL,                    -- large, rarely read alone: last, behind the columns that change
    system TEXT
);
CREATE INDEX tasks_queue ON tasks (priority DESC, submitted_at, id) WHERE state = 'queued';
CREATE INDEX tasks_running ON tasks (claim) WHERE state = 'running';
CREATE INDEX tasks_until ON tasks (until) WHERE until IS NOT NULL;

CREATE TABLE sessions (
    task TEXT PRIMARY KEY,
    pointer TEXT,
    nodes INTEGER NOT NULL,                 -- how many nodes the chain holds
    chain BLOB NOT NULL                     -- hash of the newest node in order of creation
) WITHOUT ROWID;

-- A node is an event, too: `nodes` and `events` share one sequence, and nothing of a node is written twice.
CREATE TABLE nodes (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    at REAL NOT NULL,
    revision INTEGER NOT NULL,
    chain BLOB NOT NULL                     -- hash of the node before it and of this row
);
CREATE UNIQUE INDEX nodes_of ON nodes (task, id);

CREATE TABLE effects (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    effect_class TEXT NOT NULL,
    state TEXT NOT NULL,
    key TEXT,
    arguments TEXT,
    result TEXT,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    settled_at REAL
);
CREATE UNIQUE INDEX effects_of ON effects (task, id);

CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    node TEXT,
    call_id TEXT,
    at REAL NOT NULL,
    decision TEXT NOT NULL
);
CREATE INDEX decisions_of ON decisions (task);

-- A sequence number that a follower has seen is never given again: whatever is deleted, the newest row of both stays.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    task TEXT,
    node TEXT,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    revision INTEGER NOT NULL
);
CREATE INDEX events_of ON events (task);

-- A task that has used nothing has no row.
CREATE TABLE budgets (
    task TEXT PRIMARY KEY,
    counters TEXT NOT NULL,
    doing TEXT NOT NULL
) WITHOUT ROWID;

-- A person's words to a task; `node` is set once they have become one.
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task TEXT NOT NULL,
    text TEXT NOT NULL,
    at REAL NOT NULL,
    by TEXT NOT NULL,
    node TEXT
);
CREATE INDEX messages_of ON messages (task);

CREATE TABLE approvals (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    call_id TEXT,
    sentence TEXT NOT NULL,
    choices TEXT NOT NULL,
    asked_at REAL NOT NULL,
    until REAL,
    data TEXT NOT NULL,
    choice TEXT,
    say TEXT NOT NULL DEFAULT '',
    answered_by TEXT NOT NULL DEFAULT '',
    answered_at REAL
);
CREATE UNIQUE INDEX approvals_of ON approvals (task, id);
CREATE INDEX approvals_open ON approvals (seq) WHERE choice IS NULL;

CREATE TABLE workspaces (
    root TEXT PRIMARY KEY,
    holder TEXT NOT NULL UNIQUE,
    since REAL NOT NULL
) WITHOUT ROWID;
