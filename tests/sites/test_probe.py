"""Nodes learn what kind of NAT they sit behind, over real links, and what members reach is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
from builders import ROOT
from sites.bed import Bed, Nat
from sites.probing_node import swarm

#: A port that Nat.OPEN forwards.
PORT = 25000
#: Members of the Internet listen on 443 too, for those that may go nowhere else.
LISTEN = "/ip4/0.0.0.0/tcp/30000,/ip4/0.0.0.0/tcp/443"
EXPECTED = {
    Nat.OPEN: ("direct", "open"),
    Nat.CONE: ("direct", "open"),
    Nat.ADDRESS: ("unreachable", "address"),
    Nat.RESTRICTED: ("unreachable", "restricted"),
    Nat.REJECT: ("unreachable", "reject"),
    Nat.SYMMETRIC: ("unreachable", "symmetric"),
    Nat.HTTPS_ONLY: ("unreachable", "restricted"),
    Nat.NO_UDP: ("unreachable", "restricted"),
}

pytestmark = pytest.mark.sites


class ProbingNode:
    """A process of `probing_node.py` in a host of a bed."""

    def __init__(self, bed: Bed, host: str, number: int, place: Path, *arguments: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self._told: Queue[dict[str, Any]] = Queue()
        script = str(ROOT / "tests" / "sites" / "probing_node.py")
        self.process = bed.run(
            host,
            [sys.executable, "-W", "ignore", script, str(number), str(place), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def wait(self, what: Callable[[dict[str, Any]], bool], seconds: float = 240) -> dict[str, Any]:
        """What it says of itself once `what` holds."""
        deadline, told = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            assert self.process.poll() is None
            try:
                told = self._told.get(timeout=1.0)
            except Empty:
                continue
            if what(told):
                return told
        raise AssertionError(f"not within {seconds} s; last it said {told}")

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._reading.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(json.loads(line))


def address(bed: Bed, host: str, number: int, port: int) -> str:
    peer_id = swarm().member(number).identity.peer_id
    return f"/ip4/{bed.address(host)}/tcp/{port}/p2p/{peer_id}"


@contextmanager
def probing(*arguments: Any) -> Iterator[ProbingNode]:
    node = ProbingNode(*arguments)
    try:
        yield node
    finally:
        node.stop()


@pytest.mark.slow(reason="four processes with a network daemon each, and eight more in turn")
@pytest.mark.timeout(1800)
def test_every_kind_of_nat_comes_out_right(tmp_path: Path) -> None:
    with Bed({"a": Nat.OPEN, "b": Nat.RESTRICTED}, public=2, hosts=1) as bed:
        known = [address(bed, f"pub{n}", n, 443) for n in (1, 2)]
        with (
            probing(bed, "pub1", 1, tmp_path / "1", LISTEN) as one,
            probing(bed, "pub2", 2, tmp_path / "2", LISTEN, known[0]) as two,
            # It has links to public hosts only, so it is the stranger of those behind NAT.
            probing(bed, "b1", 3, tmp_path / "3", f"/ip4/0.0.0.0/tcp/{PORT}", *known) as far,
        ):
            for node in (one, two):
                node.wait(lambda told: (told["kind"], told["nat"]) == ("direct", "none"))
            far.wait(lambda told: told["nat"] == "restricted" and len(told["probes"]) == 2)
            for nat, expected in EXPECTED.items():
                bed.kind("a", nat)
                place = tmp_path / nat.name
                own = (4 + list(Nat).index(nat), place, f"/ip4/0.0.0.0/tcp/{PORT}", *known)
                with probing(bed, "a1", *own) as node:
                    told = node.wait(lambda told: len(told["probes"]) > 1)
                    assert (told["kind"], told["nat"]) == expected, (nat, told)
                    public = f"/ip4/{bed.address('a')}/tcp/{PORT}/p2p/"
                    announced = [text for text in told["addresses"] if text.startswith(public)]
                    assert len(announced) == (expected[0] == "direct"), told
