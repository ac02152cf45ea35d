-- What metrics and traces ask for.

-- name: queue_figures
SELECT count(*), min(submitted_at) FROM tasks
WHERE state = 'queued' AND (not_before IS NULL OR not_before <= :now)

-- name: outbox_figures
SELECT channel, count(*) FROM outbox GROUP BY channel

-- name: question_figures
SELECT kind, count(*) FROM approvals WHERE choice IS NULL GROUP BY kind

-- name: event_counts
SELECT type, count(*) FROM events WHERE seq > :after AND seq <= :upto GROUP BY type
UNION ALL SELECT kind, count(*) FROM nodes WHERE seq > :after AND seq <= :upto GROUP BY kind

-- name: ends_between
SELECT data FROM events WHERE seq > :after AND seq <= :upto AND type = 'task_stopped'

-- name: attempt_at
SELECT data FROM events WHERE task = :task AND type = 'started' AND seq <= :seq ORDER BY seq DESC LIMIT 1

-- name: seq_of_node
SELECT seq FROM nodes WHERE task = :task AND id = :node

-- name: latest_event
SELECT at FROM events WHERE task = :task ORDER BY seq DESC LIMIT 1
