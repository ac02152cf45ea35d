-- Breakers, the day's costs, and the tasks that wait for a dependency.

-- name: save_breaker
INSERT INTO breakers (name, state, since) VALUES (:name, :state, :since)
ON CONFLICT (name) DO UPDATE SET state = excluded.state, since = excluded.since

-- name: breakers
SELECT name, state, since FROM breakers ORDER BY name

-- name: charge
INSERT INTO day_costs (day, name, usd) VALUES (:day, :name, :usd)
ON CONFLICT (day, name) DO UPDATE SET usd = day_costs.usd + excluded.usd

-- name: forget_days
DELETE FROM day_costs WHERE day < :day

-- name: day_costs
SELECT name, usd FROM day_costs WHERE day = :day

-- name: reach_ceiling
INSERT INTO day_costs (day, name, usd, told) VALUES (:day, :name, 0, 1)
ON CONFLICT (day, name) DO UPDATE SET told = 1 WHERE day_costs.told = 0
RETURNING name

-- name: event_woken_on
INSERT INTO events (seq, at, task, type, data, revision)
SELECT {newest} + row_number() OVER (), :now, id, 'woken', json_object('why', :why), 0 FROM (
    SELECT id FROM tasks WHERE state = 'parked' AND parked_on = :dependency ORDER BY submitted_at, id LIMIT :limit) AS chosen

-- name: wake_parked
UPDATE tasks SET state = 'queued', until = NULL, why = '', waits_for = NULL
WHERE id IN (
    SELECT id FROM tasks WHERE state = 'parked' AND parked_on = :dependency ORDER BY submitted_at, id LIMIT :limit)
RETURNING id

-- name: parked_on
SELECT parked_on, count(*) FROM tasks WHERE state = 'parked' AND parked_on IS NOT NULL GROUP BY parked_on
