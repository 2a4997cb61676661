"""Database that survives a restart: certificates and reports of members, batches, codes and
tickets.

One process writes, and another one can still read, as `back_up` does. One thread runs every
statement, so calls never interleave, and the event loop never waits for the disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import msgspec

from swarm_node.database import Database
from swarm_node.durable import create_private, make_private, sync
from swarm_node.errors import HomeError, Rejected, words_of
from swarm_node.p2p.coordinator.coordinator_api import MAX_BATCHES, CodeRow, ReportRow
from swarm_node.p2p.membership.ticket import parse_ticket

#: Limits of rows of history, batches, and members with a report.
MAX_HISTORY: Final = 500_000
KEPT_BATCHES: Final = 10_000
MAX_MEMBERS: Final = 4096
#: Older history keeps one row per hour and member.
_THIN_AFTER_SECONDS = 86_400.0
#: The files of a coordinator beside its database that a new start does not make anew.
_SMALL_FILES = ("coordinator.key", "revoked")
_TABLES = """
CREATE TABLE members (
    peer_id TEXT PRIMARY KEY, issuer BLOB NOT NULL, member BLOB NOT NULL, seen REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE reports (
    peer_id TEXT PRIMARY KEY, at REAL NOT NULL, sealed BLOB NOT NULL, batch INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, peer_id TEXT NOT NULL,
    version INTEGER NOT NULL, eval_reward REAL, sampled INTEGER NOT NULL,
    accepted INTEGER NOT NULL, trained_local INTEGER NOT NULL, trained_external INTEGER NOT NULL,
    issuer TEXT NOT NULL
);
CREATE INDEX history_at ON history (at);
CREATE TABLE batches (number INTEGER PRIMARY KEY, sealed BLOB NOT NULL);
CREATE TABLE trusted (who TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE codes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, name TEXT NOT NULL,
    uses INTEGER NOT NULL, left INTEGER NOT NULL, expires INTEGER NOT NULL,
    withdrawn INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE tickets (
    key TEXT PRIMARY KEY, text TEXT NOT NULL, expires INTEGER NOT NULL,
    code INTEGER, newcomer BLOB
) WITHOUT ROWID;
"""
_HISTORY = (
    "id, at, peer_id, version, eval_reward, sampled, accepted, trained_local, trained_external"
)
_P = ParamSpec("_P")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member that was here: its certificates, when it was last seen (Unix seconds), and its
    newest sealed report with the time of its arrival, if it left one."""

    peer_id: str
    chain: tuple[bytes, bytes]
    seen_at: float
    reported_at: float = 0.0
    report: bytes | None = None


class Store(Database):
    """The database. Every method but `run` and `close` is called through `run`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _TABLES, layout=2, program="swarm-coordinator", exclusive=True)
        self._thread = ThreadPoolExecutor(1, "store")

    async def run(
        self, method: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs
    ) -> _Result:
        """Call one of the methods below on the thread of the store."""
        call = partial(method, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        self._thread.shutdown()
        super().close()

    def members(self) -> list[StoredMember]:
        """All, the one that was here last at the end."""
        rows = self._rows(
            "SELECT m.peer_id, issuer, member, seen, at, sealed FROM members m "
            "LEFT JOIN reports r ON r.peer_id = m.peer_id ORDER BY seen"
        )
        return [
            StoredMember(peer_id, (issuer, member), seen_at, at or 0.0, raw_report)
            for peer_id, issuer, member, seen_at, at, raw_report in rows
        ]

    def see(self, members: Iterable[StoredMember]) -> None:
        """Keep the certificates of members that are here now."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?)",
                [(member.peer_id, *member.chain, member.seen_at) for member in members],
            )

    def report(self, peer_id: str, raw_report: bytes, row: ReportRow, issuer: str) -> None:
        """Store a member's newest report, in the place of the last, and its row of history."""
        with self._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO reports VALUES (?, ?, ?, 0)", (peer_id, row.at, raw_report)
            )
            db.execute(
                f"INSERT INTO history ({_HISTORY}, issuer) "  # noqa: S608 - constants
                "VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*msgspec.structs.astuple(row)[1:], issuer),
            )

    def report_of(self, peer_id: str) -> bytes | None:
        """The newest report of a member, sealed."""
        rows = self._rows("SELECT sealed FROM reports WHERE peer_id = ?", peer_id)
        return rows[0][0] if rows else None

    def waiting(self) -> list[tuple[str, bytes]]:
        """Author and sealed bytes of the reports that are in no batch yet."""
        return self._rows("SELECT peer_id, sealed FROM reports WHERE batch = 0")

    def add_batch(self, number: int, batch: bytes, reports: Sequence[tuple[str, bytes]]) -> None:
        """Store a batch of `reports` that were `waiting`, and drop batches that are too old."""
        with self._transaction() as db:
            db.execute("INSERT INTO batches VALUES (?, ?)", (number, batch))
            db.executemany(
                "UPDATE reports SET batch = ? WHERE peer_id = ? AND sealed = ?",
                [(number, *report) for report in reports],
            )
            db.execute("DELETE FROM batches WHERE number <= ?", (number - KEPT_BATCHES,))

    def batches(self, start: int) -> list[bytes]:
        """The sealed batches from number `start` on, MAX_BATCHES at most; the newest if that is
        lower."""
        rows = self._rows(
            "SELECT sealed FROM batches WHERE number >= min(?, (SELECT max(number) FROM batches)) "
            "ORDER BY number LIMIT ?",
            start,
            MAX_BATCHES,
        )
        return [row[0] for row in rows]

    def last_batch(self) -> bytes | None:
        rows = self._rows("SELECT sealed FROM batches ORDER BY number DESC LIMIT 1")
        return rows[0][0] if rows else None

    def history(self, last_id: int, start_time: float, limit: int) -> list[ReportRow]:
        """Rows above id `last_id` that came at `start_time` (Unix seconds) or later."""
        rows = self._rows(
            # The row to begin with is found by time: a walk over all takes a tenth of a second.
            f"SELECT {_HISTORY} FROM history WHERE at >= ? AND id >= max(? + 1, "  # noqa: S608 - constants
            "ifnull((SELECT id FROM history WHERE at >= ? ORDER BY at LIMIT 1), 1 << 62)) "
            "ORDER BY id LIMIT ?",
            *(start_time, last_id, start_time, limit),
        )
        return [ReportRow(*row) for row in rows]

    def tidy(self, wall: float, removed_ids: Sequence[str]) -> None:
        """Thin out the history, and forget the members `removed_ids`. If the history is too long,
        delete the oldest rows of the issuers with the most, with room for the next ticks."""
        with self._transaction() as db:
            db.execute(
                "DELETE FROM history WHERE at < ? AND id NOT IN (SELECT max(id) FROM history "
                "WHERE at < ? GROUP BY peer_id, CAST(at / 3600 AS INTEGER))",
                (wall - _THIN_AFTER_SECONDS,) * 2,
            )
            (count,) = db.execute("SELECT count(*) FROM history").fetchone()
            if count > MAX_HISTORY:
                db.execute(
                    "DELETE FROM history WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER "
                    "(PARTITION BY issuer ORDER BY id DESC) AS rank FROM history) "
                    "ORDER BY rank DESC, id LIMIT ?)",
                    (count - MAX_HISTORY * 19 // 20,),
                )
            for table in ("members", "reports"):
                db.executemany(
                    f"DELETE FROM {table} WHERE peer_id = ?",  # noqa: S608 - constants
                    [(peer_id,) for peer_id in removed_ids],
                )

    def forget(self, peer_id: str) -> int:
        """Delete a member's report and history. Returns the number of rows."""
        with self._transaction() as db:
            return sum(
                db.execute(f"DELETE FROM {table} WHERE peer_id = ?", (peer_id,)).rowcount  # noqa: S608 - constants
                for table in ("reports", "history")
            )

    def trusted_names(self) -> list[str]:
        return [row[0] for row in self._rows("SELECT who FROM trusted ORDER BY who")]

    def trust(self, names: Sequence[str]) -> None:
        """Replace the pre-trusted."""
        with self._transaction() as db:
            db.execute("DELETE FROM trusted")
            db.executemany("INSERT INTO trusted VALUES (?)", [(name,) for name in set(names)])

    def stock(self, tickets: Sequence[tuple[str, str, int]]) -> None:
        """Add tickets (issuer key, text, expiry in Unix seconds) that are not here yet."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO tickets (key, text, expires) VALUES (?, ?, ?)", tickets
            )

    def tickets_left(self, now: float) -> int:
        query = "SELECT count(*) FROM tickets WHERE code IS NULL AND expires >= ?"
        return int(self._rows(query, now)[0][0])

    def add_code(self, digest: bytes, name: str, uses: int, expires: int) -> CodeRow:
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO codes (digest, name, uses, left, expires) VALUES (?, ?, ?, ?, ?)",
                (digest, name, uses, uses, expires),
            )
            return CodeRow(cursor.lastrowid or 0, name, uses, uses, expires, False)

    def codes(self, holders: Mapping[str, Sequence[str]]) -> list[CodeRow]:
        """Return all codes. `holders` are the ids of members by the issuer keys (hex) of their
        tickets."""
        rows = self._rows("SELECT id, name, uses, left, expires, withdrawn FROM codes")
        code_tickets: dict[int, dict[str, list[str]]] = {}
        for code, key, text, ends in self._rows(
            "SELECT code, key, text, expires FROM tickets WHERE code IS NOT NULL"
        ):
            ticket = parse_ticket(text, ends - 1).issuer.name
            code_tickets.setdefault(code, {})[ticket] = [*holders.get(key, ())]

        def holders_of(number: int) -> dict[str, list[str]]:
            return {ticket: ids for ticket, ids in code_tickets.get(number, {}).items() if ids}

        return [
            CodeRow(
                *(number, name, uses, left, expires, bool(is_withdrawn)),
                tickets=(*code_tickets.get(number, ()),),
                holders=holders_of(number),
            )
            for number, name, uses, left, expires, is_withdrawn in rows
        ]

    def withdraw(self, number: int) -> bool:
        """Withdraw a code, so that it is redeemed no more. Returns False if there is no such
        code."""
        with self._transaction() as db:
            cursor = db.execute("UPDATE codes SET withdrawn = 1 WHERE id = ?", (number,))
            return cursor.rowcount > 0

    def redeem(self, digest: bytes, newcomer: bytes, now: float) -> str | Rejected:
        """The text of a ticket for a code, counted once for each newcomer. Reasons: "unknown_code",
        "withdrawn", "expired", "used_up", "no_tickets"."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT id, left, expires, withdrawn FROM codes WHERE digest = ?", (digest,)
            ).fetchone()
            if row is None:
                return Rejected("unknown_code", "no such code: check what you typed")
            code, left, expires, is_withdrawn = row
            if is_withdrawn:
                return Rejected("withdrawn", "this code was withdrawn: ask for another")
            old_row = db.execute(
                "SELECT text FROM tickets WHERE code = ? AND newcomer = ?", (code, newcomer)
            ).fetchone()
            if old_row is not None:
                return str(old_row[0])
            if now > expires:
                return Rejected("expired", "this code has expired: ask for another")
            if left < 1:
                return Rejected("used_up", "this code was used already: ask for another")
            free = db.execute(
                "SELECT key, text FROM tickets WHERE code IS NULL AND expires >= ? "
                "ORDER BY expires, key LIMIT 1",
                (now,),
            ).fetchone()
            if free is None:
                return Rejected("no_tickets", "no ticket is left here: ask the swarm's owner")
            db.execute(
                "UPDATE tickets SET code = ?, newcomer = ? WHERE key = ?", (code, newcomer, free[0])
            )
            db.execute("UPDATE codes SET left = left - 1 WHERE id = ?", (code,))
            return str(free[1])


def back_up(data: Path, out: Path) -> int:
    """Copy what a coordinator in `data` needs into the new directory `out`, also while it runs: the
    database as of one moment, its key and its list of revoked members. Return the bytes.

    Raises:
        HomeError: there is no coordinator's database, it is damaged, or `out` exists or cannot be
            written. Nothing is left in `out` then.
    """
    source = data / "coordinator.db"
    if not source.is_file():
        raise HomeError(f"{data} has no coordinator.db: name its directory with --data")
    partial = out.with_name(f".{out.name}.partial")
    try:
        if out.exists():
            raise HomeError(f"{out} exists already: choose another name for the backup")
        shutil.rmtree(partial, ignore_errors=True)  # of a backup that was killed
        make_private(partial)
        _copy_database(source, partial / source.name)
        for name in _SMALL_FILES:
            with suppress(FileNotFoundError):
                create_private(partial / name, (data / name).read_bytes())
        partial.rename(out)
        sync(out.parent)
        return sum(file.stat().st_size for file in out.iterdir())
    except (sqlite3.Error, OSError) as error:
        raise HomeError(f"cannot back up {source} to {out}: {words_of(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_database(source: Path, target: Path) -> None:
    """Write a compact copy of `source` as of one moment. Its writer goes on meanwhile."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.execute("VACUUM INTO ?", (str(target),))
    with closing(sqlite3.connect(target)) as copy:
        (result,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise HomeError(f"{source} is damaged ({result}): restore an older backup of it")
    sync(target)
    sync(target.parent)
