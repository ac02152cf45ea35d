-- The append-only tree. `chain()` is the store's own hash function, known to both dialects.

-- fragment: go_on
UPDATE sessions SET pointer = :id, nodes = nodes + 1, chain = chain(chain, :digest)
WHERE task = :task AND pointer IS :parent

-- name: advance
{go_on}

-- name: fenced_advance
-- The fence of a unit that begins with a node, in the same statement.
{go_on}
AND EXISTS ({ours})

-- name: insert_node
INSERT INTO nodes (seq, task, id, parent, kind, payload, at, revision, chain)
VALUES ({newest} + 1, :task, :id, :parent, :kind, :payload, :at, :revision,
        (SELECT sessions.chain FROM sessions WHERE sessions.task = :task))

-- name: move_pointer
UPDATE sessions SET pointer = :to
WHERE task = :task AND pointer IS :expected
AND (:to IS NULL OR EXISTS (SELECT 1 FROM nodes WHERE nodes.task = :task AND nodes.id = :to))

-- name: session
SELECT pointer, nodes, chain FROM sessions WHERE task = :task

-- name: nodes
SELECT id, parent, kind, payload, at, chain FROM nodes WHERE task = :task ORDER BY seq

-- name: path
-- The count of the session's nodes bounds the walk: damaged parents may run in a circle.
WITH RECURSIVE path (seq, id, parent, kind, payload, at, depth) AS (
    SELECT nodes.seq, nodes.id, nodes.parent, nodes.kind, nodes.payload, nodes.at, 1
    FROM sessions JOIN nodes ON nodes.task = sessions.task AND nodes.id = sessions.pointer
    WHERE sessions.task = :task
    UNION ALL
    SELECT nodes.seq, nodes.id, nodes.parent, nodes.kind, nodes.payload, nodes.at, path.depth + 1
    FROM path JOIN nodes ON nodes.task = :task AND nodes.id = path.parent
    WHERE path.depth <= (SELECT sessions.nodes FROM sessions WHERE sessions.task = :task))
SELECT id, parent, kind, payload, at FROM path ORDER BY depth DESC

-- name: freeze_system
UPDATE tasks SET system = coalesce(system, :text) WHERE id = :task
