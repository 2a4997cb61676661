"""Start of several trainer processes with torch's launcher, and the meeting of several hosts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

RANK_MODULE = "swarm_node.policy.training.processes.rank_worker"
#: The variable with the `Rendezvous` of the processes of a host.
MEETING = "SWARM_TRAINER_MEETING"
_PREFIX = "ranks-"


class Rendezvous(msgspec.Struct, frozen=True):
    """Place where the processes of host number `index` of `hosts` meet the others. A host other
    than the node's has a model and a directory of its own."""

    index: int
    hosts: int
    address: str
    port: int
    model_dir: str = ""
    directory: str = ""

    def environment(self, interface: str) -> dict[str, str]:
        """Variables for the processes, whose traffic uses the network `interface`."""
        return {
            MEETING: msgspec.json.encode(self).decode(),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": f"={interface}",
        }

    @staticmethod
    def from_environment() -> Rendezvous | None:
        """The meeting of this process; None if all processes are on one host."""
        text = os.environ.get(MEETING)
        return None if text is None else msgspec.json.decode(text, type=Rendezvous)


def launch_ranks(
    weights: Path, count: int, program: Sequence[str] = ("-m", RANK_MODULE)
) -> Sequence[str]:
    """Arguments of the interpreter that start `count` ranks on this machine. The ranks share the
    private directory `weights` and a new directory in it, which is the last argument of their
    `program`. They inherit the launcher's standard input. When one dies, the launcher kills the
    others and ends. The launcher uses no network."""
    for leftover in weights.glob(_PREFIX + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=weights))
    # The launcher's default rendezvous is a store on a port of every interface, whose values it
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
    """Variables that keep the traffic of the launcher and the ranks on this machine."""
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
