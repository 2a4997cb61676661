"""Resident memory of one running node, by process, alone and with a peer.

    python benchmarks/memory.py [--seconds 30]

Starts real `swarm-node join` processes on loopback and reads the unique set size (what ending the
process would free) and the resident set size of each of their processes. Named limit: a hivemind
DHT node by itself (python 282 MB + p2pd 62 MB resident, docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from swarm_node.demo import FAMILIES, DemoNode
from swarm_node.node.home import Home

HIVEMIND_ALONE_MIB = 344


def measure(node: DemoNode) -> list[tuple[str, float, float]]:
    """(name, RSS MiB, USS MiB) of the node and each child."""
    assert node.process is not None
    assert node.snapshot is not None
    names = {pid: name for name, pid in node.snapshot.processes.items()}
    parent = psutil.Process(node.process.pid)
    rows = []
    for process in [parent, *parent.children(recursive=True)]:
        memory = process.memory_full_info()
        name = "node" if process.pid == parent.pid else names.get(process.pid, process.name())
        rows.append((name, memory.rss / 2**20, memory.uss / 2**20))
    return rows


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory) / "node")
        home.found_swarm("memory", time.time())
        node = DemoNode("node", home, FAMILIES)
        await node.start(None)
        try:
            while node.snapshot is None or node.snapshot.state != "running":
                await node.poll()
                await asyncio.sleep(0.5)
            await asyncio.sleep(seconds)
            await node.poll()
            rows = measure(node)
            print(f"after {seconds:.0f} s and {node.snapshot.updates} updates of the tiny model")
            print(f"{'process':14} {'RSS MiB':>8} {'USS MiB':>8}")
            for name, rss, uss in rows:
                print(f"{name:14} {rss:8.0f} {uss:8.0f}")
            total = sum(row[1] for row in rows)
            print(f"{'sum':14} {total:8.0f} {sum(row[2] for row in rows):8.0f}")
            print(
                f"ratio to a bare hivemind node ({HIVEMIND_ALONE_MIB} MiB): "
                f"{total / HIVEMIND_ALONE_MIB:.2f} (RSS)"
            )
        finally:
            await node.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    asyncio.run(main(parser.parse_args().seconds))
