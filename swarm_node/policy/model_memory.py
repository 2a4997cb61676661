"""Whether a model fits this machine, asked before it is downloaded or loaded. No torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from swarm_node.errors import ModelError
from swarm_node.policy.model_files import Qwen2Config
from swarm_node.policy.placement import Placement

#: Bytes of memory per weight, all in float32: the trainer's weights, gradients and two moments of
#: AdamW, the copy it publishes, and the sampler's weights.
FULL_TRAINING = 4 * (1 + 1 + 2 + 1 + 1)
_CGROUP = Path("/sys/fs/cgroup")


def memory_check(placement: Placement, trainer_processes: int) -> Callable[[Qwen2Config], None]:
    """`check_memory` for a node that computes there. Where that is a GPU, main memory holds only
    what is on its way: weights that each trainer process and the sampler load, and published ones.
    """
    if placement.device == "cpu":
        # Every process has the whole model for the moment in which it takes its part of it.
        return partial(check_memory, bytes_per_weight=FULL_TRAINING + 4 * (trainer_processes - 1))
    return partial(check_memory, bytes_per_weight=4 * (trainer_processes + 2))


def check_memory(config: Qwen2Config, bytes_per_weight: int = FULL_TRAINING) -> None:
    """Refuse a model whose weights alone, held as a node holds them, exceed the free memory.

    Raises:
        ModelError: it does not fit; the message says how much it needs.
    """
    needed, free = config.weight_count * bytes_per_weight, available_memory()
    if needed > free:
        raise ModelError(
            f"a model of {config.weight_count / 1e6:,.0f} million weights needs at least "
            f"{needed / 1e9:.1f} GB of memory here ({bytes_per_weight} bytes a weight) and "
            f"{free / 1e9:.1f} GB are free: choose a smaller one, such as qwen2.5-0.5b or tiny, or "
            "a machine with more memory"
        )


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that this process may still take: what the machine has to give, and what is left of
    its control group's limit (containers)."""
    free = int(psutil.virtual_memory().available)
    limit, used = (_number(cgroup / name) for name in ("memory.max", "memory.current"))
    if limit is not None and used is not None:
        cached = _statistic(cgroup / "memory.stat", "inactive_file")
        free = min(free, max(limit - used + cached, 0))
    return free


def _number(path: Path) -> int | None:
    """The number in a small file; None where there is no such file or it says "max"."""
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
