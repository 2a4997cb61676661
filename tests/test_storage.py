"""The database: what is stored stays, what is refused leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from swarm_node.errors import HomeError, StorageError
from swarm_node.rollout import Provenance
from swarm_node.storage import KnownPeer, Storage, StoredGroup, WindowRow


def group(
    epoch: int, seq: int, provenance: Provenance = Provenance.LOCAL, author: str = "me"
) -> StoredGroup:
    return StoredGroup(
        id=f"{author}/{epoch}/{seq}".encode().ljust(34, b"."),
        author=author,
        epoch=epoch,
        seq=seq,
        provenance=provenance,
        blob=f"sealed {author} {seq}".encode(),
        prompt=f"Question {seq}?",
        rewards=(0.0, 1.0, 1 / 3),
        arrival_version=seq * 2,
    )


def received(seq: int, author: str = "peer") -> tuple[StoredGroup, WindowRow]:
    return group(9, seq, Provenance.SAME_MODEL, author), WindowRow(
        author, 9, seq, bytes([seq % 256]) * 128
    )


def publish(storage: Storage, count: int) -> list[StoredGroup]:
    first = storage.next_seq()
    rows = [group(storage.epoch, seq) for seq in range(first, first + count)]
    storage.publish([(row, f"announce {row.seq}".encode()) for row in rows])
    return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture
def storage(path: Path) -> Iterator[Storage]:
    storage = Storage(path)
    yield storage
    storage.close()


def test_a_log_is_listed_in_order_from_where_the_reader_is(path: Path) -> None:
    storage = Storage(path, wall=lambda: 1_700_000_000.25)
    assert storage.epoch == 1_700_000_000_250
    assert storage.announcements(0, 0, 10) == (storage.epoch, 0, 0, ())
    publish(storage, 3)
    publish(storage, 2)
    every = tuple(f"announce {seq}".encode() for seq in range(1, 6))
    assert storage.announcements(storage.epoch, 0, 10) == (storage.epoch, 5, 0, every)
    assert storage.announcements(storage.epoch, 3, 10)[3] == every[3:]
    assert storage.announcements(storage.epoch, 1, 3) == (storage.epoch, 5, 1, every[2:])
    assert storage.announcements(storage.epoch - 1, 3, 10)[3] == every
    assert storage.announcements(storage.epoch, 0, -1)[2:] == (5, ())
    assert storage.blob(group(storage.epoch, 4).id) == b"sealed me 4"
    assert storage.blob(b"unknown") is None
    storage.close()


def test_publishing_is_all_or_nothing_and_leaves_no_gap(storage: Storage) -> None:
    publish(storage, 1)
    good = group(storage.epoch, 2)
    for bad in (group(storage.epoch + 1, 3), group(storage.epoch, 4), group(storage.epoch, 2)):
        with pytest.raises(ValueError, match="cannot follow"):
            storage.publish([(good, b"a"), (bad, b"b")])
        assert storage.head() == 1
        assert storage.blob(good.id) is None
    assert [row.seq for row in publish(storage, 2)] == [2, 3]


def test_a_group_and_its_window_are_accepted_together_and_once(storage: Storage) -> None:
    row, window = received(5)
    assert storage.accept(row, window)
    later = WindowRow(window.author, 9, 6, bytes(128))
    assert not storage.accept(row, later)
    assert storage.windows() == [window]
    storage.save_window(later)
    assert storage.windows() == [later]
    broken = WindowRow("peer", 9, 7, None)  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        storage.accept(received(7)[0], broken)
    assert storage.blob(received(7)[0].id) is None
    assert storage.windows() == [later]


def test_a_new_database_starts_a_greater_epoch(tmp_path: Path) -> None:
    epochs = []
    for index in range(2):
        storage = Storage(tmp_path / str(index), wall=lambda index=index: 1000.0 + index)
        epochs.append(storage.epoch)
        storage.close()
    assert epochs[0] < epochs[1]


def test_a_database_of_an_older_layout_is_refused_and_left_as_it_is(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute(
            "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID"
        )
        old.execute("INSERT INTO meta VALUES ('epoch', 5000)")
        old.execute("PRAGMA user_version = 4")
        old.commit()
    with pytest.raises(HomeError, match=r"has layout 4, .* reads layout 6 only: move it"):
        Storage(path)
    with contextlib.closing(sqlite3.connect(path)) as old:
        assert old.execute("PRAGMA user_version").fetchone() == (4,)
        assert old.execute("SELECT * FROM meta").fetchall() == [("epoch", 5000)]


def test_layout_6_has_these_columns(path: Path) -> None:
    """Every later version reads it: other columns want another number, and a conversion."""
    Storage(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (6,)
        found = db.execute(
            "SELECT m.name, group_concat(c.name, ' ') FROM sqlite_master m, "
            "pragma_table_info(m.name) c WHERE m.type = 'table' GROUP BY m.name"
        )
        columns = dict(found.fetchall())
    del columns["sqlite_sequence"]
    assert columns == {
        "contents": "arrival digest author",
        "groups": "arrival id author epoch seq provenance prompt rewards arrived uses retired "
        "size blob",
        "log": "seq id announcement",
        "meta": "key value",
        "peers": "peer_id addresses last_seen issuer failures anchor",
        "windows": "author epoch high bitmap marked",
    }


def test_the_windows_of_the_authors_marked_last_are_kept(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.storage.MAX_AUTHORS", 3)
    for seq, author in enumerate("abcda", start=1):
        storage.accept(*received(seq, author))
    storage.save_window(WindowRow("b", 9, 9, bytes(128)))
    storage.prune(keep_log=4)
    assert [row.author for row in storage.windows()] == ["d", "a", "b"]


def test_a_damaged_row_is_set_aside_and_counted(storage: Storage) -> None:
    first, second, third = publish(storage, 3)
    storage.remember_peers([KnownPeer("good", (), 1.0), KnownPeer("bad", (), 2.0)])
    for statement in (
        "UPDATE groups SET provenance = 'nobody' WHERE seq = 1",
        "UPDATE groups SET rewards = x'00' WHERE seq = 2",
        "UPDATE peers SET addresses = '[' WHERE peer_id = 'bad'",
    ):
        storage._connection.execute(statement)
    assert storage.live(1) == [third]
    assert [peer.peer_id for peer in storage.known_peers(5)] == ["good"]
    assert storage.faults == {"storage": 3}
    assert storage.live(1) == [third]
    assert len(storage.known_peers(5)) == 1
    assert storage.blob(first.id) is storage.blob(second.id) is None
    assert storage.faults == {"storage": 3}


@pytest.mark.parametrize("seconds", [0.0, 1000.0, 2000.0])
def test_a_greater_epoch_begins_with_an_empty_log(path: Path, seconds: float) -> None:
    """Whatever the clock says; an older copy of the database so never repeats a number."""
    storage = Storage(path, wall=lambda: 1000.0)
    own = publish(storage, 3)
    first = storage.epoch
    storage.close()
    storage = Storage(path, wall=lambda: seconds)
    storage.begin_epoch()
    assert storage.epoch == max(first + 1, int(seconds * 1000))
    assert storage.announcements(first, 2, 10) == (storage.epoch, 0, 0, ())
    assert [row.seq for row in publish(storage, 2)] == [1, 2]
    assert (storage.published_count(), storage.blob(own[0].id)) == (5, own[0].blob)
    assert storage.live(1)[:3] == own
    began = storage.epoch
    storage.close()
    storage = Storage(path)
    assert (storage.epoch, storage.published_count()) == (began, 5)
    storage.close()


def test_pruning_keeps_the_newest_that_fit(storage: Storage) -> None:
    publish(storage, 10)
    others = [received(seq) for seq in range(1, 9)]
    for row, window in others:
        storage.accept(row, window)
    storage.prune(keep_log=4, keep_received=3, max_bytes=2 * len(others[0][0].blob))
    assert {row.seq for row, _ in others if storage.blob(row.id)} == {7, 8}
    assert storage.announcements(storage.epoch, 0, 100) == (storage.epoch, 10, 0, ())
    assert [row.seq for row in publish(storage, 1)] == [11]


def test_the_file_stops_growing_when_it_is_pruned(storage: Storage, path: Path) -> None:
    sizes = []
    for _ in range(6):
        for _ in range(10):
            rows = [group(storage.epoch, storage.next_seq() + index) for index in range(10)]
            storage.publish(
                [
                    (StoredGroup(**{**_fields(row), "blob": os.urandom(4096)}), b"a" * 300)
                    for row in rows
                ]
            )
            storage.prune(keep_log=50)
        sizes.append(path.stat().st_size)
    assert sizes[-1] <= 1.2 * sizes[2]


def _fields(row: StoredGroup) -> dict[str, object]:
    return {name: getattr(row, name) for name in StoredGroup.__slots__}


def test_anchors_then_peers_seen_last_are_known_first_and_all_are_bounded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.storage.MAX_PEERS", 20)
    storage = Storage(path)
    addresses = tuple(f"/ip4/10.0.0.1/tcp/{port}" for port in range(100))
    peers = [KnownPeer(f"peer {i}", addresses, float(i), "issuer", i % 3) for i in range(25)]
    storage.remember_peers([*peers, KnownPeer("anchor", addresses, 20.5, anchor=True)])
    storage.close()
    storage = Storage(path)
    known = storage.known_peers(10_000)
    assert len(known) == 20
    assert [row.peer_id for row in known[:3]] == ["anchor", "peer 24", "peer 23"]
    assert known[1] == KnownPeer("peer 24", addresses[:16], 24.0, "issuer", 0)
    storage.remember_peers(peers[:1])
    assert [row.peer_id for row in storage.known_peers(5)] == ["peer 0"]
    storage.close()


def test_many_threads_get_numbers_of_their_own(storage: Storage) -> None:
    start = threading.Barrier(8)

    def work(index: int) -> list[int]:
        start.wait()
        for seq in range(1, 6):
            storage.accept(*received(seq, f"peer {index}"))
        return [storage.advance("tasks", 1) for _ in range(10)]

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for each in pool.map(work, range(8)) for number in each]
    assert sorted(numbers) == list(range(80))
    assert len(storage.live(1)) == 40


@pytest.mark.parametrize("threads", [True, False])
def test_run_calls_in_a_thread_unless_told_not_to(path: Path, threads: bool) -> None:
    storage = Storage(path, threads=threads)
    assert asyncio.run(storage.run(storage.advance, "tasks", 3)) == 0
    elsewhere = asyncio.run(storage.run(threading.get_ident)) != threading.get_ident()
    assert elsewhere is threads
    storage.close()


def test_the_file_is_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        storage = Storage(path)
    finally:
        os.umask(before)
    publish(storage, 1)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    storage.close()


def test_a_full_disk_is_said_and_stores_nothing(storage: Storage) -> None:
    publish(storage, 1)
    (pages,) = storage._connection.execute("PRAGMA page_count").fetchone()
    storage._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = StoredGroup(**{**_fields(group(storage.epoch, 2)), "blob": bytes(1 << 20)})  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="no space"):
        storage.publish([(big, b"a")])
    assert (storage.head(), storage.blob(big.id)) == (1, None)
    storage._connection.execute("PRAGMA max_page_count = 100000")
    storage.publish([(big, b"a")])
    assert storage.head() == 2


def test_files_that_are_no_database_are_said(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(HomeError, match="is damaged"):
        Storage(path)
    with pytest.raises(HomeError, match="permissions"):
        Storage(path.parent / "missing" / "node.db")
    with pytest.raises(HomeError, match="permissions"):
        Storage(path.parent)


def test_a_damaged_page_is_said_and_not_swallowed(path: Path) -> None:
    storage = Storage(path)
    publish(storage, 200)
    storage.close()
    raw = bytearray(path.read_bytes())
    raw[4096:] = random.Random(1).randbytes(len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(HomeError, match="is damaged"):
        Storage(path).live(1)


def test_a_database_of_a_newer_program_is_left_alone(path: Path) -> None:
    Storage(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(HomeError, match="newer"):
        Storage(path)


def test_a_counter_only_goes_up(storage: Storage) -> None:
    with pytest.raises(ValueError, match="goes up"):
        storage.advance("tasks", -1)


def test_no_two_groups_with_one_digest_are_stored_also_after_a_restart(path: Path) -> None:
    storage = Storage(path)
    own = replace(group(storage.epoch, 1), digests=(b"own",))
    storage.publish([(own, None)])
    row, window = received(1)
    assert storage.accept(replace(row, digests=(b"a", b"b")), window)
    storage.close()
    storage = Storage(path)
    other, window = received(2)
    for known in (b"own", b"b"):
        assert not storage.accept(replace(other, digests=(b"new", known)), window)
    assert storage.authors_of(b"own", b"new", b"b") == {b"own": own.author, b"b": row.author}
    assert storage.authors_of() == {}
    assert storage.accept(replace(other, digests=(b"new",)), window)


def test_only_the_newest_digests_are_kept(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.storage.MAX_DIGESTS", 3)
    for seq in range(1, 6):
        row, window = received(seq)
        assert storage.accept(replace(row, digests=(bytes([seq]),)), window)
    storage.prune(keep_log=9)
    assert sorted(storage.authors_of(*(bytes([seq]) for seq in range(1, 6)))) == [
        b"\3",
        b"\4",
        b"\5",
    ]
