-- What every dialect's connection asks about the store itself.

-- name: create_meta
INSERT INTO meta (one, store, owner, owner_epoch, commits) VALUES (1, :store, '', 0, 0)

-- name: meta
SELECT store, owner_epoch, commits FROM meta WHERE one = 1

-- name: take_ownership
UPDATE meta SET owner = :owner, owner_epoch = owner_epoch + 1, commits = commits + 1 WHERE one = 1
RETURNING owner_epoch, commits

-- name: mark_commit
-- The owner's epoch and the global sequence in one statement: a second owner's epoch leaves no row to touch.
UPDATE meta SET commits = commits + 1 WHERE one = 1 AND owner_epoch = :epoch RETURNING commits

-- name: newest_event
SELECT {newest}

-- fragment: newest
max(coalesce((SELECT max(seq) FROM events), 0), coalesce((SELECT max(seq) FROM nodes), 0))
