"""What holds for the replay buffer whatever is admitted and drawn, in any order."""

from __future__ import annotations

import random
from collections import Counter

from builders import completion, examples, replay_settings, verified
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer
from swarm_node.policy.experience.slots import Slots
from swarm_node.rollout import Provenance, VerifiedGroup

AUTHORS = ["a", "b", "c", "d"]
REWARDS = [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.25, 0.5)]


class ReplayMachine(RuleBasedStateMachine):
    @initialize(
        own=st.integers(0, 3),
        external=st.integers(0, 3),
        max_staleness=st.integers(0, 3),
        max_age=st.integers(0, 4),
        batches=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        peer_share=st.sampled_from([0.0, 0.25, 1.0]),
        peer_minimum=st.integers(1, 3),
        seed=st.integers(0, 1 << 32),
    )
    def begin(
        self,
        own: int,
        external: int,
        max_staleness: int,
        max_age: int,
        batches: tuple[int, int],
        peer_share: float,
        peer_minimum: int,
        seed: int,
    ) -> None:
        self.settings = replay_settings(
            local=own,
            external=max(external, 1 - own),
            max_staleness=max_staleness,
            max_age=max_age,
            own_batches=batches[0],
            external_batches=batches[1],
            peer_share=peer_share,
            peer_minimum=peer_minimum,
        )
        self.buffer = ReplayBuffer(self.settings)
        self.slots = Slots(self.buffer, 8)
        self.rng = random.Random(seed)
        self.version = 0
        self.number = 0
        self.uses: Counter[bytes] = Counter()
        self.credit: Counter[str] = Counter()  # places that an author may have at most
        self.held: dict[bytes, VerifiedGroup] = {}  # admitted and not reported as departed
        self.last: VerifiedGroup | None = None

    @rule(rewards=st.sampled_from(REWARDS), lag=st.integers(0, 4))
    def admit_own(self, rewards: tuple[float, ...], lag: int) -> None:
        oldest = max(0, self.version - lag)
        self._admit(_group(self._name(), "me", rewards, (oldest, self.version), self.version))

    @rule(
        author=st.sampled_from(AUTHORS),
        rewards=st.sampled_from(REWARDS),
        age=st.integers(0, 5),
        claimed_version=st.integers(0, 1 << 40),
    )
    def admit_external(
        self, author: str, rewards: tuple[float, ...], age: int, claimed_version: int
    ) -> None:
        arrived = max(0, self.version - age)
        self._admit(_group(self._name(), author, rewards, (claimed_version,), arrived))

    @rule()
    def admit_again(self) -> None:
        if self.last is not None:
            refused = self.buffer.admit(self.last, self.version)
            assert refused is not None

    @rule(updates=st.integers(1, 3))
    def update(self, updates: int) -> None:
        self.version += updates

    @rule(own=st.integers(0, 6), external=st.integers(0, 3))
    def aim(self, own: int, external: int) -> None:
        external = min(external, self.settings.external)
        size = self.settings.local + self.settings.external
        own = min(size - external, max(own, 1 - external))
        self.buffer.aim(Mixture(own, external))

    @rule()
    def draw(self) -> None:
        own, external = self._eligible()
        mixture = self.buffer.mixture
        ready = self.buffer.ready(self.version)
        assert ready is (len(own) >= mixture.own and bool(own or external))
        drawn = self.buffer.draw(self.version, self.rng)
        # Never waiting for peers: own groups alone decide, unless none at all are wanted.
        assert (drawn is not None) is ready
        if drawn is None:
            return
        assert drawn.external_count <= min(mixture.external, len(external))
        if mixture.own:
            self._count_places(drawn)
        else:  # no own groups to hold the others against
            assert drawn.external_count == min(mixture.external, len(external))
        wanted = mixture.size - drawn.external_count
        assert drawn.own_count == min(wanted, len(own))
        assert len(drawn.groups) == drawn.own_count + drawn.external_count
        assert len({group.id for group in drawn.groups}) == len(drawn.groups)
        for index, group in enumerate(drawn.groups):
            is_own = group.provenance is Provenance.LOCAL
            assert is_own is (index < drawn.own_count)
            assert group.id in (own if is_own else external)
            self.uses[group.id] += 1
            assert self.uses[group.id] == 1

    def _count_places(self, drawn: Drawn) -> None:
        """Check that volume buys nobody more places than own groups had or external ones have."""
        mixture = self.buffer.mixture
        for author in AUTHORS:
            credit = max(1, mixture.own, self.credit[author])
            places = sum(group.author == author for group in drawn.groups)
            assert places <= credit
            self.credit[author] = credit - places + max(drawn.own_count, mixture.external)

    @rule(running=st.integers(0, 10))
    def ask_for_slots(self, running: int) -> None:
        self.slots.begin(running)
        free = self.slots.free(self.version)
        limit = (self.settings.max_staleness + 1) * max(self.buffer.mixture.own, 1)
        assert 0 <= free <= max(0, limit - running - self.buffer.stats().local)
        assert 0 <= self.slots.sampling_batch(self.version) <= min(8, limit)
        self.slots.end(running)
        for author in (None, *AUTHORS):
            for _ in range(self.slots.free_external(self.version, author)):
                # Nobody met before, who may have filled a quota of its own already.
                name = author or f"stranger {self.number}"
                self._admit(_group(self._name(), name, (0.0, 1.0), (0,), self.version))
                assert self.last.id in self.held, "a slot was free, and yet it was refused"
            if author is not None:
                assert self.slots.free_external(self.version, author) == 0

    @invariant()
    def stays_within_its_bounds(self) -> None:
        if not hasattr(self, "buffer"):
            return
        for identifier in self.buffer.collect_departed():
            del self.held[identifier]
        stats = self.buffer.stats()
        authors = Counter(
            group.author for group in self.held.values() if group.provenance is not Provenance.LOCAL
        )
        assert stats.external == authors.total() <= self.settings.capacity_external
        assert stats.local == len(self.held) - authors.total() <= self.settings.capacity_own
        assert stats.authors == len(authors)
        assert max(authors.values(), default=0) <= self.settings.peer_quota

    def _eligible(self) -> tuple[set[bytes], set[bytes]]:
        """What may be drawn now, computed from scratch: (own, external) ids."""
        for identifier in self.buffer.collect_departed():
            del self.held[identifier]
        own, external = set(), set()
        for group in self.held.values():
            if group.provenance is Provenance.LOCAL:
                spans = [span.version for c in group.group.completions for span in c.spans]
                if self.version - min(spans) <= self.settings.max_staleness:
                    own.add(group.id)
            elif (
                self.version - group.arrival_version <= self.settings.max_age and group.informative
            ):
                external.add(group.id)
        return own, external

    def _admit(self, group: VerifiedGroup) -> None:
        refused = self.buffer.admit(group, self.version)
        if refused is None:
            self.held[group.id] = group
            self.last = group

    def _name(self) -> bytes:
        self.number += 1
        return b"group %d" % self.number


def _group(
    name: bytes, author: str, rewards: tuple[float, ...], versions: tuple[int, ...], arrived: int
) -> VerifiedGroup:
    answers = [completion([0] * len(versions), versions=versions)] * len(rewards)
    whose = Provenance.LOCAL if author == "me" else Provenance.CROSS_MODEL
    return verified(
        name, author, provenance=whose, rewards=rewards, completions=answers, arrived=arrived
    )


TestReplay = ReplayMachine.TestCase
TestReplay.settings = examples(150, stateful_step_count=40)
