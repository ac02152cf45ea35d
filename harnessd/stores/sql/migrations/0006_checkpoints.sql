-- Checkpoints of workspaces: the row is what makes one count; and restores that are under way or were done.

CREATE TABLE checkpoints (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    ref TEXT NOT NULL,
    node TEXT NOT NULL,
    manifest TEXT NOT NULL,
    root TEXT NOT NULL,
    at REAL NOT NULL,
    why TEXT NOT NULL,
    changed INTEGER NOT NULL,
    uncovered INTEGER NOT NULL
);
CREATE UNIQUE INDEX checkpoints_of ON checkpoints (task, ref);
CREATE INDEX checkpoints_in ON checkpoints (root);

CREATE TABLE restores (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    token TEXT NOT NULL UNIQUE,             -- names the restore in the workspace, so that it can be taken up again
    root TEXT NOT NULL,
    target TEXT NOT NULL,                   -- manifests
    safety TEXT NOT NULL,
    about TEXT NOT NULL,                    -- JSON of whoever began it: nodes, choices
    at REAL NOT NULL,
    state TEXT NOT NULL,                    -- open, then what became of it
    report TEXT NOT NULL DEFAULT '{}',
    ended_at REAL
);
CREATE INDEX restores_open ON restores (seq) WHERE ended_at IS NULL;
CREATE INDEX restores_of ON restores (task);
