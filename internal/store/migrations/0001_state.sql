-- Conversations and their checkpoints. What is read for every one of them at the
-- start stands in tables of its own, away from what is large.

CREATE TABLE conversations (
    id         TEXT PRIMARY KEY,
    parent     TEXT NOT NULL,
    session    TEXT NOT NULL,
    model      TEXT NOT NULL,
    started    INTEGER NOT NULL, -- nanoseconds since 1970, as all times; 0 for none
    used       INTEGER NOT NULL,
    first      BLOB NOT NULL,
    last       BLOB NOT NULL,
    system     BLOB NOT NULL,
    tools      BLOB NOT NULL,
    prints     BLOB NOT NULL,    -- 8 bytes for each message, little-endian
    checkpoint INTEGER NOT NULL, -- that it replays, 0 for none
    numbers    TEXT NOT NULL     -- JSON, what is never searched
);
CREATE INDEX conversations_used ON conversations (used);
CREATE INDEX conversations_checkpoint ON conversations (checkpoint);

-- An id is never given twice: another process's memory may still hold the old one.
CREATE TABLE checkpoints (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL,
    chain        BLOB NOT NULL,
    n            INTEGER NOT NULL
);
CREATE INDEX checkpoints_conversation ON checkpoints (conversation);

CREATE TABLE compactions (
    id      INTEGER PRIMARY KEY, -- the checkpoint's
    parent  INTEGER NOT NULL,    -- the checkpoint that was replayed before, 0 for none
    at      INTEGER NOT NULL,
    summary TEXT NOT NULL,       -- JSON
    entries BLOB NOT NULL        -- packed
);
CREATE INDEX compactions_parent ON compactions (parent);

CREATE TABLE pins (
    conversation TEXT NOT NULL,
    chain        BLOB NOT NULL,
    n            INTEGER NOT NULL,
    raw          BLOB NOT NULL, -- packed
    UNIQUE (conversation, chain)
);

CREATE TABLE turns (
    id           INTEGER PRIMARY KEY,
    conversation TEXT NOT NULL,
    at           INTEGER NOT NULL,
    action       TEXT NOT NULL,
    client       INTEGER NOT NULL,
    forecast     INTEGER NOT NULL,
    prompt       INTEGER NOT NULL,
    cached       INTEGER NOT NULL,
    completion   INTEGER NOT NULL,
    expected     INTEGER NOT NULL,
    miss         TEXT NOT NULL,
    message      INTEGER NOT NULL
);
CREATE INDEX turns_conversation ON turns (conversation, id);

-- The archive. A message is kept as a shell, which is its bytes without the
-- literals that a model reads, and those literals once each: a file that was read
-- ten times is ten shells and one text.

CREATE TABLE originals (
    checkpoint INTEGER NOT NULL, -- that covers it first
    n          INTEGER NOT NULL,
    message    INTEGER NOT NULL,
    tool       TEXT NOT NULL,
    PRIMARY KEY (checkpoint, n)
) WITHOUT ROWID;
CREATE INDEX originals_message ON originals (message);

CREATE TABLE messages (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    key   BLOB NOT NULL UNIQUE, -- of the raw bytes
    role  TEXT NOT NULL,
    shell BLOB NOT NULL         -- packed
);

CREATE TABLE parts (
    message INTEGER NOT NULL,
    at      INTEGER NOT NULL, -- where in the shell the literal goes
    text    INTEGER NOT NULL,
    PRIMARY KEY (message, at)
) WITHOUT ROWID;
CREATE INDEX parts_text ON parts (text);

CREATE TABLE texts (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    key     BLOB NOT NULL UNIQUE, -- of the literal as it stands
    hash    BLOB NOT NULL,        -- SHA-256 of the decoded text
    size    INTEGER NOT NULL,     -- of the decoded text
    indexed INTEGER NOT NULL,     -- 1 once all of it can be found
    data    BLOB NOT NULL         -- the literal, quotes included, packed
);
CREATE INDEX texts_hash ON texts (hash);
CREATE INDEX texts_waiting ON texts (id) WHERE indexed = 0;

-- A long text goes into the index in pieces, each in a transaction of its own.
CREATE TABLE pieces (
    id   INTEGER PRIMARY KEY AUTOINCREMENT, -- the index's rowid
    text INTEGER NOT NULL
);
CREATE INDEX pieces_text ON pieces (text);

CREATE VIRTUAL TABLE search USING fts5 (
    text, content = '', contentless_delete = 1, tokenize = "unicode61 remove_diacritics 0 tokenchars '_'"
);

-- Whatever nothing refers to any more goes with its last reference.

CREATE TRIGGER conversation_gone AFTER DELETE ON conversations BEGIN
    DELETE FROM pins WHERE conversation = old.id;
    DELETE FROM turns WHERE conversation = old.id;
END;

CREATE TRIGGER checkpoint_gone AFTER DELETE ON checkpoints BEGIN
    DELETE FROM compactions WHERE id = old.id;
    DELETE FROM originals WHERE checkpoint = old.id;
END;

CREATE TRIGGER original_gone AFTER DELETE ON originals
WHEN NOT EXISTS (SELECT 1 FROM originals WHERE message = old.message) BEGIN
    DELETE FROM messages WHERE id = old.message;
END;

CREATE TRIGGER message_gone AFTER DELETE ON messages BEGIN
    DELETE FROM parts WHERE message = old.id;
END;

CREATE TRIGGER part_gone AFTER DELETE ON parts
WHEN NOT EXISTS (SELECT 1 FROM parts WHERE text = old.text) BEGIN
    DELETE FROM texts WHERE id = old.text;
END;

CREATE TRIGGER text_gone AFTER DELETE ON texts BEGIN
    DELETE FROM search WHERE rowid IN (SELECT id FROM pieces WHERE text = old.id);
    DELETE FROM pieces WHERE text = old.id;
END;
