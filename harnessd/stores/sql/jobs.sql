-- Background jobs, and the daemon's own starts.

-- fragment: job_columns
task, id, command, kind, pid, started, boot, began_at, output, life_s, ended_at, code, why

-- name: begin_job
INSERT INTO jobs (task, id, command, kind, pid, started, boot, began_at, output, life_s)
VALUES (:task, :id, :command, :kind, :pid, :started, :boot, :began_at, :output, :life_s)
ON CONFLICT (task, id) DO UPDATE SET command = excluded.command, kind = excluded.kind, pid = excluded.pid,
    started = excluded.started, boot = excluded.boot, began_at = excluded.began_at, output = excluded.output,
    life_s = excluded.life_s, ended_at = NULL, code = NULL, why = ''

-- name: end_job
UPDATE jobs SET ended_at = :now, code = :code, why = :why WHERE task = :task AND id = :id AND ended_at IS NULL
RETURNING id

-- name: open_jobs
SELECT {job_columns} FROM jobs WHERE ended_at IS NULL ORDER BY seq

-- name: find_job
SELECT {job_columns} FROM jobs WHERE task = :task AND id = :id

-- name: job_codes
SELECT id, code FROM jobs WHERE task = :task AND kind = 'slow' AND why = '' AND ended_at IS NOT NULL AND code IS NOT NULL

-- name: insert_notice
INSERT INTO messages (task, text, at, by, kind)
SELECT id, :text, :now, 'harnessd', :kind FROM tasks WHERE id = :task AND state NOT IN ('stopped', 'completed')

-- name: event_woken_by_word
INSERT INTO events (seq, at, task, type, data, revision)
SELECT {newest} + row_number() OVER (), :now, id, 'woken', json_object('why', :why), 0 FROM tasks
WHERE id = :task AND state = 'parked' AND parked_on = :parked_on

-- name: wake_by_word
UPDATE tasks SET state = 'queued', until = NULL, why = '', waits_for = NULL, parked_on = NULL
WHERE id = :task AND state = 'parked' AND parked_on = :parked_on

-- name: begin_start
INSERT INTO starts (epoch, at) VALUES (:epoch, :now)

-- name: unclean_starts
SELECT count(*) FROM starts WHERE starts.at > :since AND EXISTS (
    SELECT 1 FROM starts AS earlier WHERE earlier.ended_at IS NULL
    AND earlier.epoch = (SELECT max(one.epoch) FROM starts AS one WHERE one.epoch < starts.epoch))

-- name: forget_starts
DELETE FROM starts WHERE at < :since AND epoch < :epoch - 8

-- name: end_start
UPDATE starts SET ended_at = :now WHERE epoch = :epoch

-- fragment: interrupted_lately
state = 'queued' AND recoveries > 0

-- name: event_held
INSERT INTO events (seq, at, task, type, data, revision)
SELECT {newest} + row_number() OVER (), :now, id, 'paused', json_object('why', :why, 'by', 'harnessd'), 0 FROM tasks
WHERE {interrupted_lately}

-- name: hold_interrupted
UPDATE tasks SET state = 'paused', why = :why, waits_for = 'resume' WHERE {interrupted_lately}
RETURNING id

-- name: held
SELECT count(*) FROM tasks WHERE state = 'paused' AND waits_for = 'resume'
