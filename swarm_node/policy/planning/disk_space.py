"""Room for what a node that fits a machine stores there: checkpoints on the disk of its home, and
policy versions in shared memory. Pure."""

from __future__ import annotations

from pathlib import Path

from swarm_node.errors import HomeError
from swarm_node.policy.memory.footprint import KEPT_CHECKPOINTS, adapter_count, checkpoint_bytes
from swarm_node.policy.memory.plan import DEFAULT_RANK
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.planning.fit import Fit
from swarm_node.policy.weights import KEEP_VERSIONS


def check_disk(home: Path, shape: ModelConfig, fit: Fit, room: int) -> str | None:
    """Check the disk of `home`, on which checkpoints may take `room` bytes, existing ones
    included. Returns a warning, None if all checkpoints to keep fit.

    Raises:
        HomeError: the first two do not fit. One must stay while the next is written.
    """
    rank, eight_bit = fit.training.lora_rank, fit.job.eight_bit
    size = checkpoint_bytes(shape, rank, eight_bit=eight_bit)
    if room >= KEPT_CHECKPOINTS * size:
        return None
    needs = (
        f"a checkpoint takes {size / 1e9:,.1f} GB here, and {room / 1e9:,.1f} GB are free on the "
        f"disk of {home}"
    )
    if room >= 2 * size:
        return f"{needs}: fewer than {KEPT_CHECKPOINTS} will be kept"
    lora_size = checkpoint_bytes(shape, DEFAULT_RANK, eight_bit=eight_bit) / 1e9
    lighter = (
        f", or train adapters (training.lora_rank = {DEFAULT_RANK}), whose checkpoints take "
        f"{lora_size:,.1f} GB"
    ) * (not rank)
    raise HomeError(
        f"{needs}, where two must fit",
        f"free {(2 * size - room) / 1e9:,.1f} GB there, give a "
        f"data directory on another disk (--home){lighter}",
    )


def shared_bytes(shape: ModelConfig, fit: Fit) -> int:
    """Bytes of shared memory for passing weights to the sampler: the versions that are kept, the
    next one, and a base that both processes map."""
    rank, copies, width = fit.training.lora_rank, KEEP_VERSIONS + 1, 2 if fit.placement.half else 4
    if fit.ipc:
        return 0
    if rank:
        mapped = fit.shares_base and fit.placement.device == "cpu"
        versions = copies * 4 * adapter_count(shape, rank)
        return versions + (width * shape.weight_count if mapped else 0)
    return copies * width * shape.weight_count
