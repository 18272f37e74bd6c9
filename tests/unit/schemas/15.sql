BEGIN TRANSACTION;
CREATE TABLE approvals (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL,
        name        TEXT NOT NULL,
        digest      TEXT NOT NULL,
        command     TEXT NOT NULL,
        class       TEXT NOT NULL,
        why         TEXT NOT NULL,
        actor       TEXT NOT NULL,
        created_at  REAL NOT NULL,
        expires_at  REAL NOT NULL,
        state       TEXT NOT NULL,
        decided_at  REAL,
        note        TEXT NOT NULL DEFAULT ''
    );
CREATE TABLE blobs (
        hash        TEXT PRIMARY KEY,
        size        INTEGER NOT NULL,
        data        BLOB NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE cards (
        checkpoint  TEXT PRIMARY KEY REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        card        TEXT NOT NULL
    );
INSERT INTO "cards" VALUES('c00000000001',1.79512414680880188948e+09,'{"summary": "+1 file"}');
CREATE TABLE checkpoints (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        number      INTEGER NOT NULL,
        name        TEXT,
        intent      TEXT NOT NULL,
        kind        TEXT NOT NULL CHECK (kind IN ('manual', 'safety', 'park', 'auto')),
        parent      TEXT,
        created_at  REAL NOT NULL,
        pause_ms    REAL NOT NULL,
        total_ms    REAL NOT NULL,
        size_bytes  INTEGER NOT NULL,
        processes   INTEGER NOT NULL,
        files_only  INTEGER NOT NULL,
        coverage    TEXT NOT NULL, actor TEXT NOT NULL DEFAULT 'person', intent_from TEXT NOT NULL DEFAULT 'given', pinned INTEGER NOT NULL DEFAULT 0, summary TEXT, position INTEGER, tasks TEXT NOT NULL DEFAULT '[]', agent_state TEXT REFERENCES blobs(hash), agent_state_kind TEXT, agent_version TEXT, durable INTEGER NOT NULL DEFAULT 0, restorable TEXT NOT NULL DEFAULT 'unproven', restore_error TEXT, digest TEXT, damage TEXT, platform TEXT, cost INTEGER, cost_stale INTEGER NOT NULL DEFAULT 1,
        UNIQUE (session, number),
        UNIQUE (session, name)
    );
INSERT INTO "checkpoints" VALUES('c00000000001','aaaaaaaaaaaa',1,'start','because','manual',NULL,1.7951241468080720901e+09,4.2,31.0,866304,2,0,'[]','person','given',0,'+1 file',1,'[]',NULL,NULL,NULL,0,'unproven',NULL,NULL,NULL,'{"architecture":"x86_64","kernel":"6.18.0","criu":"4.2.1"}',NULL,1);
INSERT INTO "checkpoints" VALUES('c00000000002','aaaaaaaaaaaa',2,NULL,'and on','manual','c00000000001',1.79512414680851912496e+09,4.2,31.0,866304,2,0,'[]','person','given',0,NULL,2,'[]',NULL,NULL,NULL,0,'unproven',NULL,NULL,NULL,'{"architecture":"x86_64","kernel":"6.18.0","criu":"4.2.1"}',NULL,1);
CREATE TABLE contacts (
        id          INTEGER PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        box         TEXT NOT NULL,
        point       TEXT,
        address     TEXT NOT NULL,
        protocol    TEXT NOT NULL,
        port        INTEGER NOT NULL,
        names       TEXT NOT NULL,
        first_at    REAL NOT NULL,
        last_at     REAL NOT NULL,
        bytes_out   INTEGER NOT NULL,
        bytes_in    INTEGER NOT NULL
    );
CREATE TABLE counted (
        box         TEXT NOT NULL,
        address     TEXT NOT NULL,
        protocol    TEXT NOT NULL,
        port        INTEGER NOT NULL,
        bytes_out   INTEGER NOT NULL,
        bytes_in    INTEGER NOT NULL,
        at          REAL NOT NULL,
        PRIMARY KEY (box, address, protocol, port)
    ) WITHOUT ROWID;
CREATE TABLE effects (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        session     TEXT NOT NULL,
        name        TEXT NOT NULL,
        at          REAL NOT NULL,
        command     TEXT NOT NULL,
        class       TEXT NOT NULL,
        rule        TEXT NOT NULL DEFAULT '',
        target      TEXT NOT NULL DEFAULT '',
        key         TEXT NOT NULL DEFAULT '',
        compensate  TEXT NOT NULL DEFAULT '',
        source      TEXT NOT NULL,
        state       TEXT NOT NULL,
        exit_code   INTEGER,
        actor       TEXT NOT NULL DEFAULT 'person',
        approval    TEXT,
        details     TEXT NOT NULL DEFAULT '{}'
    );
CREATE TABLE events (
        id          INTEGER PRIMARY KEY AUTOINCREMENT,
        session     TEXT NOT NULL,
        parent      INTEGER,
        at          REAL NOT NULL,
        kind        TEXT NOT NULL,
        actor       TEXT NOT NULL DEFAULT 'person',
        body        TEXT NOT NULL,
        blob        TEXT REFERENCES blobs(hash)
    );
INSERT INTO "events" VALUES(1,'aaaaaaaaaaaa',NULL,1.79512414680820798877e+09,'checkpoint','person','{"checkpoint":"c00000000001","label":"c1","name":"start","intent":"because","intent_from":"given","kind":"manual","agent_state":false}',NULL);
INSERT INTO "events" VALUES(2,'aaaaaaaaaaaa',1,1.79512414680857467644e+09,'checkpoint','person','{"checkpoint":"c00000000002","label":"c2","name":null,"intent":"and on","intent_from":"given","kind":"manual","agent_state":false}',NULL);
INSERT INTO "events" VALUES(3,'bbbbbbbbbbbb',1,1.79512414680891633036e+09,'forked','person','{"checkpoint":"c00000000001","session":"work","label":"c1","name":"start"}',NULL);
INSERT INTO "events" VALUES(4,'aaaaaaaaaaaa',1,1.79512414680902266501e+09,'restored','person','{"verb":"restore","before":"c00000000002","checkpoint":"c00000000001","session":"work","label":"c1","name":"start"}',NULL);
CREATE TABLE forgotten (
        checkpoint  TEXT PRIMARY KEY,
        at          REAL NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE forwards (
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        port        INTEGER NOT NULL,
        address     TEXT NOT NULL,
        local_port  INTEGER NOT NULL,
        problem     TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (address, local_port)
    ) WITHOUT ROWID;
CREATE TABLE handed_over (
        checkpoint  TEXT PRIMARY KEY REFERENCES checkpoints(id) ON DELETE CASCADE
    ) WITHOUT ROWID;
CREATE TABLE landed (
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        path        BLOB NOT NULL,
        stamp       TEXT NOT NULL,
        PRIMARY KEY (session, path)
    );
CREATE TABLE notes (
        id          INTEGER PRIMARY KEY,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        text        TEXT NOT NULL
    );
INSERT INTO "notes" VALUES(1,'c00000000001',1.79512414680877804753e+09,'a note');
CREATE TABLE operations (
        id          INTEGER PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        verb        TEXT NOT NULL,
        target      TEXT,
        before      TEXT,
        undone      INTEGER NOT NULL DEFAULT 0
    , head TEXT);
INSERT INTO "operations" VALUES(1,'aaaaaaaaaaaa',1.79512414680899810796e+09,'restore','c00000000001','c00000000002',0,NULL);
CREATE TABLE plans (
        id          TEXT PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        target      TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        ground      TEXT NOT NULL
    );
CREATE TABLE sessions (
        id          TEXT PRIMARY KEY,
        name        TEXT NOT NULL UNIQUE,
        state       TEXT NOT NULL CHECK (state IN ('live', 'parked', 'dead')),
        created_at  REAL NOT NULL,
        options     TEXT NOT NULL,
        head        TEXT,
        forked_from TEXT,
        box         TEXT,
        points      INTEGER NOT NULL DEFAULT 0
    , auto INTEGER NOT NULL DEFAULT 0, began TEXT, tip INTEGER, tasks TEXT NOT NULL DEFAULT '[]', policy TEXT, beginning TEXT);
INSERT INTO "sessions" VALUES('aaaaaaaaaaaa','work','live',1.7951241468075251579e+09,'{"base":"/","net":"none","hide":[],"binds":[],"memory_bytes":null,"cpus":null,"pids":null,"confined":true,"build":false,"spares":null,"user":null,"env":{},"cwd":null}','c00000000001',NULL,'b00000000003',2,0,NULL,4,'[]',NULL,NULL);
INSERT INTO "sessions" VALUES('bbbbbbbbbbbb','other','live',1.79512414680884718892e+09,'{"base":"/","net":"none","hide":[],"binds":[],"memory_bytes":null,"cpus":null,"pids":null,"confined":true,"build":false,"spares":null,"user":null,"env":{},"cwd":null}','c00000000001','c00000000001','b00000000002',0,0,NULL,3,'[]',NULL,NULL);
CREATE TABLE tags (
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        name        TEXT NOT NULL,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        PRIMARY KEY (session, name)
    );
INSERT INTO "tags" VALUES('aaaaaaaaaaaa','best','c00000000001');
CREATE TABLE verdicts (
        id          INTEGER PRIMARY KEY,
        checkpoint  TEXT NOT NULL REFERENCES checkpoints(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        command     TEXT NOT NULL,
        state       TEXT NOT NULL,
        exit_code   INTEGER,
        duration_ms REAL,
        output      TEXT NOT NULL DEFAULT ''
    );
INSERT INTO "verdicts" VALUES(1,'c00000000001',1.79512414680868148805e+09,'true','passed',0,1.0,'');
CREATE INDEX operations_by_session ON operations (session, id);
CREATE INDEX tags_by_checkpoint ON tags (checkpoint);
CREATE INDEX events_by_session ON events (session, id);
CREATE INDEX events_by_blob ON events (blob) WHERE blob IS NOT NULL;
CREATE INDEX checkpoints_by_state ON checkpoints (agent_state) WHERE agent_state IS NOT NULL;
CREATE INDEX contacts_by_session ON contacts (session, last_at);
CREATE INDEX contacts_by_point ON contacts (point);
CREATE INDEX effects_by_session ON effects (session, id);
CREATE INDEX effects_by_key ON effects (key, id) WHERE key != '';
CREATE INDEX events_of_effects ON events (json_extract(body, '$.effect')) WHERE kind = 'effect';
CREATE INDEX approvals_by_state ON approvals (state, created_at);
CREATE INDEX verdicts_by_checkpoint ON verdicts (checkpoint, id);
CREATE INDEX forwards_by_session ON forwards (session, port);
COMMIT;
PRAGMA user_version=15;
