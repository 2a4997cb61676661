"""Passes policy versions from the trainer to the sampler through files in shared memory.

A reader maps the file, so a new version is not copied through a pipe. A reader that has a file open
can read it even after newer versions replaced it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, numpy
from safetensors.torch import save_file

from swarm_node.errors import WeightsError, words_of
from swarm_node.policy.weights import KEEP_VERSIONS

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory made in it is private and random
_PREFIX = "swarm-node"
_OWNER = re.compile(r"[A-Za-z0-9_]{1,64}")
_DIRECTORY = re.compile(rf"{_PREFIX}-(?P<space>\d+)-(?P<pid>\d+)-[A-Za-z0-9_]{{1,64}}-\w+")
_WEIGHTS = re.compile(r"weights-(?P<version>\d{1,19})\.safetensors")
_ADAPTER = re.compile(r"adapter-(?P<version>\d{1,19})")


def shared_memory_dir(owner: str, need: int) -> Path:
    """Make a private directory (0700) for `owner`, and remove those of dead processes.

    The directory is in /dev/shm if that has `need` bytes free, and else in the directory for
    temporary files; containers often have only 64 MiB of /dev/shm. The caller removes the directory
    at the end.

    Raises:
        ValueError: `owner` is not 1 to 64 letters, digits or underscores.
        WeightsError: neither has `need` bytes free.
    """
    if not _OWNER.fullmatch(owner):
        raise ValueError(f"an owner is 1 to 64 letters, digits or underscores, not {owner!r}")
    places = [_SHARED_MEMORY, Path(tempfile.gettempdir())]
    for place in places:
        _remove_stale(place)
    usable = [place for place in places if os.access(place, os.W_OK)]
    free = {place: shutil.disk_usage(place).free for place in usable}
    parent = next((place for place in usable if free[place] >= need), None)
    if parent is None:
        sizes = ", ".join(f"{place} {_gb(size)}" for place, size in free.items())
        raise WeightsError(
            f"the newest policy versions need {_gb(need)}, and there are free: {sizes or 'none'}. "
            f"Give {_SHARED_MEMORY} more (docker run --shm-size), or set TMPDIR to a directory on "
            "a larger disk"
        )
    prefix = f"{_PREFIX}-{_pid_namespace()}-{os.getpid()}-{owner}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


#: Too many open files, of this process or of the machine; too little memory.
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


@contextlib.contextmanager
def _explain_write_errors(directory: Path, need: int) -> Iterator[None]:
    """Context for writing `need` bytes into `directory`.

    Raises:
        WeightsError: they do not fit, or the writing fails.
        OSError: this process has too little now, and may have enough later.
    """
    try:
        free = shutil.disk_usage(directory).free
        if need <= free:
            yield
            return
        reason = f"{_gb(free)} are free"
    except (OSError, SafetensorError) as error:
        reason = words_of(error)
        # Safetensors has the operating system's number in its words alone.
        matches = (
            getattr(error, "errno", None) == code or f"os error {code})" in str(error)
            for code in _SHORT
        )
        if any(matches):
            raise OSError(f"cannot write a policy version into {directory}: {reason}") from error
    raise WeightsError(
        f"cannot write a policy version of {_gb(need)} into {directory}: {reason}. Free "
        "space there, or give this node more (docker run --shm-size; TMPDIR)"
    )


def _save(weights: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    """Write the same bytes as `safetensors.torch`, from numpy's views where those have the type: a
    third of the time with many small tensors."""
    if all(weight.dtype is torch.float32 and weight.is_contiguous() for weight in weights.values()):
        arrays = {name: weight.numpy() for name, weight in weights.items()}
        numpy.save_file(arrays, path, metadata)
    else:
        save_file(dict(weights), path, metadata)


def _gb(size: int) -> str:
    return f"{size / 1e9:.3f} GB"


def _remove_stale(parent: Path) -> None:
    """Remove this user's directories in `parent` whose process has ended."""
    for path in parent.glob(f"{_PREFIX}-*"):
        match = _DIRECTORY.fullmatch(path.name)
        # Containers may share /dev/shm but not process ids, so ids of other namespaces are skipped.
        if match is None or match["space"] != _pid_namespace() or _alive(int(match["pid"])):
            continue
        with contextlib.suppress(OSError):  # another node may be removing the same directory
            state = path.lstat()
            if state.st_uid == os.getuid() and not path.is_symlink():
                shutil.rmtree(path)


def _pid_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


class WeightStore:
    """Writes `weights-<version>.safetensors`, and adapters as directories `adapter-<version>`, into
    an existing private directory. The newest two of each are kept: the sampler uses one while it is
    told of the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for leftover in directory.glob("*.tmp"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def path(self, version: int) -> Path:
        return self.directory / f"weights-{version}.safetensors"

    def adapter_path(self, version: int) -> Path:
        """A directory with adapter_model.safetensors and adapter_config.json."""
        return self.directory / f"adapter-{version}"

    def publish(
        self,
        version: int,
        weights: Mapping[str, torch.Tensor],
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        """Write a version with `metadata`, such as its canary, in the header. The file appears
        completely or not at all, and replaces one of the same version.

        Raises:
            WeightsError: it does not fit, or cannot be written.
        """
        target = self.path(version)
        temp_path = target.with_suffix(".tmp")
        with _explain_write_errors(
            self.directory, sum(weight.nbytes for weight in weights.values())
        ):
            _save(weights, temp_path, dict(metadata) if metadata else None)
            temp_path.replace(target)
        for old_version in self.versions()[:-KEEP_VERSIONS]:
            self.path(old_version).unlink(missing_ok=True)
        return target

    def publish_adapter(self, version: int, need: int, save: Callable[[Path], None]) -> Path:
        """Let `save` fill the directory of a version with about `need` bytes. The directory appears
        completely or not at all, and replaces one of the same version.

        Raises:
            WeightsError: it does not fit, or cannot be written.
        """
        target = self.adapter_path(version)
        temp_path = target.with_suffix(".tmp")
        with _explain_write_errors(self.directory, need):
            temp_path.mkdir(mode=0o700)
            save(temp_path)
            if target.exists():
                shutil.rmtree(target)
            temp_path.replace(target)
        for old_version in self._numbers(_ADAPTER)[:-KEEP_VERSIONS]:
            shutil.rmtree(self.adapter_path(old_version))
        return target

    def versions(self) -> list[int]:
        """The versions whose weights are stored, oldest first."""
        return self._numbers(_WEIGHTS)

    def _numbers(self, pattern: re.Pattern[str]) -> list[int]:
        matches = (pattern.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match["version"]) for match in matches if match)

    def close(self) -> None:
        """Remove the directory and its files."""
        shutil.rmtree(self.directory, ignore_errors=True)
