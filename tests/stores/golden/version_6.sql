-- A store as version 6 wrote it.
PRAGMA application_id = 1752329828;
BEGIN TRANSACTION;
CREATE TABLE approvals (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    call_id TEXT,
    sentence TEXT NOT NULL,
    choices TEXT NOT NULL,
    asked_at REAL NOT NULL,
    until REAL,
    data TEXT NOT NULL,
    choice TEXT,
    say TEXT NOT NULL DEFAULT '',
    answered_by TEXT NOT NULL DEFAULT '',
    answered_at REAL
);
INSERT INTO "approvals" VALUES(1,'2vfmc0','a1','question','n3',NULL,'Which?','["go-on","stop"]',1800000003.0,NULL,'{}',NULL,'','',NULL);
CREATE TABLE breakers (
    name TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    since REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "breakers" VALUES('model/primary','{"phase":"open"}',1800000000.0);
CREATE TABLE budgets (
    task TEXT PRIMARY KEY,
    counters TEXT NOT NULL,
    doing TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "budgets" VALUES('2vfmc0','{"turns":1,"tool_calls":0,"tokens":0,"cost_usd":0.0,"reserved_usd":0.0,"working_s":0.0,"wall_s":0.0,"nodes":3,"effects":0,"tries":0,"episode_at":null,"episode_parked_s":0.0,"wait_until":null,"warned":[],"pending_warnings":[],"calls_of":{},"last_turn":false}','bash: ls');
CREATE TABLE checkpoints (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    ref TEXT NOT NULL,
    node TEXT NOT NULL,
    manifest TEXT NOT NULL,
    root TEXT NOT NULL,
    at REAL NOT NULL,
    why TEXT NOT NULL,
    changed INTEGER NOT NULL,
    uncovered INTEGER NOT NULL
);
INSERT INTO "checkpoints" VALUES(1,'2vfmc0','c1','n2','abababababababababababababababababababababababababababababababab','/srv/importer',1800000002.0,'before',3,1);
CREATE TABLE day_costs (
    day TEXT NOT NULL,
    name TEXT NOT NULL,
    usd REAL NOT NULL,
    told INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, name)
) WITHOUT ROWID;
INSERT INTO "day_costs" VALUES('2027-01-15','agent/coder',1.25,0);
CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    node TEXT,
    call_id TEXT,
    at REAL NOT NULL,
    decision TEXT NOT NULL
);
INSERT INTO "decisions" VALUES(1,'2vfmc0','n3',NULL,1800000002.0,'{"do":"retry","remedy":{"after_s":1.5,"attempt":2,"of":3},"error_class":"overloaded","rule":{"kind":"retry","name":"default","rule":"overloaded","file":"builtin retry.yaml","line":18,"revision":1},"evidence":{},"alternatives":[],"tried":[]}');
CREATE TABLE effects (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    node TEXT NOT NULL,
    call_id TEXT NOT NULL,
    name TEXT NOT NULL,
    effect_class TEXT NOT NULL,
    state TEXT NOT NULL,
    key TEXT,
    arguments TEXT,
    result TEXT,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    settled_at REAL
);
INSERT INTO "effects" VALUES(1,'2vfmc0','e1','model','n1','c1','model/primary','reversible','done',NULL,NULL,'{"tokens":9}',1,1800000000.0,1800000001.0);
INSERT INTO "effects" VALUES(2,'2vfmc0','e2','tool','n2','c1','tool/bash','reversible','done','4f','{"command":"ls"}','{"exit":0}',1,1800000000.0,1800000002.0);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    task TEXT,
    node TEXT,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    revision INTEGER NOT NULL
);
INSERT INTO "events" VALUES(1,1800000000.0,'2vfmc0',NULL,'submitted','{"agent":"coder","workspace":"/srv/importer","prompt":"Port the importer"}',0);
INSERT INTO "events" VALUES(2,1800000000.0,'2vfmc0',NULL,'started','{"owner":"a1"}',0);
INSERT INTO "events" VALUES(4,1800000000.0,'2vfmc0','n1','model_call','{"effect":"e1","call":"c1","name":"model/primary","class":"reversible","attempt":1}',0);
INSERT INTO "events" VALUES(6,1800000001.0,'2vfmc0','n2','tool_call','{"effect":"e2","call":"c1","name":"tool/bash","class":"reversible","attempt":1}',0);
INSERT INTO "events" VALUES(8,1800000002.0,'2vfmc0','n3','decision','{"do":"retry","class":"overloaded","rule":"retry/default overloaded","where":"builtin retry.yaml:18","call":null}',0);
INSERT INTO "events" VALUES(9,1800000002.0,'2vfmc0','n3','retry_wait','{"after_s":1.5,"attempt":2,"of":3,"class":"overloaded"}',0);
INSERT INTO "events" VALUES(10,1800000002.0,'2vfmc0',NULL,'message','{"by":"ann","text":"Please hurry"}',0);
INSERT INTO "events" VALUES(11,1800000003.0,'2vfmc0','n3','needs_human','{"question":"a1","kind":"question","sentence":"Which?","until":null,"choices":["go-on","stop"]}',0);
INSERT INTO "events" VALUES(12,1800000003.0,'2vfmc0',NULL,'handed_back','{}',0);
CREATE TABLE incidents (
    key TEXT PRIMARY KEY,
    event TEXT NOT NULL,
    since REAL NOT NULL,
    about TEXT NOT NULL,
    count INTEGER NOT NULL,
    told_count INTEGER NOT NULL,
    told TEXT NOT NULL,
    holders TEXT NOT NULL,
    next_at REAL
) WITHOUT ROWID;
INSERT INTO "incidents" VALUES('breaker_opened|model/primary|','breaker_opened',1800000000.0,'{}',1,1,'{}','[]',NULL);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    command TEXT NOT NULL,
    kind TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started INTEGER NOT NULL,
    boot TEXT NOT NULL,
    began_at REAL NOT NULL,
    output TEXT NOT NULL,
    life_s REAL,
    ended_at REAL,
    code INTEGER,
    why TEXT NOT NULL DEFAULT ''
);
INSERT INTO "jobs" VALUES(1,'2vfmc0','e2','make all','slow',4711,99,'b00t',1800000002.0,'/state/artefacts/2vfmc0/e2.out',7200.0,NULL,NULL,'');
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task TEXT NOT NULL,
    text TEXT NOT NULL,
    at REAL NOT NULL,
    by TEXT NOT NULL,
    node TEXT
, kind TEXT NOT NULL DEFAULT 'person');
INSERT INTO "messages" VALUES(1,'2vfmc0','Please hurry',1800000002.0,'ann',NULL,'person');
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    store TEXT NOT NULL,
    owner TEXT NOT NULL,
    owner_epoch INTEGER NOT NULL,
    commits INTEGER NOT NULL
);
INSERT INTO "meta" VALUES(1,'5a7f564c4f636e0e','a1',1,9);
CREATE TABLE nodes (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    at REAL NOT NULL,
    revision INTEGER NOT NULL,
    chain BLOB NOT NULL
);
INSERT INTO "nodes" VALUES(3,'2vfmc0','n1',NULL,'user','{"blocks":[{"type":"text","text":"Port the importer"}]}',1800000000.0,0,X'502ACC66AA37F649A1EBC2D372E5689C6E0B2B1CDBECB8FE19E339163219B2FB');
INSERT INTO "nodes" VALUES(5,'2vfmc0','n2','n1','assistant','{"role":"assistant","blocks":[{"type":"text","text":"I look é"},{"type":"tool_use","id":"c1","name":"bash","arguments":{"command":"true"}}],"facts":{}}',1800000000.0,0,X'89948403D015C9CD83435BD551B4ABC65839DE673172231DA467889BF0C15D3E');
INSERT INTO "nodes" VALUES(7,'2vfmc0','n3','n2','tool_result','{"blocks":[{"type":"tool_result","tool_use_id":"c1","text":"ok","is_error":false}],"facts":{}}',1800000000.0,0,X'E59EA4A09C62E65E106FE5437B8195A614EFA66A06AD3D79F269293C096D2720');
CREATE TABLE notified (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    cursor INTEGER NOT NULL
);
INSERT INTO "notified" VALUES(1,12);
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    channel TEXT NOT NULL,
    alert TEXT NOT NULL,
    at REAL NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    said TEXT NOT NULL DEFAULT ''
);
INSERT INTO "outbox" VALUES(1,'k1','ops','{}',1800000000.0,0,1800000000.0,'');
CREATE TABLE policy_sets (
    hash TEXT PRIMARY KEY,
    content TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE policy_state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    in_force INTEGER NOT NULL,
    hold INTEGER NOT NULL
);
INSERT INTO "policy_state" VALUES(1,0,0);
CREATE TABLE restores (
    seq INTEGER PRIMARY KEY,
    task TEXT NOT NULL,
    token TEXT NOT NULL UNIQUE,
    root TEXT NOT NULL,
    target TEXT NOT NULL,
    safety TEXT NOT NULL,
    about TEXT NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL,
    report TEXT NOT NULL DEFAULT '{}',
    ended_at REAL
);
CREATE TABLE revisions (
    number INTEGER PRIMARY KEY,
    hash TEXT NOT NULL,
    at REAL NOT NULL,
    state TEXT NOT NULL,
    source TEXT NOT NULL,
    by TEXT NOT NULL,
    note TEXT NOT NULL,
    what TEXT NOT NULL,
    program TEXT NOT NULL
);
CREATE TABLE sessions (
    task TEXT PRIMARY KEY,
    pointer TEXT,
    nodes INTEGER NOT NULL,
    chain BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO "sessions" VALUES('2vfmc0','n3',3,X'E59EA4A09C62E65E106FE5437B8195A614EFA66A06AD3D79F269293C096D2720');
CREATE TABLE starts (
    epoch INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    ended_at REAL
);
INSERT INTO "starts" VALUES(1,1800000000.0,NULL);
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    key TEXT UNIQUE,
    identity TEXT NOT NULL,
    agent TEXT NOT NULL,
    labels TEXT NOT NULL,
    priority INTEGER NOT NULL,
    not_before REAL,
    after_tasks TEXT NOT NULL,
    workspace TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    state TEXT NOT NULL,
    started_at REAL,
    ended_at REAL,
    reason TEXT,
    error_class TEXT,
    sentence TEXT NOT NULL DEFAULT '',
    next_steps TEXT NOT NULL DEFAULT '[]',
    until REAL,
    why TEXT NOT NULL DEFAULT '',
    waits_for TEXT,
    lease_owner TEXT,
    lease_expires REAL,
    epoch INTEGER NOT NULL DEFAULT 0,
    claim TEXT,
    pause_asked INTEGER NOT NULL DEFAULT 0,
    cancel_asked INTEGER NOT NULL DEFAULT 0,
    recoveries INTEGER NOT NULL DEFAULT 0,
    draft TEXT NOT NULL,
    system TEXT
, parked_on TEXT);
INSERT INTO "tasks" VALUES('2vfmc0','golden','32a3df8119fdc04d074cd52c50784be1a98363abc15d88739f75a1cfbd3a3a97','coder','{"team":"web"}',0,NULL,'[]','/srv/importer/',1800000000.0,'queued',1800000000.0,NULL,NULL,NULL,'','[]',NULL,'',NULL,NULL,NULL,1,NULL,0,0,0,'{"prompt":"Port the importer","agent":"coder","workspace":"/srv/importer","priority":0,"labels":{"team":"web"},"key":"golden","not_before":null,"after":[],"model":null,"budget":{},"policies":{},"pinned_revision":null}','You port code.',NULL);
CREATE TABLE workspaces (
    root TEXT PRIMARY KEY,
    holder TEXT NOT NULL UNIQUE,
    since REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "workspaces" VALUES('/srv/importer/','2vfmc0',1800000000.0);
CREATE INDEX tasks_queue ON tasks (priority DESC, submitted_at, id) WHERE state = 'queued';
CREATE INDEX tasks_running ON tasks (claim) WHERE state = 'running';
CREATE INDEX tasks_until ON tasks (until) WHERE until IS NOT NULL;
CREATE UNIQUE INDEX nodes_of ON nodes (task, id);
CREATE UNIQUE INDEX effects_of ON effects (task, id);
CREATE INDEX decisions_of ON decisions (task);
CREATE INDEX events_of ON events (task);
CREATE INDEX messages_of ON messages (task);
CREATE UNIQUE INDEX approvals_of ON approvals (task, id);
CREATE INDEX approvals_open ON approvals (seq) WHERE choice IS NULL;
CREATE INDEX tasks_parked ON tasks (parked_on, submitted_at, id) WHERE state = 'parked';
CREATE UNIQUE INDEX outbox_of ON outbox (channel, key);
CREATE UNIQUE INDEX jobs_of ON jobs (task, id);
CREATE INDEX jobs_open ON jobs (seq) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX checkpoints_of ON checkpoints (task, ref);
CREATE INDEX checkpoints_in ON checkpoints (root);
CREATE INDEX restores_open ON restores (seq) WHERE ended_at IS NULL;
CREATE INDEX restores_of ON restores (task);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('messages',1);
INSERT INTO "sqlite_sequence" VALUES('outbox',1);
PRAGMA user_version = 6;
COMMIT;
