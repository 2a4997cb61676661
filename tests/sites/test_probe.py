"""Nodes learn what kind of NAT they sit behind, over real links, and what members reach is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, Queue
from string import ascii_lowercase
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
    Nat.ADDRESS: ("relayed", "address"),
    Nat.RESTRICTED: ("relayed", "restricted"),
    Nat.REJECT: ("relayed", "reject"),
    Nat.SYMMETRIC: ("relayed", "symmetric"),
    Nat.HTTPS_ONLY: ("relayed", "restricted"),
    Nat.NO_UDP: ("relayed", "restricted"),
}

pytestmark = [pytest.mark.sites, pytest.mark.nightly(reason="every kind of NAT takes minutes")]


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
        self.process.stdin.close()
        self.process.wait(60)
        self._reading.join(60)
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(json.loads(line))


def address(bed: Bed, host: str, number: int, port: int) -> str:
    peer_id = swarm().member(number).identity.peer_id
    return f"/ip4/{bed.address(host)}/tcp/{port}/p2p/{peer_id}"


@pytest.mark.slow(reason="ten processes, each with a network daemon")
@pytest.mark.timeout(900)
def test_every_kind_of_nat_comes_out_right(tmp_path: Path) -> None:
    sites = dict(zip(ascii_lowercase, EXPECTED, strict=False))
    with Bed(sites, public=2, hosts=1) as bed, ExitStack() as nodes:

        def start(host: str, number: int, *arguments: str) -> ProbingNode:
            node = ProbingNode(bed, host, number, tmp_path / host, *arguments)
            nodes.callback(node.stop)
            return node

        known = [address(bed, f"pub{n}", n, 443) for n in (1, 2)]
        for node in (start("pub1", 1, LISTEN), start("pub2", 2, LISTEN, known[0])):
            node.wait(lambda told: told["kind"] != "unknown")
        started = {
            site: start(f"{site}1", number, f"/ip4/0.0.0.0/tcp/{PORT}", *known)
            for number, site in enumerate(sites, 3)
        }
        for site, node in started.items():
            kind, nat = EXPECTED[sites[site]]
            public = f"/ip4/{bed.address(site)}/tcp/{PORT}/p2p/"

            def right(
                told: dict[str, Any],
                said: tuple[str, str] = (kind, nat),
                public: str = public,
            ) -> bool:
                """Also announced only where it is direct: addresses are read every few seconds."""
                announced = any(text.startswith(public) for text in told["addresses"])
                found = told["kind"], told["nat"]
                return found == said and announced == (told["kind"] == "direct")

            node.wait(right)
