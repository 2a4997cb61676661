"""The coordinator's database: its journal stays small, and it is copied while it is in use."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from coordinator_runs import Hand, coordinator, issuer_file, sealed_report
from swarm_keys import Swarm

from coordinator.store import Store, StoredMember, back_up
from swarm_node.database import WAL_BYTES
from swarm_node.errors import HomeError
from swarm_node.simulation.seeded import EPOCH


def _see(store: Store, count: int, size: int = 256) -> None:
    store.see(
        [StoredMember(f"{number}", (os.urandom(size), b""), EPOCH) for number in range(count)]
    )


@pytest.mark.slow(reason="writes megabytes")
def test_the_journal_shrinks_after_a_large_transaction(tmp_path: Path) -> None:
    store, journal = Store(tmp_path / "coordinator.db"), tmp_path / "coordinator.db-wal"
    _see(store, 600, 100_000)
    assert journal.stat().st_size > 2 * WAL_BYTES
    for number in range(3):  # the journal begins anew with the next transaction
        store.add_code(bytes([number]) * 32, "alice", 1, 1)
    assert journal.stat().st_size <= WAL_BYTES
    store.close()


def test_a_copy_is_of_one_moment_while_the_database_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    store, stop = Store(data / "coordinator.db"), threading.Event()

    def write() -> None:
        while not stop.is_set():
            _see(store, 1000)  # all of one transaction, or none

    writer = threading.Thread(target=write)
    writer.start()
    try:
        made = [tmp_path / f"copy {number}" for number in range(3)]
        sizes = [back_up(data, each) for each in made]
    finally:
        stop.set()
        writer.join()
    store.close()
    for each, size in zip(made, sizes, strict=True):
        assert {path.name for path in each.iterdir()} == {"coordinator.db"}
        assert size == (each / "coordinator.db").stat().st_size
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
        assert stat.S_IMODE((each / "coordinator.db").stat().st_mode) == 0o600
        copy = Store(each / "coordinator.db")
        assert len(copy.members()) in (0, 1000)
        copy.close()


async def test_a_coordinator_starts_from_the_copy_of_one_that_runs(tmp_path: Path) -> None:
    swarm, data, hand = Swarm(), tmp_path / "c", Hand(10.0)
    one, out = swarm.member(1), tmp_path / "copy"
    file = issuer_file(tmp_path, swarm, 2)
    async with coordinator(data, swarm, hand, issuer_file=file, trust=("owner",)) as running:
        report = sealed_report(one, EPOCH + 10)
        assert (await running.ask("POST", "/v1/reports", report, by=one))[0] == 200
        made = await running.admin("POST", "/v1/codes", {"name": "a", "uses": 1, "seconds": 600})
        assert made[0] == 200
        back_up(data, out)
        key = (data / "coordinator.key").read_bytes()
    assert (out / "coordinator.key").read_bytes() == key
    async with coordinator(out, swarm, hand) as running:
        assert (await running.admin("GET", "/v1/trusted"))[1]["who"] == ["owner"]
        codes = (await running.admin("GET", "/v1/codes"))[1]
        assert ([row["name"] for row in codes["codes"]], codes["tickets"]) == (["a"], 2)
        target = f"/v1/reports/{one.identity.peer_id}"
        assert (await running.ask("GET", target, by=one))[0] == 200


def test_what_cannot_be_copied_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    with pytest.raises(HomeError, match=r"--data"):
        back_up(data, out)
    store = Store(data / "coordinator.db")
    _see(store, 2000)
    store.close()
    back_up(data, out)
    with pytest.raises(HomeError, match="exists already"):
        back_up(data, out)
    raw = bytearray((data / "coordinator.db").read_bytes())
    for page in range(4096, len(raw), 4096):
        raw[page + 3] ^= 0xFF  # the number of cells of each page but the first
    (data / "coordinator.db").write_bytes(raw)
    with pytest.raises(HomeError, match=r"damaged|malformed"):
        back_up(data, tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "out"}


def test_a_reader_may_have_the_database_and_a_second_writer_may_not(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    store = Store(path)
    with closing(sqlite3.connect(path)) as reader:
        assert reader.execute("SELECT * FROM members").fetchall() == []
    with pytest.raises(HomeError, match="in use"):
        Store(path)
    store.close()
    Store(path).close()
