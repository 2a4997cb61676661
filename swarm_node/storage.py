"""State that survives a crash: own and received groups, replay windows, counters, known peers.

When a method has returned, its data survives a crash (`database.py`). Any thread may call. Sealed
bytes are stored unparsed. `prune` bounds the file.

Training is at most once: `record_use` is committed before the update, so a crash in between loses
one use of a group and never trains on it twice.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.database import WAL_BYTES, Database, flaw, read_rows
from swarm_node.rollout import Provenance

MAX_ADDRESSES = 16
MAX_LISTED = 1024
MAX_PEERS = 1024
MAX_AUTHORS = 4096
#: Digests of groups that are kept; three of each group.
MAX_DIGESTS = 1 << 16
#: Sealed bytes that are kept.
MAX_STORED_BYTES = 1 << 30
#: Size to which the database may grow, with its journal.
MAX_DATABASE_BYTES = MAX_STORED_BYTES + WAL_BYTES
_GROUP_COLUMNS = "id, author, epoch, seq, provenance, blob, prompt, rewards, arrived, uses"
#: The first layout that has to stay readable. Other tables, or another format of the sealed groups
#: in them, take another number.
LAYOUT = 6
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (
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
);
CREATE INDEX live ON groups (arrival) WHERE NOT retired;
CREATE TABLE log (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, announcement BLOB NOT NULL);
CREATE TABLE windows (
    author TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    high INTEGER NOT NULL,
    bitmap BLOB NOT NULL,
    marked INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX newest_windows ON windows (marked);
CREATE TABLE contents (
    arrival INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, author TEXT NOT NULL
);
CREATE TABLE peers (
    peer_id TEXT PRIMARY KEY,
    addresses TEXT NOT NULL,
    last_seen REAL NOT NULL,
    issuer TEXT NOT NULL DEFAULT '',
    failures INTEGER NOT NULL DEFAULT 0,
    anchor INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
"""
#: Statements that bound the database by the named limits, in this order.
_PRUNE = (
    *(
        f"DELETE FROM groups WHERE {kind} AND arrival <= (SELECT arrival FROM groups "  # noqa: S608 - constants
        f"WHERE {kind} ORDER BY arrival DESC LIMIT 1 OFFSET :{limit})"
        for kind, limit in (("provenance = 'local'", "own"), ("provenance <> 'local'", "received"))
    ),
    "DELETE FROM groups WHERE arrival IN (SELECT arrival FROM (SELECT arrival, "
    "sum(size) OVER (ORDER BY arrival DESC) AS held FROM groups) WHERE held > :bytes)",
    "DELETE FROM log WHERE id NOT IN (SELECT id FROM groups)",
    "DELETE FROM windows WHERE marked <= "
    "(SELECT marked FROM windows ORDER BY marked DESC LIMIT 1 OFFSET :authors)",
    "DELETE FROM contents WHERE arrival <= (SELECT max(arrival) FROM contents) - :digests",
)
_PEERS_QUERY = (
    "SELECT peer_id, addresses, last_seen, issuer, failures, anchor FROM peers "
    "ORDER BY anchor DESC, last_seen DESC, peer_id LIMIT ?"
)
_P = ParamSpec("_P")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as sealed by its author: `id` is the content id of `blob`, (epoch, seq) its place in
    the author's log. `rewards` are those that this node computed. `arrival_version` is this node's
    policy version when it was stored. `uses` counts the updates that began with it. No two stored
    groups have one of their `digests` in common (`p2p/exchange/verify.py`)."""

    id: bytes
    author: str
    epoch: int
    seq: int
    provenance: Provenance
    blob: bytes
    prompt: str
    rewards: tuple[float, ...]
    arrival_version: int
    uses: int = 0
    digests: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowRow:
    """The replay window of an author: its greatest epoch, the newest sequence number seen there,
    and a bitmap of the numbers before it."""

    author: str
    epoch: int
    high: int
    bitmap: bytes


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


class Storage(Database):
    """One node's database."""

    def __init__(
        self,
        path: Path,
        *,
        wall: Callable[[], float] = SYSTEM_CLOCK.wall,
        threads: bool = True,
    ) -> None:
        """Open the database at `path`, or make a new one with mode 0600.

        Args:
            wall: Unix seconds, for the epoch of a new database.
            threads: `run` uses a thread. False in a simulation on a virtual clock.

        Raises:
            HomeError: see `Database`.
        """
        super().__init__(path, _TABLES, layout=LAYOUT, program="swarm-node")
        self._wall = wall
        self._threads = threads
        if not self._meta("epoch"):
            with self._transaction() as db:
                _set_meta(db, "epoch", int(wall() * 1000))
        #: The epoch of this node's log.
        self.epoch = self._meta("epoch")
        self._head = self._meta("head")
        #: Number of damaged rows that were set aside, as "storage".
        self.faults: Counter[str] = Counter()

    async def run(
        self, function: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs
    ) -> _Result:
        """Call one of the methods below without blocking the event loop for the disk."""
        if self._threads:
            return await asyncio.to_thread(function, *args, **kwargs)
        return function(*args, **kwargs)

    def begin_epoch(self) -> None:
        """Start a greater epoch, with an empty log; a node does it at every start. A database
        cannot tell that it is an older copy, and a node that continued one would sign used numbers
        again. Groups of earlier epochs stay stored and are still served."""
        with self._transaction() as db:
            _set_meta(db, "earlier", self.published_count())
            _set_meta(db, "head", 0)
            _set_meta(db, "epoch", max(self.epoch + 1, int(self._wall() * 1000)))
            db.execute("DELETE FROM log")
        self.epoch, self._head = self._meta("epoch"), 0

    def published_count(self) -> int:
        """Number of groups that this node has published, in all epochs."""
        return self._meta("earlier") + self.head()

    def next_seq(self) -> int:
        """The sequence number that the next published group must bear; numbers start at 1."""
        return self.head() + 1

    def head(self) -> int:
        """The newest sequence number published in this epoch, 0 if none."""
        return self._head

    def publish(self, entries: Sequence[tuple[StoredGroup, bytes | None]]) -> None:
        """Store own groups and append their sealed announcements to the log, all or none. A group
        without an announcement uses up its number and is not in the log.

        Raises:
            ValueError: the numbers do not continue this epoch's log without a gap.
        """
        with self._lock:
            seq = self._head
            with self._transaction() as db:
                for seq, (row, _) in enumerate(entries, start=self.next_seq()):
                    if (row.epoch, row.seq) != (self.epoch, seq):
                        raise ValueError(f"group {row.epoch}/{row.seq} cannot follow in the log")
                _insert(db, [row for row, _ in entries])
                log_rows = [
                    (row.seq, row.id, announcement)
                    for row, announcement in entries
                    if announcement is not None
                ]
                db.executemany("INSERT INTO log VALUES (?, ?, ?)", log_rows)
                _set_meta(db, "head", seq)
            self._head = seq  # no earlier: it is on the disk now

    def announcements(
        self, epoch: int, last_seq: int, limit: int
    ) -> tuple[int, int, int, tuple[bytes, ...]]:
        """This log's epoch, its newest number, the number of announcements that the limit left out,
        and the newest `limit` sealed announcements with numbers above `last_seq`, oldest first. If
        `epoch` is not this log's, `last_seq` counts as 0."""
        start_seq = last_seq if epoch == self.epoch else 0
        max_rows = max(0, min(limit, MAX_LISTED))
        with self._lock:
            total = self._rows("SELECT count(*) FROM log WHERE seq > ?", start_seq)[0][0]
            rows = self._rows(
                "SELECT announcement FROM log WHERE seq > ? ORDER BY seq DESC LIMIT ?",
                start_seq,
                max_rows,
            )
            items = tuple(row[0] for row in reversed(rows))
            return self.epoch, self.head(), total - len(items), items

    def blob(self, identifier: bytes) -> bytes | None:
        """The sealed bytes of a group, own or received, None if they are not stored (any more)."""
        rows = self._rows("SELECT blob FROM groups WHERE id = ?", identifier)
        return rows[0][0] if rows else None

    def accept(self, row: StoredGroup, window: WindowRow) -> bool:
        """Store a verified group and its author's window in one transaction, so that no restart
        can admit it again. False, and nothing stored, if a group with its id or one of its digests
        is stored."""
        with self._transaction() as db:
            duplicate = db.execute("SELECT 1 FROM groups WHERE id = ?", (row.id,)).fetchone()
            if duplicate or self.authors_of(*row.digests):
                return False
            _insert(db, [row])
            _put_window(db, window)
        return True

    def authors_of(self, *digests: bytes) -> dict[bytes, str]:
        """The author of each group that is among the newest ones, by its digest."""
        marks = ", ".join("?" * len(digests))
        query = f"SELECT digest, author FROM contents WHERE digest IN ({marks})"  # noqa: S608 - marks
        return dict(self._rows(query, *digests))

    def save_window(self, window: WindowRow) -> None:
        """Replace the author's window, after a group that is not kept."""
        with self._transaction() as db:
            _put_window(db, window)

    def windows(self) -> list[WindowRow]:
        """All authors' windows, the one marked last at the end."""
        query = "SELECT author, epoch, high, bitmap FROM windows ORDER BY marked"
        return [WindowRow(*row) for row in self._rows(query)]

    def record_use(self, identifiers: Sequence[bytes]) -> None:
        """Count one use of each group; call it before training on them."""
        self._mark("UPDATE groups SET uses = uses + 1 WHERE id = ?", identifiers)

    def retire(self, identifiers: Sequence[bytes]) -> None:
        """Keep these groups for serving only, never again for training."""
        self._mark("UPDATE groups SET retired = 1 WHERE id = ?", identifiers)

    def live(self, max_uses: int) -> list[StoredGroup]:
        """Groups that are not retired and were used fewer than `max_uses` times, oldest first."""
        rows = self._rows(
            f"SELECT {_GROUP_COLUMNS} FROM groups WHERE NOT retired AND uses < ? ORDER BY arrival",  # noqa: S608 - constants
            max_uses,
        )
        groups = []
        for row in rows:
            try:
                groups.append(_group(row))
            except (ValueError, TypeError):
                self.forget(row[0])
        return groups

    def forget(self, identifier: bytes) -> None:
        """Delete a group whose row is damaged, and count a fault."""
        self._mark("DELETE FROM groups WHERE id = ?", [identifier])
        self.record_damaged_row(f"the group {bytes(identifier).hex()} is deleted")

    def record_damaged_row(self, action: str) -> None:
        """Count a damaged row, and log the `action` taken."""
        import structlog  # short commands, which import this module, log nothing

        self.faults["storage"] += 1
        log = structlog.get_logger(__name__)
        log.warning("a row of the database is damaged: check the disk", action=action)

    def counter(self, name: str) -> int:
        """The value of a counter, 0 if it was never advanced."""
        return self._meta(f"counter:{name}")

    def advance(self, name: str, count: int) -> int:
        """Reserve `count` numbers of a counter and return the first. No number is reserved twice.

        Raises:
            ValueError: a negative count.
        """
        if count < 0:
            raise ValueError("a counter only goes up")
        with self._transaction() as db:
            first = self.counter(name)
            _set_meta(db, f"counter:{name}", first + count)
        return first

    def prune(
        self, keep_log: int, keep_received: int = 1024, max_bytes: int = MAX_STORED_BYTES
    ) -> None:
        """Delete all but the newest: `keep_log` own groups with their announcements,
        `keep_received` received groups, and `max_bytes` of sealed bytes in all. The replay windows
        of the MAX_AUTHORS marked last stay, so a deleted group is not admitted again."""
        limits = {
            **{"own": keep_log, "received": keep_received, "bytes": max_bytes},
            **{"authors": MAX_AUTHORS, "digests": MAX_DIGESTS},
        }
        with self._transaction() as db:
            for statement in _PRUNE:
                db.execute(statement, limits)

    def remember_peers(self, peers: Sequence[KnownPeer]) -> None:
        """Store these peers in place of those stored before; the MAX_PEERS last seen are kept."""
        recent_peers = sorted(peers, key=lambda peer: (-peer.last_seen, peer.peer_id))[:MAX_PEERS]
        with self._transaction() as db:
            db.execute("DELETE FROM peers")
            db.executemany(
                "INSERT INTO peers VALUES (?, ?, ?, ?, ?, ?)", map(_peer_row, recent_peers)
            )

    def known_peers(self, limit: int) -> list[KnownPeer]:
        """Up to `limit` stored peers: anchors first, then the last seen first."""
        peers = []
        for row in self._rows(_PEERS_QUERY, limit):
            try:
                peers.append(_peer_of(row))
            except (ValueError, TypeError):
                self._mark("DELETE FROM peers WHERE peer_id = ?", [row[0]])
                self.record_damaged_row(f"the peer {row[0]!r} is forgotten")
        return peers

    def _meta(self, key: str) -> int:
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return int(rows[0][0]) if rows else 0

    def _mark(self, statement: str, identifiers: Sequence[bytes | str]) -> None:
        with self._transaction() as db:
            db.executemany(statement, [(identifier,) for identifier in identifiers])


def _insert(db: sqlite3.Connection, rows: Sequence[StoredGroup]) -> None:
    marks = ", ".join("?" * (_GROUP_COLUMNS.count(",") + 2))
    db.executemany(
        f"INSERT INTO groups ({_GROUP_COLUMNS}, size) VALUES ({marks})",  # noqa: S608 - constants
        [
            (
                *(row.id, row.author, row.epoch, row.seq, row.provenance.value, row.blob),
                *(row.prompt, array("d", row.rewards).tobytes(), row.arrival_version, row.uses),
                len(row.blob),
            )
            for row in rows
        ],
    )
    db.executemany(
        "INSERT OR IGNORE INTO contents (digest, author) VALUES (?, ?)",
        [(digest, row.author) for row in rows for digest in row.digests],
    )


def _group(row: Sequence[Any]) -> StoredGroup:
    identifier, author, epoch, seq, provenance, blob, prompt, rewards, arrival, uses = row
    return StoredGroup(
        *(identifier, author, epoch, seq, Provenance(provenance), blob, prompt),
        rewards=tuple(array("d", rewards)),
        arrival_version=arrival,
        uses=uses,
    )


def _put_window(db: sqlite3.Connection, window: WindowRow) -> None:
    db.execute(
        "REPLACE INTO windows SELECT ?, ?, ?, ?, coalesce(max(marked), 0) + 1 FROM windows",
        (window.author, window.epoch, window.high, window.bitmap),
    )


def _set_meta(db: sqlite3.Connection, key: str, value: int) -> None:
    db.execute("REPLACE INTO meta VALUES (?, ?)", (key, value))


def _peer_row(peer: KnownPeer) -> tuple[Any, ...]:
    """The columns of `peer`, with at most MAX_ADDRESSES addresses."""
    addresses = json.dumps(peer.addresses[:MAX_ADDRESSES])
    return peer.peer_id, addresses, peer.last_seen, peer.issuer, peer.failures, peer.anchor


def _peer_of(row: Sequence[Any]) -> KnownPeer:
    """
    Raises:
        ValueError, TypeError: the row is damaged.
    """
    peer_id, raw, last_seen, issuer, failures, anchor = row
    addresses = tuple(map(str, json.loads(raw)))
    return KnownPeer(peer_id, addresses, float(last_seen), issuer, int(failures), bool(anchor))


def stored_peers(path: Path, limit: int) -> list[KnownPeer]:
    """Peers in the database of a node that does not run, without writing. Its start forgets damaged
    rows, which are left out here.

    Raises:
        HomeError: see `read_rows`.
    """
    peers = []
    for row in read_rows(path, LAYOUT, _PEERS_QUERY, limit) if path.exists() else ():
        with suppress(ValueError, TypeError):
            peers.append(_peer_of(row))
    return peers


def database_flaw(path: Path) -> tuple[Literal["empty", "damaged", "newer"], str] | None:
    """Check a node's database without writing. See `database.flaw`."""
    return flaw(path, _TABLES, LAYOUT)
