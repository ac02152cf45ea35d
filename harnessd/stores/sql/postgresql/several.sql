-- Where several daemons make a difference, or PostgreSQL has another grammar. All else is shared.

-- fragment: newest
greatest(coalesce((SELECT max(seq) FROM events), 0), coalesce((SELECT max(seq) FROM nodes), 0))

-- fragment: overlap
(held.host = tasks.host
 AND (substr(held.root, 1, length(tasks.workspace)) = tasks.workspace
  OR substr(tasks.workspace, 1, length(held.root)) = held.root))

-- fragment: within_reach
-- A folder is where it was when the task was submitted.
(tasks.workspace = '' OR tasks.host = here('host'))

-- fragment: due
tasks.state = 'queued'
AND (tasks.not_before IS NULL OR tasks.not_before <= :now)
AND {within_reach}
AND NOT EXISTS (SELECT 1 FROM draining WHERE draining.node = here('node'))
AND (tasks.after_tasks = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(tasks.after_tasks) AS wanted LEFT JOIN tasks AS first ON first.id = wanted.value
    WHERE first.state IS DISTINCT FROM 'completed'))
AND NOT EXISTS (
    SELECT 1 FROM workspaces AS held WHERE tasks.workspace <> '' AND held.holder <> tasks.id AND {overlap})
AND (:full = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(:full) AS barred WHERE barred.value = 'agent/' || tasks.agent OR EXISTS (
        SELECT 1 FROM json_each(tasks.labels) AS has WHERE barred.value = 'label/' || has.key || '=' || has.value)))

-- name: claim_one
-- SKIP LOCKED: a row that somebody else is about to move is no reason to wait; the next one is taken.
UPDATE tasks SET state = 'running', epoch = epoch + 1, lease_owner = :owner, lease_expires = clock(:now) + :ttl,
    claim = :claim, started_at = coalesce(started_at, :now), until = NULL, why = '', waits_for = NULL,
    pause_asked = greatest(pause_asked, 0)
WHERE id = (
    SELECT tasks.id FROM tasks
    WHERE {due} ORDER BY tasks.priority DESC, tasks.submitted_at, tasks.id LIMIT 1 FOR UPDATE OF tasks SKIP LOCKED)
RETURNING {task_columns}

-- name: hold_workspace
-- A task without a workspace holds none, and one that has held it since an earlier lease holds it already.
INSERT INTO workspaces (root, holder, since)
SELECT tasks.workspace, tasks.id, :now FROM tasks
WHERE tasks.state = 'running' AND tasks.claim = :claim AND tasks.workspace <> ''
ON CONFLICT DO NOTHING

-- name: hold_to_roll_back
INSERT INTO workspaces (root, holder, since)
SELECT tasks.workspace, tasks.id, :now FROM tasks
WHERE tasks.id = :task AND NOT EXISTS (SELECT 1 FROM workspaces AS held WHERE held.holder <> tasks.id AND {overlap})
ON CONFLICT (holder) DO UPDATE SET since = workspaces.since

-- name: heartbeat
UPDATE tasks SET lease_expires = clock(:now) + :ttl
WHERE id = :task AND lease_owner = :owner AND epoch = :epoch AND state IN ('running', 'rolling_back')
RETURNING id

-- name: due_for_sweep
SELECT 1 FROM tasks WHERE state = 'running' AND lease_expires <= clock(:now)
UNION ALL SELECT 1 FROM tasks WHERE until <= :now AND state IN ('parked', 'waiting')
LIMIT 1

-- name: lease_over
SELECT 1 FROM tasks WHERE state = 'running' AND lease_expires <= clock(:now) LIMIT 1

-- fragment: interrupted
-- Without a time: what an earlier daemon of this node left behind; those of other nodes live, or their leases run out.
state = 'running' AND (lease_expires <= clock(:expired)
    OR (:expired IS NULL AND lease_owner IN (SELECT daemons.owner FROM daemons WHERE daemons.node = here('node'))))

-- name: event_interrupted
INSERT INTO events (seq, at, task, type, data, revision)
SELECT {newest} + row_number() OVER (), :now, id, 'interrupted',
    json_build_object('owner', lease_owner, 'epoch', epoch, 'recoveries', recoveries + 1, 'why', :why), 0 FROM tasks
WHERE {interrupted}

-- name: requeue_interrupted
UPDATE tasks SET state = 'queued', recoveries = recoveries + 1, lease_owner = NULL, lease_expires = NULL, claim = NULL
WHERE {interrupted}
RETURNING id

-- name: fence
-- Held until the end of the transaction: nobody moves the task on meanwhile.
{ours} FOR UPDATE

-- name: open_jobs
-- Processes of this node alone: nobody else can look at them.
SELECT {job_columns} FROM jobs WHERE ended_at IS NULL AND host = here('node') ORDER BY seq

-- name: open_restores
SELECT {restore_columns} FROM restores WHERE ended_at IS NULL AND host = here('node') ORDER BY seq

-- name: unclean_starts
SELECT count(*) FROM starts WHERE starts.at > :since AND starts.node = here('node') AND EXISTS (
    SELECT 1 FROM starts AS earlier WHERE earlier.ended_at IS NULL AND earlier.node = starts.node
    AND earlier.epoch = (
        SELECT max(one.epoch) FROM starts AS one WHERE one.epoch < starts.epoch AND one.node = starts.node))

-- name: revisions_decided
SELECT (as_json(decision) #>> '{rule,revision}')::bigint FROM decisions
UNION SELECT (as_json(draft) ->> 'pinned_revision')::bigint FROM tasks

-- fragment: living
-- By the database's clock; a daemon that has not been heard for this long is taken for dead.
(daemons.ended_at IS NULL AND daemons.heartbeat > extract(epoch FROM clock_timestamp()) - 20)

-- fragment: first_of_all
-- One daemon tells people, the one that has been up longest: two would tell them twice.
here('epoch') = (SELECT min(daemons.epoch)::text FROM daemons WHERE {living})

-- name: events_to_tell
SELECT seq, at, task, node, type, data, revision, 0 FROM events
WHERE seq > :after AND type IN (SELECT value FROM json_each(:types)) AND {first_of_all} ORDER BY seq LIMIT :limit

-- name: outbox
SELECT id, channel, alert, at, tries, next_at, said FROM outbox WHERE {first_of_all} ORDER BY id LIMIT :limit

-- name: mark_commit
UPDATE daemons SET commits = commits + 1 WHERE epoch = :epoch AND ended_at IS NULL RETURNING commits

-- name: commits_of
-- FOR UPDATE: waits for a transaction whose connection was lost and which may still be on its way.
SELECT commits FROM daemons WHERE epoch = :epoch FOR UPDATE

-- name: take_turn
-- Event numbers are given in the order of commits, or a follower would pass one by: one writing transaction at a time.
SELECT pg_advisory_xact_lock(7235419, hashtext(current_schema()))

-- name: keep_name
SELECT pg_try_advisory_lock(7235420, hashtext(current_schema() || ' ' || here('node')))

-- name: begin_daemon
INSERT INTO daemons (epoch, node, host, owner, version, started_at, heartbeat)
SELECT :epoch, here('node'), here('host'), :owner, :program, stamp, stamp
FROM (SELECT extract(epoch FROM clock_timestamp()) AS stamp) AS now

-- name: forget_daemons
-- The newest start of each node stays, so that a dead one is still listed; older ones while their leases may live.
DELETE FROM daemons WHERE heartbeat < extract(epoch FROM clock_timestamp()) - 3600
AND epoch < (SELECT max(newer.epoch) FROM daemons AS newer WHERE newer.node = daemons.node)
AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.state = 'running' AND tasks.lease_owner = daemons.owner)

-- name: beat
UPDATE daemons SET heartbeat = extract(epoch FROM clock_timestamp()) WHERE epoch = :epoch AND ended_at IS NULL
RETURNING epoch

-- name: end_daemon
UPDATE daemons SET ended_at = extract(epoch FROM clock_timestamp()) WHERE epoch = :epoch

-- name: nodes_of_store
SELECT daemons.node, daemons.host, CASE WHEN daemons.ended_at IS NOT NULL THEN 'stopped' WHEN {living} THEN 'up' ELSE 'dead' END,
    daemons.started_at, daemons.heartbeat, extract(epoch FROM clock_timestamp())::double precision,
    (SELECT count(*) FROM tasks WHERE tasks.state = 'running' AND tasks.lease_owner = daemons.owner),
    draining.since, daemons.version
FROM daemons LEFT JOIN draining ON draining.node = daemons.node
WHERE daemons.epoch = (SELECT max(newest.epoch) FROM daemons AS newest WHERE newest.node = daemons.node)
ORDER BY daemons.node

-- name: drain_node
INSERT INTO draining (node, since, by) VALUES (:node, extract(epoch FROM clock_timestamp()), :by)
ON CONFLICT (node) DO UPDATE SET by = draining.by

-- name: undrain_node
DELETE FROM draining WHERE node = :node

-- name: out_of_reach
-- The machine that a queued task waits for, because its folder lies there.
SELECT tasks.host FROM tasks WHERE tasks.id = :task AND tasks.state = 'queued' AND tasks.workspace <> ''
AND tasks.host NOT IN (SELECT daemons.host FROM daemons WHERE {living})
