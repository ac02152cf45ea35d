-- Policy revisions.

-- name: insert_revision
INSERT INTO revisions (number, hash, at, state, source, by, note, what, program)
VALUES ((SELECT coalesce(max(number), 0) + 1 FROM revisions), :hash, :at, :state, :source, :by, :note, :what, :program)
RETURNING number

-- name: keep_set
INSERT INTO policy_sets (hash, content) VALUES (:hash, :content) ON CONFLICT (hash) DO NOTHING

-- name: leave_revisions
UPDATE revisions SET state = 'left' WHERE state = 'in_force' OR (state = 'held' AND :overtaken)

-- name: mark_in_force
UPDATE policy_state SET in_force = (SELECT max(number) FROM revisions WHERE state = 'in_force'), hold = :hold
WHERE one = 1

-- name: put_in_force
UPDATE revisions SET state = 'in_force' WHERE number = :number

-- name: revisions
SELECT number, hash, at, state, source, by, note, what, program FROM revisions ORDER BY number DESC LIMIT :limit

-- name: revision
SELECT number, hash, at, state, source, by, note, what, program FROM revisions WHERE number = :number

-- name: policy_set
SELECT content FROM policy_sets WHERE hash = :hash

-- name: policy_state
SELECT in_force, hold FROM policy_state WHERE one = 1
