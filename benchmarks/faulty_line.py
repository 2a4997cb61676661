"""Groups that two real nodes trade over a bad line, relative to a good one.

    python benchmarks/faulty_line.py [--latency 0.2] [--drop 0.01] [--seconds 45] [--rounds 3]

Two `swarm-node join --model tiny` on this machine reach each other through two proxies
(tests/sites/faults.py) only. Phases alternate: without faults, then with `--latency` seconds in
each direction and the share `--drop` of new connections dropped. Before each phase all connections
are reset, and it begins when groups come again. Prints groups a minute of both nodes, and the
ratio.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from running import RunningNode
from sites.faults import FaultProxy, Faults, proxied

#: A policy that learns makes fewer and fewer groups that are worth trading.
_STEADY = ("--model", "tiny", "--set", "training.learning_rate=1e-9")


def receives(count: int) -> Callable[[dict[str, Any]], bool]:
    """Tell by a status whether its node has received more than `count` groups."""
    return lambda status: status["groups"]["accepted"] > count


def pair(place: Path, stack: ExitStack) -> tuple[list[RunningNode], list[FaultProxy]]:
    """Two nodes that trade, each behind a proxy."""
    nodes: list[RunningNode] = []
    proxies: list[FaultProxy] = []
    arguments = list(_STEADY)
    for index in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        listener = socket.create_server(("127.0.0.1", 0))
        proxy = FaultProxy(("127.0.0.1", port), seed=index)
        proxies.append(stack.enter_context(proxied(proxy, listener)))
        announced = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"
        node = RunningNode(
            place / str(index),
            [*arguments, "--advertise", announced],
            listen=f"/ip4/127.0.0.1/tcp/{port}",
        )
        stack.callback(node.end)
        node.start()
        nodes.append(node)
        if not index:
            arguments += ["--ticket-file", node.invite(uses=1)]
    for node in nodes:
        node.wait(lambda status: status["groups"]["accepted"] >= 20)
    return nodes, proxies


def rate(nodes: list[RunningNode], seconds: float) -> float:
    """Groups that came from peers in a minute, of both nodes."""

    def received(node: RunningNode) -> tuple[int, float]:
        status = node.wait(lambda status: True)
        return int(status["groups"]["accepted"]), time.monotonic()

    before = [received(node) for node in nodes]
    time.sleep(seconds)
    after = [received(node) for node in nodes]
    return sum(
        (new - old) / (end_time - start_time) * 60
        for (old, start_time), (new, end_time) in zip(before, after, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--drop", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    arms = {"good line": Faults(), "bad line": Faults(latency=args.latency, drop=args.drop)}
    totals = dict.fromkeys(arms, 0.0)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        nodes, proxies = pair(Path(place), stack)
        for _ in range(args.rounds):
            for arm, faults in arms.items():
                for proxy in proxies:
                    proxy.faults = faults
                    proxy.reset()
                before = [node.wait(lambda status: True)["groups"]["accepted"] for node in nodes]
                for node, old in zip(nodes, before, strict=True):
                    node.wait(receives(old + 10))
                groups_per_minute = rate(nodes, args.seconds)
                totals[arm] += groups_per_minute
                print(f"{arm}: {groups_per_minute:.0f} groups a minute", flush=True)
        print(f"ratio {totals['bad line'] / totals['good line']:.2f} (goal 0.8)")


if __name__ == "__main__":
    main()
