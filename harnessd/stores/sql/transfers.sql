-- Whole sessions out of the store in pages, and into it in one unit.

-- name: outline
SELECT coalesce((SELECT max(seq) FROM nodes WHERE task = :task), 0),
    coalesce((SELECT max(seq) FROM effects WHERE task = :task), 0),
    coalesce((SELECT max(seq) FROM decisions WHERE task = :task), 0),
    coalesce((SELECT max(seq) FROM events WHERE task = :task), 0),
    coalesce((SELECT max(settled_at) FROM effects WHERE task = :task), 0.0)

-- name: stored_nodes
SELECT seq, id, parent, kind, payload, at, chain FROM nodes
WHERE task = :task AND seq > :after AND seq <= :last ORDER BY seq LIMIT :limit

-- name: stored_effects
-- What was settled after the outline was still open then.
SELECT seq, id, kind, node, call_id, name, effect_class,
    CASE WHEN settled_at > :settled THEN 'intent' ELSE state END, key, arguments,
    CASE WHEN settled_at > :settled THEN NULL ELSE result END, attempt, at FROM effects
WHERE task = :task AND seq > :after AND seq <= :last ORDER BY seq LIMIT :limit

-- name: stored_decisions
SELECT seq, at, task, node, call_id, decision FROM decisions
WHERE task = :task AND seq > :after AND seq <= :last ORDER BY seq LIMIT :limit

-- name: stored_events
SELECT seq, at, task, node, type, data, revision, 0 FROM events
WHERE task = :task AND seq > :after AND seq <= :last ORDER BY seq LIMIT :limit

-- name: chain_node
UPDATE sessions SET nodes = nodes + 1, chain = chain(chain, :digest) WHERE task = :task

-- name: hold_imported
UPDATE tasks SET state = 'paused', system = :system, why = :why WHERE id = :task
