"""Free memory and free disk of this machine, and the main memory that a node needs. No torch."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import psutil

from swarm_node.policy.memory.footprint import TrainingMethod, checkpoint_bytes, footprint
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import ON_CPU, Placement

_CGROUP = Path("/sys/fs/cgroup")
#: Main memory of the processes of a node with a GPU, CUDA's libraries and contexts included: an
#: assumption.
_PROCESSES = 3 << 30


def needed_memory(
    config: ModelConfig,
    lora_rank: int = 0,
    *,
    placement: Placement = ON_CPU,
    trainer_processes: int = 1,
    one_base: bool = False,
    nf4: bool = False,
) -> int:
    """Bytes of main memory that must be free for a node that trains all weights of a model, or
    adapters of `lora_rank`. For `one_base` see `footprint`, for `nf4` `TrainingMethod`."""
    if placement.device != "cpu":
        # A frozen base is read straight to the GPU. Others are loaded on their way there; and two
        # published versions are kept, with the copy of one.
        return _PROCESSES + (0 if lora_rank else (4 + 6) * config.weight_count)
    parts = footprint(
        config,
        TrainingMethod(lora_rank, dtype=placement.products, nf4=nf4),
        device="cpu",
        rows=1,
        max_new_tokens=1,
        one_base=one_base,
    )
    # Code and libraries, of which this process has loaded its own, are left to the plan.
    required_bytes = parts.resident - parts.reserve
    # Of trained weights each process reads its part; a frozen base is whole in each.
    if lora_rank:
        required_bytes += (
            (2 if placement.half else 4) * config.weight_count * (trainer_processes - 1)
        )
        # Without the memory for a copy of all weights, training waits for the write.
        required_bytes += checkpoint_bytes(config, lora_rank)
    return required_bytes


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that this process may still allocate, by the machine's free memory and by the limit of
    its control group (containers)."""
    free = int(psutil.virtual_memory().available)
    limit, usage = (_number(cgroup / name) for name in ("memory.max", "memory.current"))
    if limit is not None and usage is not None:
        page_cache = _statistic(cgroup / "memory.stat", "inactive_file")
        free = min(free, max(limit - usage + page_cache, 0))
    return free


def free_disk(path: Path) -> int:
    """Bytes of `path`'s disk that this user may still write; `path` need not exist yet."""
    ancestor = next(place for place in (path, *path.absolute().parents) if place.exists())
    return shutil.disk_usage(ancestor).free


def checkpoint_room(checkpoints: Path) -> int:
    """Bytes that checkpoints in this directory may take: the stored ones and the free space
    together."""
    stored_bytes = sum(file.stat().st_size for file in checkpoints.rglob("*") if file.is_file())
    return stored_bytes + free_disk(checkpoints)


def _number(path: Path) -> int | None:
    """The number in a small file; None if the file does not exist or holds "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(row[1]) for row in rows if row[0] == name), 0)


def memory_in_use() -> int:
    """Memory of this process and its descendants in bytes. Shared pages count once (PSS) on Linux,
    for processes that it may read."""
    parent = psutil.Process()
    total = 0
    for process in (parent, *parent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            try:
                total += int(getattr(process.memory_full_info(), "pss", 0))
            except psutil.AccessDenied:
                total += int(process.memory_info().rss)
    return total
