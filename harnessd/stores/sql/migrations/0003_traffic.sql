-- What traffic control must not forget in a restart: breakers, the day's costs, and what a parked task waits for.

CREATE TABLE breakers (
    name TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    since REAL NOT NULL
) WITHOUT ROWID;

-- By UTC day. `told`: the event of the ceiling was left.
CREATE TABLE day_costs (
    day TEXT NOT NULL,
    name TEXT NOT NULL,
    usd REAL NOT NULL,
    told INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, name)
) WITHOUT ROWID;

ALTER TABLE tasks ADD COLUMN parked_on TEXT;
CREATE INDEX tasks_parked ON tasks (parked_on, submitted_at, id) WHERE state = 'parked'
