"""Seconds until two real nodes trade groups again after their network changed.

    sudo python benchmarks/returning.py [fault ...] [--nat restricted]

A public node and one behind a router, in the namespaces of tests/sites/bed.py. For every fault: the
seconds from its end until both nodes again get groups of each other that were not under way. Needs
root and what the bed needs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from sites.bed import Bed, Nat, why_not
from sites.scene import Scene, scene

#: Least seconds without groups after a fault, before a new group counts.
_QUIET = 2.0
_LONGEST = 180.0
_GROUPS = 3
AWAY, HOME = "a1", "pub1"
#: A policy that learns makes fewer and fewer groups that are worth trading.
_STEADY = ("--set", "training.learning_rate=1e-9")


def received(one: Scene, ids: dict[str, str]) -> tuple[int, ...]:
    """Groups that each of the two nodes got of the other."""
    counts = []
    for host, other in ((AWAY, HOME), (HOME, AWAY)):
        peers = (one.status(host) or {"peers": []})["peers"]
        counts.append(sum(p["accepted"] for p in peers if p["peer_id"] == ids[other]))
    return tuple(counts)


def back(one: Scene, ids: dict[str, str], since: float) -> list[float]:
    """Seconds from `since` until the end of the longest gap between groups, for each node."""
    times: list[list[float]] = [[since], [since]]
    before = received(one, ids)
    while time.monotonic() - since < _LONGEST:
        time.sleep(0.2)
        now, counts = time.monotonic(), received(one, ids)
        for arrival_times, old, new in zip(times, before, counts, strict=True):
            arrival_times += [now] * max(0, new - old)
        before = counts
        # Both have been trading for ten seconds.
        if all(
            len([t for t in arrival_times if t > now - 10]) >= _GROUPS for arrival_times in times
        ) and (now - since > 20):
            return [_after_gap(arrival_times) - since for arrival_times in times]
    return [math.inf] * 2


def _after_gap(times: list[float]) -> float:
    """End of the longest gap; the first time if the gap was shorter than _QUIET seconds."""
    gap, end = max((late - early, late) for early, late in itertools.pairwise(times))
    return end if gap > _QUIET else times[0]


def cut(seconds: float) -> Callable[[Scene], None]:
    def fault(one: Scene) -> None:
        one.bed.cut("a")
        time.sleep(seconds)
        one.bed.join("a")

    return fault


def bootstrap_killed(one: Scene) -> None:
    one.nodes[HOME].end()
    time.sleep(5)
    one.nodes[HOME].start()
    one.nodes[HOME].wait(lambda now: now["state"] == "running")


FAULTS: dict[str, Callable[[Scene], object]] = {
    "flush": lambda one: one.bed.flush("a"),
    "readdress": lambda one: one.bed.readdress("a"),
    "move": lambda one: one.bed.move(AWAY, "b"),
    "cut 20 s": cut(20),
    "cut 60 s": cut(60),
    "cut 240 s": cut(240),
    "bootstrap": bootstrap_killed,
    "move back": lambda one: one.bed.move(AWAY, "a"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=list(FAULTS))
    parser.add_argument("--nat", default="restricted")
    args = parser.parse_args()
    if why := why_not():
        sys.exit(f"NOT RUN: {why}")
    with (
        tempfile.TemporaryDirectory(prefix="bed-") as place,
        Bed({"a": Nat(args.nat), "b": Nat(args.nat)}, public=1, hosts=1) as bed,
        scene(bed, Path(place), *_STEADY) as one,
    ):
        one.start(HOME)
        one.start(AWAY)
        ids = one.peer_ids()
        began = time.monotonic()
        print(f"met: {back(one, ids, began)}", flush=True)
        for fault in args.faults:
            fault_start = time.monotonic()
            FAULTS[fault](one)
            healed = time.monotonic()
            recovery_times = [f"{seconds:.1f}" for seconds in back(one, ids, healed)]
            print(
                f"{fault} ({healed - fault_start:.0f} s): "
                f"{AWAY} {recovery_times[0]}, {HOME} {recovery_times[1]}",
                flush=True,
            )
        for host, node in one.nodes.items():
            print(host, node.log()[-1500:], (one.status(host) or {}).get("rejected"))


if __name__ == "__main__":
    main()
