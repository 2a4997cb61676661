"""The controller in a node's hands: what it is told, and where it aims the buffer."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from builders import completion, verified

from swarm_node.config import load_settings
from swarm_node.environments.splits.split import SPLIT
from swarm_node.errors import ConfigError
from swarm_node.node.loops.learning.mixing import Mixer
from swarm_node.node.loops.node_parts import Tally
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.node.start.derive import mixture_settings, replay_settings
from swarm_node.policy.experience.mixture import Mixture, MixtureState
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.rollout import VerifiedGroup


def own_group(number: int) -> VerifiedGroup:
    """Every other one has mixed rewards."""
    answers = [completion([0], versions=[number])] * 2
    rewards = (0.0, float(number % 2))
    return verified(f"{number}", seed=number, rewards=rewards, completions=answers, arrived=number)


class Life:
    """A buffer, a tally and a mixer that live through updates."""

    def __init__(self, external: str | int) -> None:
        flags = {"experience.local": 4, "experience.external": external}
        settings = load_settings(flags, environ={})
        self.tally = Tally()
        self.buffer = ReplayBuffer(replay_settings(settings))
        self.mixer = Mixer(mixture_settings(settings), self.tally, self.buffer)
        self.made = 0

    def update(self, offered: int, probe: float | None = None, times: int = 1) -> None:
        """Updates, each with as many own groups as the mixture wants."""
        for _ in range(times):
            for _ in range(self.buffer.mixture.own):
                self.made += 1
                assert self.buffer.admit(own_group(self.made), self.made) is None
            self.tally.offered_by.update(f"peer {number}" for number in range(offered))
            if probe is not None:
                self.tally.evals.append(EvalPoint(0.0, self.made, 0.0, probe, None, {}))
            self.mixer.update()


def test_fixed_settings_stay_as_they_are() -> None:
    life = Life(2)
    life.update(offered=50, times=20)
    assert life.buffer.mixture == Mixture(4, 2)
    row = life.tally.mixture
    assert (row.local, row.external, row.adaptive, row.mixed_reward_ratio) == (
        4,
        2,
        False,
        0.5,
    )


def test_offers_lower_the_own_share_and_their_absence_raises_it() -> None:
    life = Life("auto")
    life.update(offered=0, times=30)
    assert life.buffer.mixture == Mixture(8, 0)
    life.update(offered=20, times=40)
    assert life.buffer.mixture.own <= 2
    life.update(offered=0, times=600)
    assert life.buffer.mixture.own >= 7


@pytest.mark.parametrize("reason", ["zero_advantage", "copied"])
def test_offers_of_peers_that_are_refused_count_less(reason: str) -> None:
    trusted, doubted = Life("auto"), Life("auto")
    doubted.tally.rejected[reason] = 99
    doubted.tally.rejected["quota"] = 10**6  # nobody's fault
    for _ in range(60):
        trusted.update(offered=6)
        doubted.update(offered=6)
    assert trusted.buffer.mixture.own < doubted.buffer.mixture.own


def test_the_same_measurement_counts_once() -> None:
    life = Life("auto")
    for step in range(40):
        life.update(offered=20, probe={5: 0.5, 6: 0.3}.get(step))
    # One fall halves the share; taken in again and again, the low point would end in recovery.
    assert life.tally.mixture.allowance == 0.5


def test_what_was_offered_before_the_first_update_counts() -> None:
    """A newcomer lists its peers' groups while it makes its first ones."""
    life = Life("auto")
    life.update(offered=40)
    assert life.tally.mixture.offered_per_local == 40.0
    assert life.buffer.mixture == Mixture(1, 7)


def test_a_backlog_of_peers_groups_is_taken_whatever_the_estimates_say() -> None:
    life = Life("auto")
    life.update(offered=0, times=30)
    assert life.buffer.mixture == Mixture(8, 0)
    for number in range(5):
        answers = [completion([0], versions=[life.made])] * 2
        group = verified(f"p{number}", "peer", rewards=(0.0, 1.0), completions=answers)
        assert life.buffer.admit(replace(group, arrival_version=life.made), life.made) is None
    assert life.buffer.draw(life.made, random.Random(0)) is not None
    life.update(offered=0)
    assert life.buffer.mixture == Mixture(3, 5)


def test_a_resumed_node_does_not_take_an_old_measurement_for_a_fall() -> None:
    before = Life("auto")
    before.update(offered=20, probe=0.5, times=20)
    after = Life("auto")
    after.tally.evals.append(EvalPoint(0.0, 1, 0.0, 0.1, None, {}, split_version=SPLIT))
    after.mixer.resume(before.mixer.state)
    after.update(offered=20)
    assert after.mixer.state.probe == before.mixer.state.probe


def test_reward_on_another_ground_is_no_fall() -> None:
    before = Life("auto")
    before.update(offered=20, probe=0.9, times=20)
    after = Life("auto")
    after.tally.evals.append(EvalPoint(0.0, 1, 0.9, 0.9, None, {}, split_version=SPLIT - 1))
    after.mixer.resume(before.mixer.state)
    after.update(offered=20, probe=0.4, times=5)
    assert after.mixer.state.allowance == 1.0
    assert after.mixer.state.probe.slow == pytest.approx(0.4)


@pytest.mark.parametrize("value", ["often", -1, 1025])
def test_external_is_a_number_or_auto(value: str | int) -> None:
    with pytest.raises(ConfigError, match=r"experience\.external"):
        load_settings({"experience.external": value}, environ={})
    assert load_settings({"experience.external": "3"}, environ={}).experience.external == 3


def test_the_buffer_takes_only_mixtures_it_is_meant_for() -> None:
    flags = {"experience.local": 4, "experience.external": 4}
    buffer = ReplayBuffer(replay_settings(load_settings(flags, environ={})))
    for wrong in (Mixture(4, 5), Mixture(-1, 4), Mixture(4, -1), Mixture(9, 0), Mixture(0, 0)):
        with pytest.raises(ValueError, match=r"must|holds"):
            buffer.aim(wrong)
    buffer.aim(Mixture(8, 0))
    assert not buffer.ready(0)


def test_a_resumed_controller_goes_on_where_it_was() -> None:
    before = Life("auto")
    before.update(offered=0, times=60)
    assert before.buffer.mixture == Mixture(8, 0)
    saved = msgspec.convert(msgspec.to_builtins(before.mixer.state), MixtureState)
    after = Life("auto")
    after.mixer.resume(saved)
    assert after.buffer.mixture == Mixture(8, 0)
    assert after.mixer.state == before.mixer.state
    assert after.tally.mixture.local == 8


def test_a_state_of_other_settings_is_not_resumed() -> None:
    saved = MixtureState(Mixture(8, 8))
    adaptive, fixed = Life("auto"), Life(4)
    for state in (saved, None):
        adaptive.mixer.resume(state)
        fixed.mixer.resume(state)
        assert adaptive.buffer.mixture == Mixture(1, 7)
        assert fixed.buffer.mixture == Mixture(4, 4)


def test_a_flood_counts_as_what_this_node_makes_and_not_once_it_teaches_nothing() -> None:
    life = Life("auto")
    for _ in range(40):
        life.update(offered=0)
        life.tally.offered_by["flood"] += 50
    assert life.tally.mixture.offered_per_local == pytest.approx(1.0, abs=0.01)
    assert life.buffer.mixture.own == 4
    for number in range(60):
        life.buffer.worth.note_own(f"{number % 3}", 0.2)
        life.buffer.worth.note("flood", f"{number % 3}", 0.0)
    life.update(offered=0, times=20)
    assert life.buffer.mixture.own >= 7
