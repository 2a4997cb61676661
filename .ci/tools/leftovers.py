"""Runs a command, and fails if it leaves something behind.

    python .ci/tools/leftovers.py COMMAND [ARGUMENT...]

What counts: processes that the command started, unused shared memory, mounts, over
100 MB of temporary files, and changed files of the checkout. The command's temporary files lie in a
directory of its own, which is removed. What other programs of the machine do does not count.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

#: An environment variable that every process inherits which the command starts.
_MARK = "LEFTOVERS_OF"
_MOST_BYTES = 100_000_000
_SHARED = Path("/dev/shm")
#: What still ends when the command has ended is not left behind.
_ENDING_SECONDS = 20.0


def run(command: list[str], checkout: Path) -> tuple[int, list[str]]:
    """The exit status of a command, and a line for each thing that it left behind."""
    mark = secrets.token_hex(8)
    temporary = Path(tempfile.mkdtemp(prefix="run-"))  # short: it holds sockets
    # pytest's own directories stay: they have the files of failed tests.
    environment = {
        "PYTEST_DEBUG_TEMPROOT": tempfile.gettempdir(),
        **os.environ,
        _MARK: mark,
        "TMPDIR": str(temporary),
    }
    shared, changed = _unused(), _changed(checkout)
    try:
        status = _status(command, environment)
        leftovers = [*_processes(mark)]
        leftovers += [f"shared memory {path}" for path in sorted(_unused() - shared)]
        leftovers += [f"mount {place}" for place in _mounts(temporary)]
        if (size := _size(temporary)) > _MOST_BYTES:
            leftovers.append(f"{size / 1e6:,.0f} MB of temporary files")
        leftovers += [f"changed file {name}" for name in sorted(_changed(checkout) - changed)]
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return status, leftovers


def _status(command: list[str], environment: dict[str, str]) -> int:
    with subprocess.Popen(command, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the command got it too, and ends in its own way
                continue


def _processes(mark: str) -> Iterator[str]:
    """End the processes that are left. Yields a line for each."""
    marked = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    _, alive = psutil.wait_procs(marked, timeout=_ENDING_SECONDS)
    for process in alive:
        try:
            line = f"process {process.pid}: {' '.join(process.cmdline())[:200]}"
            process.kill()
        except psutil.NoSuchProcess:
            continue
        yield line


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark
    except psutil.Error:  # it has ended, or is another user's
        return False


def _unused() -> set[Path]:
    """This user's entries of /dev/shm that no process has mapped or open, and whose names have no
    number of a live process, which may have made them."""
    if not _SHARED.is_dir():
        return set()
    alive = {str(pid) for pid in psutil.pids() if pid > 1}  # a name may end in a rank, 0 or 1
    entries = {
        path
        for path in _SHARED.iterdir()
        if path.lstat().st_uid == os.getuid()
        and alive.isdisjoint(re.split("[^0-9A-Za-z]", path.name))
    }
    used: set[Path] = set()
    for process in psutil.process_iter() if entries else ():
        try:
            used |= _mapped(process.pid)
            used |= {Path(each.path) for each in process.open_files()}
        except (psutil.Error, OSError):
            continue
    return {
        path for path in entries if not any(path == each or path in each.parents for each in used)
    }


def _mapped(pid: int) -> set[Path]:
    """What a process has mapped of shared memory. psutil measures each of its mappings as well,
    which takes a hundred times as long."""
    text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    return {Path(found) for found in re.findall(rf" ({re.escape(str(_SHARED))}/.*)", text)}


def _mounts(below: Path) -> list[str]:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:  # not on Linux
        return []
    places = [line.split(" ")[1] for line in lines]
    return [place for place in places if Path(place).is_relative_to(below)]


def _size(directory: Path) -> int:
    """The bytes that the files below a directory take on its disk."""
    return sum(
        512 * path.lstat().st_blocks for path in directory.rglob("*") if not path.is_symlink()
    )


def _changed(checkout: Path) -> set[str]:
    """The files that git reports as changed or new, without ignored ones."""
    command = ["git", "-C", str(checkout), "status", "--porcelain", "--untracked-files=all"]
    return set(subprocess.run(command, capture_output=True, text=True).stdout.splitlines())


def main() -> int:
    status, leftovers = run(sys.argv[1:], Path.cwd())
    for line in leftovers:
        print(f"LEFT BEHIND: {line}", file=sys.stderr)
    return status or (1 if leftovers else 0)


if __name__ == "__main__":
    sys.exit(main())
