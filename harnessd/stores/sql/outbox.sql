-- Incidents and alerts.

-- name: tell_cursor
SELECT cursor FROM notified WHERE one = 1

-- name: move_tell_cursor
UPDATE notified SET cursor = :cursor WHERE one = 1 AND cursor <= :cursor

-- name: events_to_tell
SELECT seq, at, task, node, type, data, revision, 0 FROM events
WHERE seq > :after AND type IN (SELECT value FROM json_each(:types)) ORDER BY seq LIMIT :limit

-- name: incidents
SELECT key, event, since, about, count, told_count, told, holders, next_at FROM incidents ORDER BY since, key

-- name: save_incident
INSERT INTO incidents (key, event, since, about, count, told_count, told, holders, next_at)
VALUES (:key, :event, :since, :about, :count, :told_count, :told, :holders, :next_at)
ON CONFLICT (key) DO UPDATE SET since = excluded.since, about = excluded.about, count = excluded.count,
    told_count = excluded.told_count, told = excluded.told, holders = excluded.holders, next_at = excluded.next_at

-- name: end_incident
DELETE FROM incidents WHERE key = :key

-- name: post_alert
INSERT INTO outbox (key, channel, alert, at, next_at) VALUES (:key, :channel, :alert, :now, :now)
ON CONFLICT (channel, key) DO NOTHING

-- name: outbox
SELECT id, channel, alert, at, tries, next_at, said FROM outbox ORDER BY id LIMIT :limit

-- name: unpost_alert
DELETE FROM outbox WHERE id = :id

-- name: postpone_alert
UPDATE outbox SET tries = tries + 1, next_at = :next_at, said = :said WHERE id = :id
