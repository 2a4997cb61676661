"""Resident memory of one running node, by process, alone and with a peer.

    python benchmarks/memory.py [--seconds 30]

Starts real `swarm-node join` processes on loopback and reads the unique set size (what ending the
process would free) and the resident set size of each of their processes. Named limit: a hivemind
DHT node by itself (python 282 MB + p2pd 62 MB resident, docs/research/benchmarks.md).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from node_process import NodeProcess, tree

HIVEMIND_ALONE_MIB = 344


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = NodeProcess(Path(directory), ["run.eval_seconds=5"])
        try:
            node.start()
            time.sleep(seconds)
            snapshot = node.status()
            rows = measure(node.process.pid, snapshot.processes)
        finally:
            node.stop()
    print(f"after {seconds:.0f} s and {snapshot.steps} updates of the tiny model")
    print(f"{'process':14} {'RSS MiB':>8} {'USS MiB':>8}")
    total = sum(row[1] for row in rows)
    for name, rss, uss in [*rows, ("sum", total, sum(row[2] for row in rows))]:
        print(f"{name:14} {rss:8.0f} {uss:8.0f}")
    print(
        f"ratio to a bare hivemind node ({HIVEMIND_ALONE_MIB} MiB): "
        f"{total / HIVEMIND_ALONE_MIB:.2f} (RSS)"
    )


def measure(node: int, children: dict[str, int]) -> list[tuple[str, float, float]]:
    """(name, RSS MiB, USS MiB) of the node and each of its processes."""
    names = {node: "node", **{pid: name for name, pid in children.items()}}
    rows = []
    for process in tree(node):
        memory = process.memory_full_info()
        name = names.get(process.pid) or process.name()
        rows.append((name, memory.rss / 2**20, memory.uss / 2**20))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    main(parser.parse_args().seconds)
