"""The tables of the database, a row of known peers, and what the database's errors mean."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

MAX_ADDRESSES = 16

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
        "ALTER TABLE windows ADD COLUMN marked INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX newest_windows ON windows (marked)",
    ),
    (
        """CREATE TABLE contents (
            arrival INTEGER PRIMARY KEY AUTOINCREMENT,
            digest BLOB NOT NULL UNIQUE,
            author TEXT NOT NULL
        )""",
    ),
    (
        "ALTER TABLE peers ADD COLUMN issuer TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE peers ADD COLUMN failures INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE peers ADD COLUMN anchor INTEGER NOT NULL DEFAULT 0",
    ),
)

#: Statements that bound the database by the named limits, in this order.
PRUNE = (
    *(
        f"DELETE FROM groups WHERE {kind} AND arrival <= (SELECT arrival FROM groups "  # noqa: S608 - constants
        f"WHERE {kind} ORDER BY arrival DESC LIMIT 1 OFFSET :{limit})"
        for kind, limit in (("provenance = 'own'", "own"), ("provenance <> 'own'", "received"))
    ),
    "DELETE FROM groups WHERE arrival IN (SELECT arrival FROM (SELECT arrival, "
    "sum(size) OVER (ORDER BY arrival DESC) AS held FROM groups) WHERE held > :bytes)",
    "DELETE FROM log WHERE id NOT IN (SELECT id FROM groups)",
    "DELETE FROM windows WHERE marked <= "
    "(SELECT marked FROM windows ORDER BY marked DESC LIMIT 1 OFFSET :authors)",
    "DELETE FROM contents WHERE arrival <= (SELECT max(arrival) FROM contents) - :digests",
)


PEERS_QUERY = (
    "SELECT peer_id, addresses, last_seen, issuer, failures, anchor FROM peers "
    "ORDER BY anchor DESC, last_seen DESC, peer_id LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """A peer that answered this node, with its addresses and the issuer that admits it. `last_seen`
    is in Unix seconds; `failures` counts failed attempts since then. At its start the node tries
    anchors first."""

    peer_id: str
    addresses: tuple[str, ...]
    last_seen: float
    issuer: str = ""
    failures: int = 0
    anchor: bool = False


def to_row(peer: KnownPeer) -> tuple[Any, ...]:
    """The columns of `peer`, with at most MAX_ADDRESSES addresses."""
    addresses = json.dumps(peer.addresses[:MAX_ADDRESSES])
    return peer.peer_id, addresses, peer.last_seen, peer.issuer, peer.failures, peer.anchor


def from_row(row: Sequence[Any]) -> KnownPeer:
    """
    Raises:
        ValueError, TypeError: the row is damaged.
    """
    peer_id, raw, seen, issuer, failures, anchor = row
    addresses = tuple(map(str, json.loads(raw)))
    return KnownPeer(peer_id, addresses, float(seen), issuer, int(failures), bool(anchor))


def explain(path: Path, error: sqlite3.Error | OSError) -> str:
    """Explain an error in one line for the person who runs the node."""
    # The low byte is the primary result code; the rest says where it happened.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return f"no space left for {path}: free some, nothing stored so far is lost"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return (
                f"{path} is damaged ({error}): move it away and start again; key, membership and "
                "checkpoints are in other files"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"{path} is in use by another process: stop that one first"
        case _:
            return f"cannot use the database {path} ({error}): check the disk and its permissions"


def database_fault(path: Path) -> tuple[Literal["empty", "damaged", "older", "newer"], str] | None:
    """Check a database without writing: its version first, then its tables, then every page. Return
    its flaw with details; None if it is sound. No trigger or view of a stranger is run."""
    if not path.stat().st_size:
        return "empty", ""
    try:
        with closing(read_only(path)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > len(MIGRATIONS):
                return "newer", f"version {version}"
            if 0 < version < len(MIGRATIONS):
                return "older", f"version {version}"
            if version < 1 or _objects(database) != _own_objects():
                return "damaged", "its tables are not those of this program"
            (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
            return None if said == "ok" else ("damaged", str(said)[:200])
    except sqlite3.Error as error:
        return "damaged", str(error)[:200]


def read_only(path: Path) -> sqlite3.Connection:
    """Open a database without writing."""
    # Without a journal nobody has it open, and a reader need not make one.
    journal = path.with_name(f"{path.name}-wal").exists()
    name = f"{path.absolute().as_uri()}?{'mode=ro' if journal else 'immutable=1'}"
    return sqlite3.connect(name, uri=True, timeout=30)


def _objects(database: sqlite3.Connection) -> set[tuple[str, str, str | None]]:
    """The tables, indices, triggers and views of a database."""
    return set(database.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(1000))


def _own_objects() -> set[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as database:
        for statements in MIGRATIONS:
            for statement in statements:
                database.execute(statement)
        return _objects(database)
