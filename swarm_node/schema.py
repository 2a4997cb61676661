"""The tables of the database, a row of known peers, and what the database's errors mean."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm_node.errors import is_full

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


def passes(error: sqlite3.Error | OSError) -> bool:
    """Check that a later call may succeed. A full disk stays full, and a damaged file damaged,
    until a person acts."""
    lasting = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return not is_full(error) and getattr(error, "sqlite_errorcode", 0) & 0xFF not in lasting


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
