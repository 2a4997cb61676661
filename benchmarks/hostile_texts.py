"""What a member's costly texts take from another node's learning, in batches per second.

    python benchmarks/hostile_texts.py [--seconds 40] [--repetitions 3]

A real node learns beside a modified member (tests/hostile_member.py) that publishes groups of eight
texts: in one phase short wrong ones, in the other 64 kB ones of six shapes that are costly for some
parser. Phases take turns; the ratio is that of the median rates, costly over short.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from node_process import NodeProcess

from swarm_node.node.snapshot import Snapshot

MEMBER = str(Path(__file__).resolve().parents[1] / "tests" / "hostile_member.py")
QUIET = ["run.eval_seconds=3600"]


def phase(founder: NodeProcess, member: NodeProcess, seconds: float) -> tuple[float, int]:
    """Batches per second of the founder beside this member, and groups that it refused."""
    try:
        member.start()
        time.sleep(10)  # it has met the founder and published
        before, began = founder.status(), time.monotonic()
        time.sleep(seconds)
        after, took = founder.status(), time.monotonic() - began
    finally:
        member.stop()
    refused = sum(after.rejected.values()) - sum(before.rejected.values())
    return (_batches(after) - _batches(before)) / took, refused


def _batches(status: Snapshot) -> int:
    """Batches that the trainer took, those without an advantage too: their share grows as the node
    learns, whoever its peers are."""
    return status.updates + status.skipped_updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--repetitions", type=int, default=3)
    wanted = parser.parse_args()
    rates: dict[str, list[float]] = {"wrong": [], "costly": []}
    with tempfile.TemporaryDirectory() as directory:
        ticket, place = Path(directory, "ticket"), Path(directory, "member")
        place.mkdir()
        founder = NodeProcess(Path(directory), QUIET)
        try:
            addresses = founder.start().addresses
            day = 86400.0
            ticket.write_text(
                founder.home.invite(
                    addresses, now=time.time(), valid_seconds=day, member_seconds=day
                )
            )
            for _ in range(wanted.repetitions):
                for kind, found in rates.items():
                    member = NodeProcess(place, QUIET, (MEMBER, kind), ticket)
                    rate, refused = phase(founder, member, wanted.seconds)
                    found.append(rate)
                    print(f"{kind:7} {rate:6.2f} batches/s   {refused} refusals", flush=True)
            faults = founder.status().faults
        finally:
            founder.stop()
    wrong, costly = (statistics.median(found) for found in rates.values())
    print(f"costly over short: {costly / wrong:.2f} (goal 0.90)   faults {faults or 'none'}")


if __name__ == "__main__":
    main()
