"""Seven real nodes at three sites: their trade, the cost of faults, and their learning.

    sudo python benchmarks/three_sites.py [lan] [sites] [faults] [learning] [--seconds 90]

Sites as in tests/sites/test_three_sites.py: three public hosts, two hosts behind symmetric NAT
(`a`), two that only port 443 lets out (`b`), in the namespaces of tests/sites/bed.py. `lan` has
as many nodes on one network. Both print groups a minute. `faults` prints, for each fault, the
longest time in which a node that ran made no update, and the seconds from the end of the fault
until every node has groups of both other sites that it did not have. `learning` prints held-out
reward on families that a node never samples, at first and at the end. Needs root and what the bed
needs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from sites.bed import Bed, Nat, why_not
from sites.scene import Scene, scene

from swarm_node.environments.bundled.drills import PRESETS

SITES = {"pub": ("pub1", "pub2", "pub3"), "a": ("a1", "a2"), "b": ("b1", "b2")}
HOSTS = [host for hosts in SITES.values() for host in hosts]
#: A policy that learns makes fewer and fewer groups that are worth trading.
_STEADY = ("--set", "training.learning_rate=1e-9")
_LONGEST = 240.0
_FAMILIES = sorted(PRESETS["short"])


@contextmanager
def swarm(bed: Bed, hosts: list[str], *arguments: str, split: bool = False) -> Iterator[Scene]:
    """Running nodes that have all heard of groups of the others. With `split` a node samples two of
    the task families, or one."""
    with (
        tempfile.TemporaryDirectory(prefix="sites-") as place,
        bed,
        scene(bed, Path(place), "--listen", "/ip4/0.0.0.0/tcp/443", *arguments) as swarm_scene,
    ):
        for number, host in enumerate(hosts):
            families = ",".join(_FAMILIES[number :: len(hosts)])
            swarm_scene.start(host, *(["--families", families] if split else []))
        swarm_scene.peer_ids()
        _wait(lambda: all(_received(swarm_scene, host) for host in hosts), swarm_scene)
        yield swarm_scene


def three_sites() -> Bed:
    return Bed({"a": Nat.SYMMETRIC, "b": Nat.HTTPS_ONLY}, public=3)


def traded(swarm_scene: Scene, seconds: float) -> float:
    """Groups a minute that came to all nodes together."""

    def total() -> int:
        return sum(sum(_received(swarm_scene, host).values()) for host in swarm_scene.nodes)

    before, start_time = total(), time.monotonic()
    time.sleep(seconds)
    return (total() - before) * 60 / (time.monotonic() - start_time)


@dataclass
class SitesWatch:
    """Figures of the nodes since `begun`. `look` is called repeatedly."""

    made: Scene
    begun: float = field(default_factory=time.monotonic)
    longest: dict[str, float] = field(default_factory=dict)
    _versions: dict[str, tuple[int, float | None]] = field(default_factory=dict)

    def look(self, without: tuple[str, ...] = ()) -> None:
        for host in self.made.nodes:
            status, now = self.made.status(host), time.monotonic()
            if host in without or status is None:
                self._versions.pop(host, None)
                continue
            version, since = self._versions.setdefault(host, (status["version"], None))
            if since is not None:  # its first update was seen: a node that starts is not idle
                self.longest[host] = max(self.longest.get(host, 0.0), now - since)
            if status["version"] != version:
                self._versions[host] = status["version"], now

    def during(self, seconds: float, without: tuple[str, ...] = ()) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look(without)
            time.sleep(0.2)

    def mixed(self) -> float:
        """Seconds until every node has new groups of each other site."""
        start_time = time.monotonic()
        before = {host: _received(self.made, host) for host in self.made.nodes}
        unmixed_hosts = set(self.made.nodes)
        while unmixed_hosts and time.monotonic() - start_time < _LONGEST:
            self.look()
            unmixed_hosts = {
                host for host in unmixed_hosts if not _mixes(self.made, host, before[host])
            }
        return time.monotonic() - start_time if not unmixed_hosts else float("inf")


def kill(*hosts: str) -> Callable[[Scene, SitesWatch], None]:
    """Kill these nodes, and start them again after ten seconds."""

    def fault(swarm_scene: Scene, watch: SitesWatch) -> None:
        for host in hosts:
            swarm_scene.nodes[host].end()
        watch.during(10, hosts)
        for host in hosts:
            swarm_scene.nodes[host].start()
        deadline = time.monotonic() + _LONGEST
        while any(
            (swarm_scene.status(host) or {"state": ""})["state"] != "running" for host in hosts
        ):
            if time.monotonic() > deadline:
                sys.exit(f"{hosts} do not run again")
            watch.during(0.5, hosts)

    return fault


def cut(swarm_scene: Scene, watch: SitesWatch) -> None:
    swarm_scene.bed.cut("a")
    watch.during(60)
    swarm_scene.bed.join("a")


def forget(swarm_scene: Scene, _: SitesWatch) -> None:
    for site in ("a", "b"):
        swarm_scene.bed.flush(site)


FAULTS: dict[str, Callable[[Scene, SitesWatch], object]] = {
    "bootstrap killed": kill("pub1"),
    "site a cut for 60 s": cut,
    "two of three relays killed": kill("pub2", "pub3"),
    "site a gets another address": lambda swarm_scene, _: swarm_scene.bed.readdress("a"),
    "routers forget all mappings": forget,
    "four of seven killed": kill("pub2", "pub3", "a1", "b1"),
}


def _received(swarm_scene: Scene, host: str) -> dict[str, int]:
    rows = (swarm_scene.status(host) or {"peers": []})["peers"]
    return {row["peer_id"]: row["accepted"] for row in rows if row["accepted"]}


def _mixes(swarm_scene: Scene, host: str, before: dict[str, int]) -> bool:
    ids, now = swarm_scene.peer_ids(), _received(swarm_scene, host)
    return all(
        any(now.get(ids[other], 0) > before.get(ids[other], 0) for other in hosts)
        for hosts in SITES.values()
        if host not in hosts
    )


def _wait(what: Callable[[], Any], swarm_scene: Scene) -> None:
    deadline = time.monotonic() + 900
    while not what():
        if time.monotonic() > deadline:
            sys.exit(
                f"nodes do not meet: { {host: _received(swarm_scene, host) for host in HOSTS} }"
            )
        time.sleep(1)


def show_lan(seconds: float) -> None:
    hosts = [f"pub{number}" for number in range(1, 8)]
    with swarm(Bed({}, public=7), hosts, *_STEADY) as swarm_scene:
        time.sleep(30)
        print(f"one LAN: {traded(swarm_scene, seconds):.0f} groups a minute", flush=True)


def show_sites(seconds: float, faults: bool) -> None:
    with swarm(three_sites(), HOSTS, *_STEADY) as swarm_scene:
        time.sleep(30)
        print(f"three sites: {traded(swarm_scene, seconds):.0f} groups a minute", flush=True)
        for name, fault in FAULTS.items() if faults else ():
            watch = SitesWatch(swarm_scene)
            fault(swarm_scene, watch)
            seconds = watch.mixed()
            worst = max(watch.longest.values())
            print(
                f"{name}: all mix after {seconds:.1f} s; longest without an update {worst:.1f} s",
                flush=True,
            )


def show_learning(seconds: float) -> None:
    with swarm(three_sites(), HOSTS, split=True) as swarm_scene:
        time.sleep(seconds)
        for host in HOSTS:
            evals = [
                each
                for each in (swarm_scene.status(host) or {"evals": []})["evals"]
                if each["external_only"] is not None
            ]
            if evals:
                print(
                    f"{host}: never sampled {evals[0]['external_only']:.3f} to "
                    f"{evals[-1]['external_only']:.3f}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["lan", "sites", "faults", "learning"])
    parser.add_argument("--seconds", type=float, default=90.0)
    args = parser.parse_args()
    if why := why_not():
        sys.exit(f"NOT RUN: {why}")
    if "lan" in args.parts:
        show_lan(args.seconds)
    if {"sites", "faults"} & set(args.parts):
        show_sites(args.seconds, "faults" in args.parts)
    if "learning" in args.parts:
        show_learning(args.seconds)


if __name__ == "__main__":
    main()
