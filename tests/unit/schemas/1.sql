BEGIN TRANSACTION;
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
        coverage    TEXT NOT NULL,
        UNIQUE (session, number),
        UNIQUE (session, name)
    );
INSERT INTO "checkpoints" VALUES('c00000000001','aaaaaaaaaaaa',1,'start','because','manual',NULL,1763283602.0,4.2,31.0,866304,2,0,'[]');
INSERT INTO "checkpoints" VALUES('c00000000002','aaaaaaaaaaaa',2,NULL,'and on','manual','c00000000001',1763283603.0,4.2,31.0,866304,2,0,'[]');
CREATE TABLE operations (
        id          INTEGER PRIMARY KEY,
        session     TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        at          REAL NOT NULL,
        verb        TEXT NOT NULL,
        target      TEXT,
        before      TEXT,
        undone      INTEGER NOT NULL DEFAULT 0
    );
INSERT INTO "operations" VALUES(1,'aaaaaaaaaaaa',1763283605.0,'restore','c00000000001','c00000000002',0);
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
    );
INSERT INTO "sessions" VALUES('aaaaaaaaaaaa','work','live',1763283601.0,'{"base":"/","net":"none","hide":[],"binds":[],"memory_bytes":null,"cpus":null,"pids":null,"confined":true}','c00000000001',NULL,'b00000000003',2);
INSERT INTO "sessions" VALUES('bbbbbbbbbbbb','other','live',1763283604.0,'{"base":"/","net":"none","hide":[],"binds":[],"memory_bytes":null,"cpus":null,"pids":null,"confined":true}','c00000000001','c00000000001','b00000000002',0);
CREATE INDEX operations_by_session ON operations (session, id);
COMMIT;
PRAGMA user_version=1;
