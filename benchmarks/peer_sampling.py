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

    def answer(self, peer: int, count: int) -> list[int]:
        """The nodes that a peer names when asked; none if it is dead."""
        self.messages += 1
        if peer in self.dead:
            return []
        if peer < HOSTILE:
            return self.rng.sample(range(HOSTILE), count)
        view = self.nodes[peer].view
        return [peer, *self.rng.sample(view, min(count - 1, len(view)))]

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
        sent_peers = self.rng.sample(node.view, min(SHUFFLE - 1, len(node.view)))
        received_peers = self.answer(partner, SHUFFLE)
        if received_peers and partner >= HOSTILE:
            self._swap(self.nodes[partner], received_peers, [node.number, *sent_peers])
        if received_peers:
            self._swap(node, sent_peers, received_peers)
        for _ in node.pushed:  # a hostile node shuffles with this one
            lost = self.rng.sample(node.view, min(SHUFFLE, len(node.view)))
            self._swap(node, lost, self.rng.sample(range(HOSTILE), SHUFFLE))

    def _swap(self, node: ToyNode, sent_peers: list[int], received_peers: list[int]) -> None:
        remaining_peers = [peer for peer in node.view if peer not in sent_peers]
        node.view = self._trim([*remaining_peers, *received_peers, *sent_peers], node.number)

    def _hyparview(self, node: ToyNode) -> None:
        partner = self.rng.choice(node.view)
        received_peers = self.answer(partner, SHUFFLE)
        passive_peers = dict.fromkeys([*received_peers, *node.pushed, *node.passive])
        node.passive = list(passive_peers)[: 2 * VIEW]
        if not received_peers:
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
            drawn_peers = [p for part, n in parts for p in self.rng.sample(part, min(n, len(part)))]
            node.view = self._trim([*drawn_peers, *node.view], node.number)

    def _book(self, node: ToyNode) -> None:
        partner = self.rng.choice(node.view)
        received_peers = self.answer(partner, SHUFFLE)
        if not received_peers:
            node.view.remove(partner)
        # One bucket a teller: a new one displaces the last from the same teller only.
        node.passive = [
            p for p in node.passive if p % 64 != partner % 64 or p not in received_peers
        ]
        node.passive = (node.passive + received_peers)[-8 * VIEW :]
        if node.passive:
            candidate = node.passive.pop(self.rng.randrange(len(node.passive)))
            self.messages += 1
            if (
                candidate not in self.dead
                and candidate != node.number
                and candidate not in node.view
            ):
                if len(node.view) >= VIEW:  # the older half stays
                    node.view.pop(self.rng.randrange(VIEW // 2, len(node.view)))
                node.view.append(candidate)


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
    entry_counts = Counter(entries)
    degrees = [entry_counts[node.number] for node in alive]
    dead = sum(peer in world.dead for peer in entries) / max(1, len(entries))
    return hostile, dead, min(degrees), max(degrees), world.messages / ROUNDS / NODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    print("way        pushes  hostile  dead  least  most  messages")
    for way in ("cyclon", "hyparview", "brahms", "book"):
        for pushes in (0, 1, 8):
            rows = [measure(way, seed, pushes) for seed in range(arguments.seeds)]
            hostile, dead, min_degree, max_degree, messages = map(
                statistics.mean, zip(*rows, strict=True)
            )
            print(
                f"{way:10} {pushes:6}  {hostile:7.2f}  {dead:4.2f}"
                f"  {min_degree:5.1f} {max_degree:5.0f}  {messages:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
