-- A backup becomes the store. Run by `harnessd restore` on the copy that is made ready, before anybody else sees it.

-- name: newest_effect
SELECT seq, task, id, at FROM effects ORDER BY seq DESC LIMIT 1

-- name: effect_at
SELECT task, id, at FROM effects WHERE seq = :seq

-- name: acts_behind
-- What cannot be undone and was begun: an intent is durable before its act.
SELECT task, id, name, state, at FROM effects WHERE seq > :seq AND kind = 'tool' AND effect_class = 'irreversible'
ORDER BY seq

-- name: tasks_and_counters
SELECT tasks.id, tasks.state, budgets.counters, budgets.doing FROM tasks LEFT JOIN budgets ON budgets.task = tasks.id
WHERE tasks.state <> 'completed' ORDER BY tasks.id
