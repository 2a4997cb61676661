"""Whether a model fits this machine, asked before it is downloaded or loaded. No torch."""

from __future__ import annotations

from pathlib import Path

import psutil

from swarm_node.errors import ModelError
from swarm_node.policy.memory.footprint import Training, footprint
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.placement import ON_CPU, Placement

_CGROUP = Path("/sys/fs/cgroup")


def check_memory(
    config: Qwen2Config,
    lora_rank: int = 0,
    *,
    placement: Placement = ON_CPU,
    trainer_processes: int = 1,
    free: int | None = None,
) -> None:
    """Refuse a model that the `free` memory (default: this machine's) does not hold when a node
    trains it, all of it or adapters of `lora_rank`. On a CPU, memory holds weights, gradients and
    moments. Where a node computes on a GPU, main memory holds only what is on its way: the weights
    that each trainer process and the sampler load, and the published ones.

    Raises:
        ModelError: it does not fit; the message says how much it needs.
    """
    on_cpu = placement.device == "cpu"
    if on_cpu:
        parts = footprint(config, Training(lora_rank), device="cpu", rows=1, max_new_tokens=1)
        # Every process has the whole model for the moment in which it takes its part of it.
        needed = parts.resident + 4 * config.weight_count * (trainer_processes - 1)
    else:
        needed = 4 * config.weight_count * (trainer_processes + 2)
    free = available_memory() if free is None else free
    if needed > free:
        lighter = "set training.lora_rank, which takes about half, or " * (on_cpu and not lora_rank)
        raise ModelError(
            f"a model of {config.weight_count / 1e6:,.0f} million weights needs at least "
            f"{needed / 1e9:.1f} GB of memory here and {free / 1e9:.1f} GB are free: {lighter}"
            "choose a smaller one, such as qwen2.5-0.5b or tiny, or a machine with more memory"
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
