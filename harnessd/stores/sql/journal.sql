-- Intents, outcomes, decisions, events, counters, questions; the fence that every unit of a worker begins with.

-- name: fence
-- In one writer's transaction a row that is read is a row that is held.
{ours}

-- fragment: ours
SELECT 1 FROM tasks WHERE tasks.id = :task AND tasks.lease_owner = :owner AND tasks.epoch = :epoch AND tasks.state IN ('running', 'rolling_back')

-- name: plan_effect
INSERT INTO effects (task, id, kind, node, call_id, name, effect_class, state, key, arguments, result, attempt, at)
VALUES (:task, :id, :kind, :node, :call_id, :name, :effect_class, :state, :key, :arguments, :result, :attempt, :at)

-- name: settle_effect
UPDATE effects SET state = :state, result = :result, settled_at = :now
WHERE task = :task AND id = :id AND state IN ('intent', 'started', 'unknown')

-- name: effects
SELECT id, kind, node, call_id, name, effect_class, state, key, arguments, result, attempt, at FROM effects
WHERE task = :task ORDER BY seq

-- name: insert_decision
INSERT INTO decisions (task, node, call_id, at, decision) VALUES (:task, :node, :call_id, :now, :decision)

-- name: decisions
SELECT at, task, node, call_id, decision FROM decisions WHERE task = :task ORDER BY seq

-- name: insert_event
INSERT INTO events (seq, at, task, node, type, data, revision)
VALUES ({newest} + 1, :now, :task, :node, :type, :data, :revision)

-- name: events_after
SELECT seq, at, task, node, type, data, revision, 0 FROM events WHERE seq > :after
UNION ALL SELECT seq, at, task, id, kind, payload, revision, 1 FROM nodes WHERE seq > :after
ORDER BY seq LIMIT :limit

-- name: events_of_task
SELECT seq, at, task, node, type, data, revision, 0 FROM events WHERE task = :task AND seq > :after
UNION ALL SELECT seq, at, task, id, kind, payload, revision, 1 FROM nodes WHERE task = :task AND seq > :after
ORDER BY seq LIMIT :limit

-- name: save_counters
INSERT INTO budgets (task, counters, doing) VALUES (:task, :counters, :doing)
ON CONFLICT (task) DO UPDATE SET counters = excluded.counters, doing = excluded.doing

-- name: take_message
UPDATE messages SET node = :node WHERE id = :message AND task = :task AND node IS NULL

-- name: messages_waiting
SELECT id, text, at, kind FROM messages WHERE task = :task AND node IS NULL ORDER BY id

-- name: ask_person
INSERT INTO approvals (task, id, kind, node, call_id, sentence, choices, asked_at, until, data)
VALUES (:task, :id, :kind, :node, :call_id, :sentence, :choices, :now, :until, :data)

-- name: questions_of
SELECT {question_columns} FROM approvals WHERE approvals.task = :task ORDER BY approvals.seq
