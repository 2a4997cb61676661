"""A home in one file: what comes back, and what is refused."""

from __future__ import annotations

import io
import os
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from swarm_node.errors import HomeError
from swarm_node.node.home.backup import BackedUpFile, _append, _Manifest, back_up, restore
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.program.private_directory import with_head
from swarm_node.rollout import Provenance
from swarm_node.storage import Storage, StoredGroup

NOW = 1_800_000_000.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.found_swarm("team", NOW)
    home.port()
    storage = Storage(home.database)
    publish(storage, 3)
    storage.close()
    return home


def _checkpoint(home: Home, version: int) -> Path:
    import torch

    from swarm_node.policy.training.checkpoints.checkpoint import TrainingState, save

    weights = {"w": torch.full((4, 3), 1.0)}
    state = TrainingState(version, version, weights, weights, b"rng", {}, b"m" * 32)
    return save(home.checkpoints, state)


def publish(storage: Storage, count: int) -> None:
    first = storage.next_seq()
    rows = [
        StoredGroup(
            id=f"{storage.epoch}/{seq}".encode(),
            author="me",
            epoch=storage.epoch,
            seq=seq,
            provenance=Provenance.LOCAL,
            blob=os.urandom(2000),
            prompt="q",
            rewards=(0.0, 1.0),
            arrival_version=0,
        )
        for seq in range(first, first + count)
    ]
    storage.publish([(row, b"announce") for row in rows])


def test_a_restored_home_is_the_old_one(home: Home, tmp_path: Path) -> None:
    newest = _checkpoint(home, 42)
    (home.path / "log").write_text("not a part of the home")
    out = tmp_path / "backup"
    made = back_up(home, out, now=NOW, checkpoint=newest)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "home"]
    other = Home(tmp_path / "restored")
    assert restore(other, out) == made
    assert made.created_at == NOW
    for name in ("node.key", "root.key", "swarm.json", "membership", "port"):
        assert (other.path / name).read_bytes() == (home.path / name).read_bytes()
        assert stat.S_IMODE((other.path / name).stat().st_mode) == 0o600
    restored = other.checkpoints / "v0000000042" / "model.safetensors"
    assert stat.S_IMODE(restored.parent.parent.stat().st_mode) == 0o700
    assert restored.read_bytes() == (newest / "model.safetensors").read_bytes()
    assert other.membership().chain == home.membership().chain
    ticket = other.invite([], now=NOW, valid_seconds=60, member_seconds=60)
    assert parse_ticket(ticket, NOW).info == home.swarm()
    before, after = Storage(home.database), Storage(other.database)
    assert after.live(1) == before.live(1)
    after.begin_epoch()
    assert after.epoch > before.epoch
    before.close()
    after.close()
    assert sorted(path.name for path in other.path.iterdir()) == sorted(
        [
            *(name for name in made.files if "/" not in name),
            *("checkpoints", "home.json", "lock", "recording"),
        ]
    )


def test_a_running_nodes_database_is_copied_as_of_one_moment(home: Home, tmp_path: Path) -> None:
    storage = Storage(home.database)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            publish(storage, 7)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            back_up(home, tmp_path / f"{number}", now=NOW)
    finally:
        stop.set()
        writer.join()
    storage.close()
    for number in range(3):
        place = Home(tmp_path / f"home {number}")
        restore(place, tmp_path / f"{number}")
        copy = Storage(place.database)
        assert copy.head() >= 3
        assert (copy.head() - 3) % 7 == 0
        assert len(copy.live(1)) == copy.head()
        copy.close()


def test_neither_a_file_nor_a_used_home_is_overwritten(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "backup"
    back_up(home, out, now=NOW)
    before = out.read_bytes()
    with pytest.raises(HomeError, match="exists already"):
        back_up(home, out, now=NOW)
    assert out.read_bytes() == before
    with pytest.raises(HomeError, match=r"node\.key"):
        restore(home, out)
    with pytest.raises(HomeError, match="no swarm"):
        back_up(Home(tmp_path / "empty"), tmp_path / "other", now=NOW)
    with pytest.raises(HomeError, match=r"backup .* directory$"):
        back_up(home, tmp_path / "nowhere" / "backup", now=NOW)


def test_every_cut_and_every_changed_byte_is_refused(home: Home, tmp_path: Path) -> None:
    """In the files and in their headers."""
    home.database.unlink()  # so that the file is small enough to try many places
    out, bad = tmp_path / "backup", tmp_path / "bad"
    back_up(home, out, now=NOW)
    good = out.read_bytes()
    with tarfile.open(out) as archive:  # anybody can look into it with tar
        members = archive.getmembers()
    ends = [(member.offset_data, member.offset_data + member.size) for member in members]
    inside = [place for begin, end in ends for place in range(begin, end)]
    headers = [place for begin, _ in ends for place in range(begin - 512, begin)]
    assert len(headers) > 3000
    for place in (*inside[::370], *headers[::110]):
        bad.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        refused(bad, tmp_path, "usable backup")
    for length in range(0, ends[-1][1], 1501):
        bad.write_bytes(good[:length])
        refused(bad, tmp_path, "usable backup")
    bad.write_bytes(good + b"more")
    refused(bad, tmp_path, "more than")
    restore(Home(tmp_path / "fine"), out)


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t AFTER INSERT ON groups BEGIN DELETE FROM windows; END",
        "CREATE VIEW v AS SELECT * FROM groups",
        "CREATE TABLE more (a)",
        "DROP TABLE windows",
        "ALTER TABLE peers ADD COLUMN more",
        "PRAGMA user_version = 99",
    ],
)
def test_a_database_with_anything_of_its_own_is_refused(
    home: Home, tmp_path: Path, planted: str
) -> None:
    with closing(sqlite3.connect(home.database)) as database:
        database.execute(planted)
    out = tmp_path / "backup"
    back_up(home, out, now=NOW)
    refused(out, tmp_path, r"usable backup \(.*node\.db")


def test_a_home_whose_files_do_not_fit_together_is_refused(home: Home, tmp_path: Path) -> None:
    other, out = Home(tmp_path / "other"), tmp_path / "backup"
    other.found_swarm("other", NOW)
    (home.path / "node.key").write_bytes((other.path / "node.key").read_bytes())
    back_up(home, out, now=NOW)
    refused(out, tmp_path, r"node\.key .*not fit")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", tmp_path, "no regular file")


def refused(source: Path, tmp_path: Path, why: str) -> None:
    place = Home(tmp_path / "refused")
    with pytest.raises(HomeError, match=why):
        restore(place, source)
    assert {path.name for path in place.path.glob("*")} <= {"lock"}


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar with a manifest that agrees with it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as target:
        for info, content in members:
            target.addfile(info, io.BytesIO(content))
    return file.getvalue()


def plain(name: str, content: bytes = b"x", **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, content


HOSTILE: dict[str, Callable[[], bytes]] = {
    "a path that leaves": lambda: archive(plain("../node.key")),
    "an absolute path": lambda: archive(plain("/tmp/node.key")),
    "a path below": lambda: archive(plain("checkpoints/../../node.key")),
    "another checkpoint": lambda: archive(plain("checkpoints/v0000000001/../x.msgpack")),
    "another name": lambda: archive(plain(".bashrc")),
    "control.json": lambda: archive(plain("control.json")),
    "a link": lambda: archive(plain("node.key", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a hard link": lambda: archive(plain("node.key", b"", type=tarfile.LNKTYPE, linkname="port")),
    "a device": lambda: archive(plain("port", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "a directory": lambda: archive(plain("checkpoints", b"", type=tarfile.DIRTYPE)),
    "a name twice": lambda: archive(plain("port"), plain("port")),
    "a large header": lambda: archive(plain("x" * 5000)),
    "a large key": lambda: archive(plain("node.key", bytes(9 << 20))),
    "no manifest": lambda: archive(plain("port")),
    "a database of a thousand gigabytes": lambda: _stated("node.db", 1 << 41),
    "a header of a thousand gigabytes": lambda: _stated("port", 1 << 40, tarfile.XHDTYPE),
    "less than nothing": lambda: _stated("node.db", -512),
    "a date after all dates": lambda: archive(plain("manifest.json", b"{}", mtime=1 << 40)),
    "nothing": lambda: b"",
    "an empty archive": lambda: _archive({}),
    "no home": lambda: _archive({"port": with_head(b"4001\n")}),
    "a swarm without a key": lambda: _archive({"swarm.json": b"{}"}),
    "a sparse file": lambda: archive(plain("port", b"", type=tarfile.GNUTYPE_SPARSE)),
    "a long name": lambda: archive(plain("port", b"", type=tarfile.GNUTYPE_LONGNAME)),
    "a database larger than any": lambda: _stated("node.db", (4 << 30) + 1),
    "no tar": lambda: b"not a tar" * 1000,
}


def _archive(files: dict[str, bytes]) -> bytes:
    """A tar as `back_up` writes it, of these files."""
    out, members = io.BytesIO(), {}
    with tarfile.open(fileobj=out, mode="w") as target:
        for name, content in files.items():
            members[name] = _append(target, name, io.BytesIO(content), NOW)
        manifest = msgspec.json.encode(_Manifest(1, members))
        _append(target, "manifest.json", io.BytesIO(manifest), NOW)
    return out.getvalue()


def _stated(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type = size, 0o600, kind
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)


@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_backup_holds_is_refused_and_nothing_is_made(tmp_path: Path, what: str) -> None:
    source = tmp_path / "hostile"
    source.write_bytes(HOSTILE[what]())
    refused(source, tmp_path, "usable backup")
    assert {path.name for path in tmp_path.iterdir()} == {"hostile", "refused"}


def test_more_than_the_disk_holds_is_refused_before_it_is_written(tmp_path: Path) -> None:
    source = tmp_path / "huge"
    name = "checkpoints/v0000000001/model.safetensors"
    source.write_bytes(_stated(name, (1 << 40) - 1))
    refused(source, tmp_path, f"no room for {name}")


def test_a_manifest_must_name_every_file(tmp_path: Path) -> None:
    digest = "0" * 64
    manifest = _Manifest(1, {"port": BackedUpFile(1, digest)})
    source = tmp_path / "other"
    for members in (
        [plain("manifest.json", msgspec.json.encode(manifest))],
        [plain("port"), plain("manifest.json", msgspec.json.encode(manifest))],
        [plain("port"), plain("manifest.json", b"{}")],
        [plain("port"), plain("manifest.json", b"[" * 100_000)],
    ):
        source.write_bytes(archive(*members))
        refused(source, tmp_path, "usable backup")


def test_a_home_in_use_is_not_restored_into(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "backup"
    back_up(home, out, now=NOW)
    empty = Home(tmp_path / "empty")
    with empty.lock(), pytest.raises(HomeError, match="already running"):
        restore(empty, out)
