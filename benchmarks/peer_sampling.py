"""Toy simulation of four ways to sample peers: shares of hostile and dead entries in views.

    python benchmarks/peer_sampling.py [--seeds 4]

300 nodes with views of 16; in each of 100 rounds a node shuffles once. A tenth of them are hostile:
they name hostile nodes only, and push themselves to each node `pushes` times a round. In round 60 a
quarter of the honest ones die. Printed per way: the share of hostile entries in honest views before
that (0.10 of the nodes are hostile), the share of dead entries 40 rounds later, the least and the
most honest views that have an honest node, and messages per node and round.

Cyclon (Voulgaris et al., 2005) swaps parts of views. HyParView (Leitao et al., 2007) keeps an
active view of links and repairs it from a passive one. Brahms (Bortnikov et al., 2009) mixes
bounded pushes, pulls and a min-wise sample of all that it heard. `book` is what a node does: it
pulls from a random partner, puts the peers named into buckets by teller, and keeps those that
answer. Peers that push get no place among its partners.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import Counter
from dataclasses import dataclass, field

NODES, HOSTILE, VIEW, SHUFFLE = 300, 30, 16, 4
ROUNDS, DEATH, PUSHED = 100, 60, 2


@dataclass
class ToyNode:
    number: int
    view: list[int]
    passive: list[int] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)
    salts: list[int] = field(default_factory=list)
    pushed: list[int] = field(default_factory=list)


class ToyNetwork:
    def __init__(self, way: str, seed: int, pushes: int) -> None:
        self.rng = random.Random(f"{way} {seed}")
        self.way, self.pushes = way, pushes
        self.dead: set[int] = set()
        self.messages = 0
        everybody = range(NODES)
        self.nodes = [ToyNode(n, self.rng.sample(everybody, VIEW)) for n in everybody]
        for node in self.nodes:
            node.salts = [self.rng.getrandbits(32) for _ in range(VIEW // 2)]
            node.samples = [(1 << 62, node.view[0])] * (VIEW // 2)

    def answer(self, asked: int, count: int) -> list[int]:
        """The nodes that a peer names when asked; none if it is dead."""
        self.messages += 1
        if asked in self.dead:
            return []
        if asked < HOSTILE:
            return self.rng.sample(range(HOSTILE), count)
        view = self.nodes[asked].view
        return [asked, *self.rng.sample(view, min(count - 1, len(view)))]

    def step(self) -> None:
        for node in self.nodes[HOSTILE:]:
            for _ in range(self.pushes):
                node.pushed.append(self.rng.randrange(HOSTILE))
        for node in self.nodes[HOSTILE:]:
            if node.number not in self.dead and node.view:
                getattr(self, f"_{self.way}")(node)
            node.pushed.clear()

    def _trim(self, view: list[int], number: int) -> list[int]:
        return list(dict.fromkeys(peer for peer in view if peer != number))[:VIEW]

    def _cyclon(self, node: ToyNode) -> None:
        partner = node.view.pop(0)  # the oldest
        given = self.rng.sample(node.view, min(SHUFFLE - 1, len(node.view)))
        told = self.answer(partner, SHUFFLE)
        if told and partner >= HOSTILE:
            self._swap(self.nodes[partner], told, [node.number, *given])
        if told:
            self._swap(node, given, told)
        for _ in node.pushed:  # a hostile node shuffles with this one
            lost = self.rng.sample(node.view, min(SHUFFLE, len(node.view)))
            self._swap(node, lost, self.rng.sample(range(HOSTILE), SHUFFLE))

    def _swap(self, node: ToyNode, given: list[int], told: list[int]) -> None:
        kept = [peer for peer in node.view if peer not in given]
        node.view = self._trim([*kept, *told, *given], node.number)

    def _hyparview(self, node: ToyNode) -> None:
        partner = self.rng.choice(node.view)
        told = self.answer(partner, SHUFFLE)
        node.passive = list(dict.fromkeys([*told, *node.pushed, *node.passive]))[: 2 * VIEW]
        if not told:
            node.view.remove(partner)
        for peer in node.pushed:  # a join or a neighbour request is accepted at a random place
            if peer not in node.view:
                if len(node.view) >= VIEW:
                    node.view.pop(self.rng.randrange(len(node.view)))
                node.view.append(peer)
        while len(node.view) < VIEW and node.passive:
            peer = node.passive.pop(self.rng.randrange(len(node.passive)))
            self.messages += 1
            if peer not in self.dead and peer not in node.view and peer != node.number:
                node.view.append(peer)

    def _brahms(self, node: ToyNode) -> None:
        pulled = [p for _ in range(2) for p in self.answer(self.rng.choice(node.view), SHUFFLE)]
        honest_pushes = [peer for peer in self.rng.sample(range(HOSTILE, NODES), PUSHED)]
        pushed = [*node.pushed, *honest_pushes]
        for peer in [*pulled, *pushed]:
            for place, salt in enumerate(node.salts):
                rank = hash((salt, peer)) & ((1 << 61) - 1)
                if rank < node.samples[place][0]:
                    node.samples[place] = rank, peer
        place = self.rng.randrange(len(node.salts))
        self.messages += 1
        if node.samples[place][1] in self.dead:  # it probes one sample a round
            node.salts[place] = self.rng.getrandbits(32)
            node.samples[place] = 1 << 62, node.view[0]
        if len(pushed) <= 2 * PUSHED and pulled:  # more pushes than expected block the round
            sampled = [peer for _, peer in node.samples]
            parts = [(pushed, 6), (pulled, 6), (sampled, 4)]
            drawn = [p for part, n in parts for p in self.rng.sample(part, min(n, len(part)))]
            node.view = self._trim([*drawn, *node.view], node.number)

    def _book(self, node: ToyNode) -> None:
        partner = self.rng.choice(node.view)
        told = self.answer(partner, SHUFFLE)
        if not told:
            node.view.remove(partner)
        # One bucket a teller: a new one displaces the last from the same teller only.
        node.passive = [p for p in node.passive if p % 64 != partner % 64 or p not in told]
        node.passive = (node.passive + told)[-8 * VIEW :]
        if node.passive:
            tried = node.passive.pop(self.rng.randrange(len(node.passive)))
            self.messages += 1
            if tried not in self.dead and tried != node.number and tried not in node.view:
                if len(node.view) >= VIEW:  # the older half stays
                    node.view.pop(self.rng.randrange(VIEW // 2, len(node.view)))
                node.view.append(tried)


def measure(way: str, seed: int, pushes: int) -> tuple[float, float, int, int, float]:
    world = ToyNetwork(way, seed, pushes)
    hostile = 0.0
    for number in range(ROUNDS):
        if number == DEATH:
            honest = [n for n in world.nodes[HOSTILE:]]
            entries = [peer for node in honest for peer in node.view]
            hostile = sum(peer < HOSTILE for peer in entries) / len(entries)
            world.dead = set(world.rng.sample(range(HOSTILE, NODES), (NODES - HOSTILE) // 4))
        world.step()
    alive = [node for node in world.nodes[HOSTILE:] if node.number not in world.dead]
    entries = [peer for node in alive for peer in node.view]
    named = Counter(entries)
    degrees = [named[node.number] for node in alive]
    dead = sum(peer in world.dead for peer in entries) / max(1, len(entries))
    return hostile, dead, min(degrees), max(degrees), world.messages / ROUNDS / NODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    wanted = parser.parse_args()
    print("way        pushes  hostile  dead  least  most  messages")
    for way in ("cyclon", "hyparview", "brahms", "book"):
        for pushes in (0, 1, 8):
            rows = [measure(way, seed, pushes) for seed in range(wanted.seeds)]
            hostile, dead, least, most, messages = map(statistics.mean, zip(*rows, strict=True))
            print(
                f"{way:10} {pushes:6}  {hostile:7.2f}  {dead:4.2f}  {least:5.1f} {most:5.0f}"
                f"  {messages:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
