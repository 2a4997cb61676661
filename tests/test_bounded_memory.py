"""What waits between sampler, peers and trainer stays within its bounds at any ratio of speeds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.rollout import VerifiedGroup
from swarm_node.simulation.paced import Pace
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate

#: A batch of 64 completions of about seven tokens takes some 450 × `token_seconds` to sample.
FAST_SAMPLER = Pace(token_seconds=0.0001, update_seconds=4.5)
FAST_TRAINER = Pace(token_seconds=0.01, update_seconds=0.045)


@dataclass
class Peak:
    """The most that any buffer of a swarm held, seen after every admission."""

    own: int = 0
    external: int = 0
    remembered: int = 0
    of_one_author: int = 0
    seen: list[ReplayBuffer] = field(default_factory=list)

    def look(self, buffer: ReplayBuffer) -> None:
        if all(buffer is not other for other in self.seen):
            self.seen.append(buffer)
        stats = buffer.stats()
        self.own, self.external = max(self.own, stats.local), max(self.external, stats.external)
        self.remembered = max(self.remembered, len(buffer._departed_ids), len(buffer._uncollected))
        self.of_one_author = max([self.of_one_author, *buffer._holdings.values()])


@pytest.mark.slow(reason="nodes of very different pace")
@pytest.mark.parametrize(("pace", "full"), [(FAST_SAMPLER, True), (FAST_TRAINER, False)])
def test_buffers_stay_within_their_bounds_at_a_hundredfold_difference(
    pace: Pace, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = Peak()
    admit = ReplayBuffer.admit

    def watched(buffer: ReplayBuffer, group: VerifiedGroup, version: int) -> object:
        verdict = admit(buffer, group, version)
        peak.look(buffer)
        return verdict

    monkeypatch.setattr(ReplayBuffer, "admit", watched)
    rounds = 3
    scenario = Scenario(nodes=2, rounds=rounds, pace=pace, eval_rounds=rounds, eval_tasks=1)
    # Batches of sixteen, as many as a call makes: one of two batches fills a slow sampler's buffer.
    report = simulate(scenario, simulation_settings(0, {"experience.local": 8}))
    assert len(peak.seen) == 2
    settings = peak.seen[0].settings
    waiting = 2 * (settings.local + settings.external)
    assert peak.own <= waiting
    assert peak.external <= settings.capacity_external
    assert peak.of_one_author <= settings.peer_quota
    assert peak.remembered <= 8 * (settings.capacity_own + settings.capacity_external)
    for node in report.nodes:
        # However fast it is, the sampler makes no more than is trained on soon.
        assert node.trained_local <= node.sampled <= node.trained_local + waiting
        assert node.steps + node.skipped_batches == rounds
    # The case is real: a fast sampler makes the next update's groups too, a slow one few of them.
    assert (peak.own >= 1.5 * (settings.local + settings.external)) is full
