-- What several daemons on one store need beside the shared schema. Statements end in two semicolons: functions hold one.

-- SQLite's functions under their names, so that queries are shared.
CREATE FUNCTION as_json(stored text) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT regexp_replace(stored, '(?<!\\)((?:\\\\)*)\\u0000', '\1␀', 'g')::json
$$;;

CREATE FUNCTION json_each(stored text) RETURNS TABLE (key text, value text) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE whole json := as_json(stored);
BEGIN
    IF json_typeof(whole) = 'array' THEN
        RETURN QUERY SELECT (one.place - 1)::text, one.value
            FROM json_array_elements_text(whole) WITH ORDINALITY AS one (value, place);
    ELSE
        RETURN QUERY SELECT one.key, one.value FROM json_each_text(whole) AS one;
    END IF;
END
$$;;

CREATE FUNCTION chain(before bytea, digest bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(before || digest)
$$;;

-- Leases are measured by the database's clock: whose machine's clock is wrong keeps or loses no lease by it.
-- `harnessd.clock` = caller is for tests that say what time it is.
CREATE FUNCTION clock(callers double precision) RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN current_setting('harnessd.clock', true) = 'caller' THEN callers
        ELSE extract(epoch FROM clock_timestamp())::double precision END
$$;;

CREATE FUNCTION here(what text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('harnessd.' || what, true), '')
$$;;

-- A row for each start of a daemon. `commits` counts its write transactions: what became of one whose COMMIT was not
-- answered is read here.
CREATE TABLE daemons (
    epoch BIGINT PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL,
    host TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    version TEXT NOT NULL,
    commits BIGINT NOT NULL DEFAULT 0,
    started_at DOUBLE PRECISION NOT NULL,
    heartbeat DOUBLE PRECISION NOT NULL,
    ended_at DOUBLE PRECISION
);;
CREATE INDEX daemons_of ON daemons (node, epoch);;

-- Asked for by name: it outlasts a restart of that node.
CREATE TABLE draining (node TEXT COLLATE "C" PRIMARY KEY, since DOUBLE PRECISION NOT NULL, by TEXT NOT NULL);;

-- Where a task's folder lies. The same path on another machine is another folder.
ALTER TABLE tasks ADD COLUMN host TEXT COLLATE "C" NOT NULL DEFAULT here('host');;
ALTER TABLE workspaces ADD COLUMN host TEXT COLLATE "C" NOT NULL DEFAULT here('host');;
ALTER TABLE workspaces DROP CONSTRAINT workspaces_pkey;;
ALTER TABLE workspaces ADD PRIMARY KEY (host, root);;
ALTER TABLE jobs ADD COLUMN host TEXT COLLATE "C" NOT NULL DEFAULT here('node');;
ALTER TABLE restores ADD COLUMN host TEXT COLLATE "C" NOT NULL DEFAULT here('node');;
ALTER TABLE starts ADD COLUMN node TEXT COLLATE "C" NOT NULL DEFAULT here('node');;
