-- What is left of ended tasks, and how it goes: a task's row first, so that nobody meets half a session.

-- fragment: open_beside
(EXISTS (SELECT 1 FROM restores WHERE restores.task = tasks.id AND restores.ended_at IS NULL)
 OR EXISTS (SELECT 1 FROM jobs WHERE jobs.task = tasks.id AND jobs.ended_at IS NULL)
 OR EXISTS (SELECT 1 FROM workspaces WHERE workspaces.holder = tasks.id))

-- name: ended_tasks
SELECT tasks.id, tasks.ended_at, tasks.draft,
    (SELECT max(coalesce(effects.settled_at, effects.at)) FROM effects WHERE effects.task = tasks.id),
    (SELECT count(*) FROM checkpoints WHERE checkpoints.task = tasks.id), {open_beside}
FROM tasks WHERE tasks.state IN ('stopped', 'completed') AND tasks.ended_at IS NOT NULL
AND (tasks.ended_at > :ended_at OR (tasks.ended_at = :ended_at AND tasks.id > :id))
ORDER BY tasks.ended_at, tasks.id LIMIT :limit

-- name: waited_for
-- Tasks that others come after, while those have not ended.
SELECT after_tasks FROM tasks WHERE after_tasks <> '[]' AND state NOT IN ('stopped', 'completed')

-- name: orphans
SELECT task FROM nodes WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = nodes.task) GROUP BY task
UNION SELECT task FROM events WHERE task IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = events.task)
GROUP BY task
UNION SELECT task FROM effects WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = effects.task) GROUP BY task
UNION SELECT task FROM decisions WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = decisions.task) GROUP BY task

-- name: forget_task
DELETE FROM tasks WHERE id = :task AND state IN ('stopped', 'completed') AND ended_at = :ended_at AND NOT {open_beside}
RETURNING id

-- name: forget_session
DELETE FROM sessions WHERE task = :task

-- name: forget_counters
DELETE FROM budgets WHERE task = :task

-- name: forget_messages
DELETE FROM messages WHERE task = :task

-- name: forget_questions
DELETE FROM approvals WHERE task = :task

-- name: forget_jobs
DELETE FROM jobs WHERE task = :task

-- name: forget_restores
DELETE FROM restores WHERE task = :task

-- name: strip_effects
DELETE FROM effects WHERE seq IN (SELECT seq FROM effects WHERE task = :task LIMIT :rows) RETURNING 1

-- name: strip_decisions
DELETE FROM decisions WHERE seq IN (SELECT seq FROM decisions WHERE task = :task LIMIT :rows) RETURNING 1

-- name: strip_events
DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE task = :task LIMIT :rows)
AND seq < (SELECT max(seq) FROM events) RETURNING 1

-- name: strip_nodes
DELETE FROM nodes WHERE seq IN (SELECT seq FROM nodes WHERE task = :task LIMIT :rows) AND seq < {newest} RETURNING 1

-- name: drop_checkpoints_of
DELETE FROM checkpoints WHERE task = (SELECT tasks.id FROM tasks WHERE tasks.id = :task
    AND tasks.state IN ('stopped', 'completed') AND tasks.ended_at = :ended_at
    AND NOT EXISTS (SELECT 1 FROM restores WHERE restores.task = tasks.id AND restores.ended_at IS NULL))
RETURNING 1

-- name: old_revisions
SELECT number FROM revisions WHERE at < :before AND state NOT IN ('in_force', 'held')
AND number <> (SELECT in_force FROM policy_state)
AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.revision = revisions.number)
AND NOT EXISTS (SELECT 1 FROM events WHERE events.revision = revisions.number AND events.task IS NOT NULL)
ORDER BY number

-- name: revisions_decided
-- What kept decisions name, and what tasks are pinned to.
SELECT DISTINCT json_extract(decision, '$.rule.revision') FROM decisions
UNION SELECT DISTINCT json_extract(draft, '$.pinned_revision') FROM tasks

-- name: forget_revision
DELETE FROM revisions WHERE number = :number AND state NOT IN ('in_force', 'held')

-- name: forget_idle_sets
DELETE FROM policy_sets WHERE NOT EXISTS (SELECT 1 FROM revisions WHERE revisions.hash = policy_sets.hash)

-- fragment: old_events
SELECT seq FROM events WHERE task IS NULL AND at < :before AND seq < (SELECT max(seq) FROM events)

-- fragment: old_alerts
SELECT id FROM outbox WHERE at < :before

-- fragment: old_starts
SELECT epoch FROM starts WHERE at < :before AND epoch < (SELECT max(epoch) FROM starts)

-- name: aged
SELECT (SELECT count(*) FROM ({old_events}) AS old), (SELECT count(*) FROM ({old_alerts}) AS old),
    (SELECT count(*) FROM ({old_starts}) AS old), (SELECT count(*) FROM day_costs WHERE day < :day)

-- name: forget_old_events
DELETE FROM events WHERE seq IN ({old_events} LIMIT :rows) RETURNING 1

-- name: forget_old_alerts
DELETE FROM outbox WHERE id IN ({old_alerts} LIMIT :rows) RETURNING 1

-- name: forget_old_starts
DELETE FROM starts WHERE epoch IN ({old_starts} LIMIT :rows) RETURNING 1

-- name: forget_old_days
DELETE FROM day_costs WHERE day < :day RETURNING 1
