-- Checkpoints and restores of workspaces.

-- fragment: checkpoint_columns
node, ref, manifest, root, at, why, changed, uncovered

-- fragment: restore_columns
task, token, root, target, safety, about, at, state, report, ended_at

-- name: keep_checkpoint
INSERT INTO checkpoints (task, ref, node, manifest, root, at, why, changed, uncovered)
VALUES (:task, :ref, :node, :manifest, :root, :at, :why, :changed, :uncovered)

-- name: checkpoints
SELECT {checkpoint_columns} FROM checkpoints WHERE task = :task ORDER BY seq

-- name: live_manifests
SELECT root, manifest FROM checkpoints
UNION SELECT root, target FROM restores WHERE ended_at IS NULL
UNION SELECT root, safety FROM restores WHERE ended_at IS NULL

-- name: expired_checkpoints
DELETE FROM checkpoints WHERE task IN (
    SELECT id FROM tasks WHERE state IN ('stopped', 'completed') AND ended_at < :before
) AND task NOT IN (SELECT task FROM restores WHERE ended_at IS NULL)
RETURNING task

-- name: oldest_ended_with_checkpoints
SELECT tasks.id FROM tasks WHERE state IN ('stopped', 'completed')
    AND tasks.id NOT IN (SELECT value FROM json_each(:spared))
    AND EXISTS (SELECT 1 FROM checkpoints WHERE checkpoints.task = tasks.id)
    AND NOT EXISTS (SELECT 1 FROM restores WHERE restores.task = tasks.id AND restores.ended_at IS NULL)
ORDER BY ended_at, id LIMIT 1

-- name: drop_checkpoints
DELETE FROM checkpoints WHERE task = :task

-- name: begin_restore
INSERT INTO restores (task, token, root, target, safety, about, at, state)
VALUES (:task, :token, :root, :target, :safety, :about, :at, 'open')

-- name: end_restore
UPDATE restores SET state = :state, report = :report, ended_at = :now WHERE token = :token AND ended_at IS NULL

-- name: open_restores
SELECT {restore_columns} FROM restores WHERE ended_at IS NULL ORDER BY seq

-- name: restores
SELECT {restore_columns} FROM restores WHERE task = :task ORDER BY seq
