"""How several trainer processes are started: torch's launcher, with nothing on the network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

RANK_MODULE = "swarm_node.policy.training.rank_worker"
_PREFIX = "ranks-"


def launch_ranks(
    weights: Path, count: int, program: Sequence[str] = ("-m", RANK_MODULE)
) -> Sequence[str]:
    """What the interpreter runs to start `count` ranks on this machine, which share the private
    directory `weights` and one new directory in it, the last argument of their `program`. They have
    the launcher's standard input; when one dies, the launcher kills the others and ends."""
    for leftover in weights.glob(_PREFIX + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=weights))
    # The launcher's own way to meet is a store on a port of every interface, whose values it
    # unpickles. A file in a private directory needs no port.
    return (
        *("-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc-per-node", str(count), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"),
        *("--rdzv-endpoint", str(directory / "launcher"), "--rdzv-id", directory.name),
        *("--local-addr", "127.0.0.1", "--log-dir", str(directory)),
        *program,
        str(directory),
    )


def rank_environment() -> dict[str, str]:
    """Variables for the launcher and the ranks: what they say stays on this machine."""
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
