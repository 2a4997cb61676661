"""A run that leaves something behind fails, and says what."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import leftovers
import psutil
import pytest
from leftovers import run


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /dev/shm, where other programs may leave something meanwhile."""
    place = tmp_path / "shared"
    place.mkdir()
    monkeypatch.setattr("leftovers._SHARED", place)
    return place


def ran(code: str, checkout: Path) -> tuple[int, list[str]]:
    return run([sys.executable, "-c", code], checkout)


def test_a_clean_run_has_its_own_exit_status(tmp_path: Path) -> None:
    code = "import tempfile; open(tempfile.mkstemp()[1], 'w').write('small'); raise SystemExit(3)"
    assert ran(code, tmp_path) == (3, [])


@pytest.mark.slow(reason="runs a command and ends what it left")
def test_a_process_in_a_session_of_its_own_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leftovers._ENDING_SECONDS", 0.1)
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c',"
        " 'import time; time.sleep(600)'], start_new_session=True)"
    )
    status, lines = ran(code, tmp_path)
    assert status == 0
    (left,) = (line for line in lines if line.startswith("process "))
    pid = int(left.split()[1].rstrip(":"))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).wait(10) is None


def test_shared_memory_is_found(tmp_path: Path, shared: Path) -> None:
    path = shared / "left"
    _, left = ran(f"open({str(path)!r}, 'w').write('x')", tmp_path)
    assert left == [f"shared memory {path}"]


def test_shared_memory_that_a_process_holds_is_not_left_behind(
    tmp_path: Path, shared: Path
) -> None:
    mapped, opened, made = (shared / name for name in ("mapped", "opened", f"made-{os.getpid()}"))
    for path in (mapped, opened, made):
        path.write_bytes(bytes(4096))
    with mapped.open() as file, opened.open():
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        file.close()
        assert leftovers._unused() == set()
        held.close()
        assert leftovers._unused() == {mapped}


def test_many_temporary_bytes_are_found_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leftovers._MOST_BYTES", 1_000_000)
    written = tmp_path / "written"
    code = (
        "import tempfile; d = tempfile.mkdtemp(); open(d + '/f', 'wb').write(bytes(2_000_000));"
        f"open({str(written)!r}, 'w').write(d)"
    )
    assert [line.startswith("2 MB") for line in ran(code, tmp_path)[1]] == [True]
    assert not Path(written.read_text()).exists()


def test_a_file_of_the_checkout_is_found(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    assert ran(f"open({str(tmp_path / 'new')!r}, 'w')", tmp_path)[1][0].endswith(" new")
