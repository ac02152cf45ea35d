-- The queue: tasks from submit to end. `{task_columns}` is the fragment below; `{overlap}` stands where two folders meet.

-- fragment: task_columns
tasks.id, tasks.draft, tasks.state, tasks.submitted_at,
(SELECT sessions.pointer FROM sessions WHERE sessions.task = tasks.id),
tasks.started_at, tasks.ended_at, tasks.reason, tasks.error_class, tasks.sentence, tasks.next_steps, tasks.until,
tasks.why, tasks.waits_for,
(SELECT budgets.counters FROM budgets WHERE budgets.task = tasks.id),
tasks.lease_owner, tasks.epoch, tasks.lease_expires,
(SELECT budgets.doing FROM budgets WHERE budgets.task = tasks.id),
tasks.system, tasks.pause_asked > 0, tasks.recoveries, tasks.cancel_asked

-- fragment: overlap
(substr(held.root, 1, length(tasks.workspace)) = tasks.workspace
 OR substr(tasks.workspace, 1, length(held.root)) = held.root)

-- fragment: due
tasks.state = 'queued'
AND (tasks.not_before IS NULL OR tasks.not_before <= :now)
AND (tasks.after_tasks = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(tasks.after_tasks) AS wanted LEFT JOIN tasks AS first ON first.id = wanted.value
    WHERE first.state IS NOT 'completed'))
AND NOT EXISTS (
    SELECT 1 FROM workspaces AS held WHERE tasks.workspace <> '' AND held.holder <> tasks.id AND {overlap})
AND (:full = '[]' OR NOT EXISTS (
    SELECT 1 FROM json_each(:full) AS barred WHERE barred.value = 'agent/' || tasks.agent OR EXISTS (
        SELECT 1 FROM json_each(tasks.labels) AS has WHERE barred.value = 'label/' || has.key || '=' || has.value)))

-- name: insert_task
INSERT INTO tasks (id, key, identity, draft, agent, labels, priority, not_before, after_tasks, workspace, submitted_at,
                   state)
VALUES (:id, :key, :identity, :draft, :agent, :labels, :priority, :not_before, :after, :workspace, :now, 'queued')
ON CONFLICT (key) DO NOTHING
RETURNING id

-- name: insert_session
INSERT INTO sessions (task, pointer, nodes, chain) VALUES (:task, NULL, 0, :chain)

-- name: task_by_key
SELECT tasks.identity, {task_columns} FROM tasks WHERE tasks.key = :key

-- name: task_by_id
SELECT {task_columns} FROM tasks WHERE tasks.id = :task

-- name: ids_by_prefix
SELECT id FROM tasks WHERE id >= :prefix AND id < :beyond ORDER BY id LIMIT 6

-- name: newest_id
SELECT max(id) FROM tasks

-- name: claim_one
-- The index holds the queue in the order of claiming: without it each claim would sort everything that waits.
UPDATE tasks SET state = 'running', epoch = epoch + 1, lease_owner = :owner, lease_expires = :expires, claim = :claim,
    started_at = coalesce(started_at, :now), until = NULL, why = '', waits_for = NULL,
    pause_asked = max(pause_asked, 0)
WHERE id = (
    SELECT tasks.id FROM tasks INDEXED BY tasks_queue
    WHERE {due} ORDER BY tasks.priority DESC, tasks.submitted_at, tasks.id LIMIT 1)
RETURNING {task_columns}

-- name: hold_workspace
-- Left out by a constraint: a task without a workspace, and one that has held it since an earlier lease.
INSERT OR IGNORE INTO workspaces (root, holder, since) VALUES (
    (SELECT nullif(tasks.workspace, '') FROM tasks WHERE tasks.state = 'running' AND tasks.claim = :claim),
    (SELECT tasks.id FROM tasks WHERE tasks.state = 'running' AND tasks.claim = :claim), :now)

-- name: event_started
INSERT INTO events (seq, at, task, type, data, revision) VALUES (
    {newest} + 1, :now, (SELECT tasks.id FROM tasks WHERE tasks.state = 'running' AND tasks.claim = :claim),
    'started', :data, 0)

-- name: heartbeat
UPDATE tasks SET lease_expires = :expires
WHERE id = :task AND lease_owner = :owner AND epoch = :epoch AND state IN ('running', 'rolling_back')
RETURNING id

-- name: due_for_sweep
SELECT 1 FROM tasks WHERE state = 'running' AND lease_expires <= :now
UNION ALL SELECT 1 FROM tasks WHERE until <= :now AND state IN ('parked', 'waiting')
LIMIT 1

-- name: event_interrupted
INSERT INTO events (seq, at, task, type, data, revision)
SELECT {newest} + row_number() OVER (), :now, id, 'interrupted',
    json_object('owner', lease_owner, 'epoch', epoch, 'recoveries', recoveries + 1, 'why', :why), 0 FROM tasks
WHERE state = 'running' AND (:expired IS NULL OR lease_expires <= :expired)

-- name: requeue_interrupted
UPDATE tasks SET state = 'queued', recoveries = recoveries + 1, lease_owner = NULL, lease_expires = NULL, claim = NULL
WHERE state = 'running' AND (:expired IS NULL OR lease_expires <= :expired)
RETURNING id

-- name: event_woken
INSERT INTO events (seq, at, task, type, data, revision)
SELECT {newest} + row_number() OVER (), :now, id, CASE state WHEN 'parked' THEN 'woken' ELSE 'unanswered' END, json_object('why', why), 0 FROM tasks
WHERE until <= :now AND state IN ('parked', 'waiting')

-- name: requeue_woken
UPDATE tasks SET state = 'queued', until = NULL, why = '', waits_for = NULL
WHERE until <= :now AND state IN ('parked', 'waiting')
RETURNING id

-- name: next_due
SELECT min(due) FROM (
    SELECT min(not_before) AS due FROM tasks WHERE state = 'queued' AND not_before > :now
    UNION ALL SELECT min(until) FROM tasks WHERE until IS NOT NULL AND state IN ('parked', 'waiting')) AS wakes

-- name: move_task
-- A person's or the task's own move: only from the state it was planned in, and a worker's only under its lease.
-- `heeds`: a worker's pause that was taken back meanwhile, a wait for jobs while a word is there, and a wait for a person
-- who has answered everything meanwhile, are not made.
UPDATE tasks SET state = :to, reason = :reason, error_class = :error_class, sentence = :sentence,
    next_steps = :next_steps, until = :until, why = :why, waits_for = :waits_for, parked_on = :parked_on, ended_at = :ended_at,
    pause_asked = CASE WHEN :forget THEN 0 ELSE max(pause_asked, 0) END,
    cancel_asked = CASE WHEN :forget THEN 0 ELSE cancel_asked END,
    recoveries = CASE WHEN :afresh THEN 0 ELSE recoveries END,
    lease_owner = NULL, lease_expires = NULL, claim = NULL
WHERE id = :task AND epoch = :epoch AND instr(:sources, ' ' || state || ' ') > 0
AND (:owner IS NULL OR lease_owner = :owner)
AND (:heeds <> 'pause' OR pause_asked >= 0)
AND (:heeds <> 'answer' OR NOT EXISTS (SELECT 1 FROM approvals WHERE approvals.task = tasks.id)
    OR EXISTS (SELECT 1 FROM approvals WHERE approvals.task = tasks.id AND approvals.choice IS NULL))
AND (:heeds <> 'word' OR NOT EXISTS (SELECT 1 FROM messages WHERE messages.task = tasks.id AND messages.node IS NULL
    AND messages.kind <> 'aside'))

-- name: free_workspace
DELETE FROM workspaces WHERE holder = :task

-- name: ask_running
UPDATE tasks SET pause_asked = CASE WHEN :pause THEN 1 ELSE pause_asked END, cancel_asked = max(cancel_asked, :cancel)
WHERE id = :task AND state = 'running'

-- name: withdraw_pause
-- Less than nothing: the worker may have its own move to `paused` on the way, and must not make it.
UPDATE tasks SET pause_asked = -1 WHERE id = :task AND state = 'running' AND pause_asked = 1

-- name: change_draft
UPDATE tasks SET draft = :draft, priority = :priority, labels = :labels WHERE id = :task AND draft = :was

-- name: insert_message
INSERT INTO messages (task, text, at, by)
SELECT id, :text, :now, :by FROM tasks WHERE id = :task AND state NOT IN ('stopped', 'completed')
RETURNING id

-- name: question_by_id
SELECT {question_columns} FROM approvals
WHERE id = :id AND (:task IS NULL OR task = :task) ORDER BY choice IS NOT NULL, seq DESC

-- fragment: question_columns
approvals.id, approvals.task, approvals.kind, approvals.node, approvals.call_id, approvals.sentence, approvals.choices,
approvals.asked_at, approvals.until, approvals.choice, approvals.say, approvals.answered_by, approvals.data

-- name: answer_question
UPDATE approvals SET choice = :choice, say = :say, answered_by = :by, answered_at = :now
WHERE task = :task AND id = :id AND choice IS NULL

-- name: queue_answered
UPDATE tasks SET state = 'queued', until = NULL, why = '', waits_for = NULL
WHERE id = :task AND state = 'waiting'
AND NOT EXISTS (
    -- A question whose time is out is settled by the engine and keeps nobody waiting.
    SELECT 1 FROM approvals WHERE approvals.task = :task AND approvals.choice IS NULL
    AND (approvals.until IS NULL OR approvals.until > :now)
)

-- name: open_questions
SELECT {question_columns} FROM approvals JOIN tasks ON tasks.id = approvals.task
WHERE approvals.choice IS NULL AND tasks.state NOT IN ('stopped', 'completed')
AND (:task IS NULL OR approvals.task = :task)
ORDER BY approvals.seq

-- name: list_tasks
-- Ids sort as tasks were submitted.
SELECT {task_columns} FROM tasks
WHERE (:states IS NULL OR tasks.state IN (SELECT value FROM json_each(:states)))
AND (:reasons IS NULL OR tasks.reason IN (SELECT value FROM json_each(:reasons)))
AND (:error_class IS NULL OR tasks.error_class = :error_class)
AND (:agent IS NULL OR tasks.agent = :agent)
AND (:since IS NULL OR tasks.submitted_at >= :since)
AND (:until IS NULL OR tasks.submitted_at <= :until)
AND NOT EXISTS (
    SELECT 1 FROM json_each(:labels) AS wanted WHERE NOT EXISTS (
        SELECT 1 FROM json_each(tasks.labels) AS has WHERE has.key = wanted.key AND has.value = wanted.value))
ORDER BY tasks.id DESC LIMIT :limit

-- name: counts
SELECT state, count(*) FROM tasks GROUP BY state

-- name: workspace_holder
SELECT held.holder FROM tasks JOIN workspaces AS held
ON tasks.workspace <> '' AND held.holder <> tasks.id AND {overlap}
WHERE tasks.id = :task AND tasks.state = 'queued' LIMIT 1

-- name: first_unfinished
SELECT wanted.value FROM tasks CROSS JOIN json_each(tasks.after_tasks) AS wanted LEFT JOIN tasks AS first
ON first.id = wanted.value
WHERE tasks.id = :task AND tasks.state = 'queued' AND first.state IS NOT 'completed' LIMIT 1

-- name: epoch
SELECT epoch FROM tasks WHERE id = :task

-- name: draft
SELECT draft FROM tasks WHERE id = :task

-- name: hold_to_roll_back
-- Whoever puts files back is alone with them: nobody else's task may hold the folder, or one that overlaps it.
INSERT INTO workspaces (root, holder, since)
SELECT tasks.workspace, tasks.id, :now FROM tasks
WHERE tasks.id = :task AND NOT EXISTS (SELECT 1 FROM workspaces AS held WHERE held.holder <> tasks.id AND {overlap})
ON CONFLICT DO UPDATE SET since = workspaces.since

-- name: withdraw_questions
-- What nobody answered was asked by a branch that is left; its event stays.
DELETE FROM approvals WHERE task = :task AND choice IS NULL
