"""Short campaigns of `crashes.py` and `full_disk.py`, and that both find what they look for."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import ROOT
from campaigns.crashes import Writer, enumerate_states, writers
from campaigns.full_disk import DiskTally, DiskWriter, attempt

from swarm_node.errors import HomeError

WRITERS = {writer.name: writer for writer in writers()}
OLD, NEW = b"o" * 5000, b"n" * 9000


@pytest.mark.slow(reason="makes and reads hundreds of states of a disk")
@pytest.mark.parametrize(
    "most", [4, pytest.param(12, marks=pytest.mark.nightly(reason="a campaign"))]
)
@pytest.mark.parametrize("name", WRITERS)
def test_a_power_cut_leaves_the_old_or_the_new(name: str, most: int) -> None:
    states, wrong = enumerate_states(WRITERS[name], seed=1, most=most)
    assert wrong == []
    assert states >= 10


def _synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _in_place(place: Path) -> None:
    _synced(place / "file", NEW)


def _without_data(place: Path) -> None:
    (place / "new").write_bytes(NEW)
    (place / "new").replace(place / "file")


def _without_name(place: Path) -> None:
    _synced(place / "new", NEW)
    (place / "new").replace(place / "file")


@pytest.mark.parametrize(
    ("write", "what"),
    [(_in_place, "half"), (_without_data, "half"), (_without_name, "lost")],
)
def test_the_enumeration_finds_a_writer_that_syncs_too_little(
    write: Callable[[Path], None], what: str
) -> None:
    def look(place: Path, done: bool) -> None:
        found = (place / "file").read_bytes() if (place / "file").exists() else b""
        assert found in (OLD, NEW), "half"
        assert found == NEW or not done, "lost"

    def prepare(place: Path) -> None:
        (place / "file").write_bytes(OLD)

    _, wrong = enumerate_states(Writer("", prepare, write, look), seed=1, most=50)
    assert f"AssertionError: {what}" in {line.splitlines()[0] for line in wrong}


@pytest.mark.slow(reason="fills and breaks a disk some hundred times")
@pytest.mark.parametrize(
    ("step", "least"),
    [(64, 40), pytest.param(16, 80, marks=pytest.mark.nightly(reason="a campaign"))],
)
def test_a_disk_without_room_or_with_faults_costs_an_error_and_no_data(
    step: int, least: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.full_disk", "--step", str(step)],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=250,
    )
    *_, last = done.stdout.splitlines()
    assert last.endswith(", 0 defects"), done.stdout + done.stderr
    assert int(last.split()[0]) > least


def test_the_campaign_of_broken_disks_finds_a_careless_writer(tmp_path: Path) -> None:
    def prepare(place: Path) -> None:
        (place / "file").write_bytes(OLD)

    def write(place: Path) -> None:
        (place / "file").write_bytes(b"")
        os.fsync(0)

    def look(place: Path, done: bool) -> None:
        assert (place / "file").read_bytes() == OLD, "the old file is gone"

    def break_() -> Callable[[], None]:
        real = os.fsync

        def failing(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        os.fsync = failing
        return lambda: setattr(os, "fsync", real)

    tally = DiskTally()
    assert not attempt(DiskWriter("", HomeError, prepare, write, look), tmp_path, tally, break_)
    assert "OSError" in tally.defects[0]
    assert "old file" in tally.defects[1]
