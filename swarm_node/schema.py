"""The tables of a node's database, from version to version."""

from __future__ import annotations

#: Statements that migrate schema version i to i + 1. A released one is never edited.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        """CREATE TABLE groups (
            arrival INTEGER PRIMARY KEY AUTOINCREMENT,
            id BLOB NOT NULL UNIQUE,
            author TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            seq INTEGER NOT NULL,
            provenance TEXT NOT NULL,
            prompt TEXT NOT NULL,
            rewards BLOB NOT NULL,
            arrived INTEGER NOT NULL,
            uses INTEGER NOT NULL DEFAULT 0,
            retired INTEGER NOT NULL DEFAULT 0,
            size INTEGER NOT NULL,
            blob BLOB NOT NULL
        )""",
        "CREATE INDEX live ON groups (arrival) WHERE NOT retired",
        "CREATE TABLE log (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, announcement BLOB NOT NULL)",
        """CREATE TABLE windows (
            author TEXT PRIMARY KEY,
            epoch INTEGER NOT NULL,
            high INTEGER NOT NULL,
            bitmap BLOB NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE peers (
            peer_id TEXT PRIMARY KEY,
            addresses TEXT NOT NULL,
            last_seen REAL NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        "ALTER TABLE peers ADD COLUMN issuer TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE peers ADD COLUMN failures INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE peers ADD COLUMN anchor INTEGER NOT NULL DEFAULT 0",
    ),
)
