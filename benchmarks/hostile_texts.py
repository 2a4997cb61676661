"""What a member's costly texts take from another node's learning, in batches per second.

    python benchmarks/hostile_texts.py [--seconds 40] [--repetitions 3]

A real node learns beside a modified member (tests/hostile_member.py) that publishes groups of eight
texts: in one phase short wrong ones, in the other 64 kB ones of six shapes that are costly for some
parser. Phases take turns; the ratio is that of the median rates, costly over short.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NODE = [sys.executable, "-m", "swarm_node"]
MEMBER = [sys.executable, str(ROOT / "tests" / "hostile_member.py")]
QUIET = ["--listen", "/ip4/127.0.0.1/tcp/0", "--set", "run.eval_seconds=3600"]


def start(command: list[str], home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    home.mkdir(exist_ok=True)
    with (home / "log").open("ab") as log:
        return subprocess.Popen(
            [*command, "join", "--home", str(home), *QUIET, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def status(home: Path) -> dict[str, Any]:
    """The node's status; empty while it is not there."""
    asked = [*NODE, "status", "--home", str(home), "--json"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def wait(home: Path, key: str, least: int) -> None:
    deadline = time.monotonic() + 120
    while status(home).get(key, 0) < least:
        if time.monotonic() > deadline:
            sys.exit(f"not within two minutes:\n{(home / 'log').read_text()[-2000:]}")
        time.sleep(1)


def phase(
    kind: str, founder: Path, member: Path, ticket: Path, seconds: float
) -> tuple[float, int]:
    """Batches per second of the founder beside a member of this kind, and groups it refused."""
    process = start([*MEMBER, kind], member, "--ticket-file", str(ticket))
    try:
        wait(member, "updates", 0)
        time.sleep(10)  # it has met the founder and published
        before, began = status(founder), time.monotonic()
        time.sleep(seconds)
        after, took = status(founder), time.monotonic() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    refused = sum(after["rejected"].values()) - sum(before["rejected"].values())
    return (_batches(after) - _batches(before)) / took, refused


def _batches(status: dict[str, Any]) -> int:
    """Batches that the trainer took, those without an advantage too: their share grows as the node
    learns, whoever its peers are."""
    return int(status["updates"] + status["skipped_updates"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--repetitions", type=int, default=3)
    wanted = parser.parse_args()
    rates: dict[str, list[float]] = {"wrong": [], "costly": []}
    with tempfile.TemporaryDirectory() as directory:
        founder, member = Path(directory, "founder"), Path(directory, "member")
        process = start(NODE, founder)
        try:
            wait(founder, "updates", 5)
            ticket = Path(directory, "ticket")
            invited = [*NODE, "invite", "--home", str(founder)]
            ticket.write_text(subprocess.run(invited, capture_output=True, text=True).stdout)
            for _ in range(wanted.repetitions):
                for kind, found in rates.items():
                    rate, refused = phase(kind, founder, member, ticket, wanted.seconds)
                    found.append(rate)
                    print(f"{kind:7} {rate:6.2f} batches/s   {refused} refusals", flush=True)
            faults = status(founder)["faults"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    wrong, costly = (statistics.median(found) for found in rates.values())
    print(f"costly over short: {costly / wrong:.2f} (goal 0.90)   faults {faults or 'none'}")


if __name__ == "__main__":
    main()
