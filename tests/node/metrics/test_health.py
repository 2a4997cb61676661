"""The verdict on a node, case by case."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from verdict_cases import CASES, CLOSED, DAY, REVOKED, SAPO, node, peer

from swarm_node.environments.bundled import drills
from swarm_node.environments.presets import environment_name
from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.splits.split import with_split
from swarm_node.node.metrics.health import COMPANY_SECONDS, HOLD_SECONDS, Steady, findings
from swarm_node.node.metrics.samples import RecentRow
from swarm_node.node.metrics.snapshot import CoordinatorRow, EvalPoint, Said
from swarm_node.p2p.peers.causes import Cause

SATURATED = Said("saturated", "warning", "saturated")


@pytest.mark.parametrize(("changes", "kind", "level"), CASES)
def test_the_first_finding(changes: dict[str, Any], kind: str, level: str) -> None:
    first = findings(node(**changes))[0]
    assert (first.kind, first.level) == (kind, level)


def test_behind_a_dead_address_a_peer_that_left_is_not_bad() -> None:
    away = [peer(seen=99.0)]
    for met in ({"peers": away}, {"peers": [], "former": away}):
        left = findings(node(causes=[CLOSED], configured=1, **met))[0]
        assert (left.kind, left.level) == ("alone", "warning")


def test_another_model_is_told_beside_the_verdict_and_is_nothing_wrong() -> None:
    gone = peer("c", model="a1b2c3d4", seen=99.0)
    first, said = findings(
        node(peers=[peer("a", model="a1b2c3d4"), peer("b", model="a1b2c3d4"), gone])
    )
    assert (first.kind, said.kind, said.level) == ("sharing", "model", "good")
    assert said.text.startswith("a, b use ")
    assert "--model" in said.remedy


def test_the_most_serious_comes_first_and_nothing_is_lost() -> None:
    found = findings(
        node(
            time=78 * DAY,
            seconds_since_step=1e4,
            recent=RecentRow(256, 0, 0.0),
            peers=[peer(environment=SAPO, seen=2.0)],
        )
    )
    kinds = [said.kind for said in found]
    assert kinds == ["stalled", "nothing_to_learn", "membership", "environment"]
    assert [said.level for said in found] == ["bad", "bad", "warning", "warning"]


def test_a_node_alone_is_told_so_beside_what_is_worse() -> None:
    shot = node(recent=RecentRow(256, 0, 0.0), peers=[], configured=1)
    assert [said.kind for said in findings(shot)] == ["nothing_to_learn", "alone"]


def test_a_node_that_created_its_swarm_is_well_without_peers_and_one_with_a_ticket_is_not() -> None:
    steady = Steady()
    for _ in range(2):  # among peers again in between, and left by them
        first, note = findings(node(peers=[]), steady)
        assert (first.kind, first.level, note.kind, note.level) == (
            *("unvisited", "good"),
            *("no_peers", "good"),
        )
        assert findings(node(peers=[peer()]), steady)[0].kind == "sharing"
    asked = CoordinatorRow("https://c.example")
    for known in ({"configured": 1}, {"coordinator": asked}, {"former": [peer(seen=99.0)]}):
        assert findings(node(peers=[], **known))[0].level == "warning"


def test_an_expelled_node_is_told_so_first_and_then_that_it_trains_alone() -> None:
    first, second = findings(node(causes=[REVOKED], peers=[], seconds_since_step=1e4))[:2]
    assert (first.kind, first.level) == ("revoked", "bad")
    assert second.kind == "stalled"
    found = findings(node(causes=[REVOKED], peers=[peer("alice", seen=2.0)]))
    assert [said.kind for said in found] == ["revoked", "alone"]


def test_one_liar_among_peers_that_answer_does_not_expel_this_node() -> None:
    peers = [peer("alice"), peer("bob"), peer("carl")]
    first, *_ = findings(node(causes=[REVOKED], peers=peers))
    assert (first.kind, first.level) == ("revoked", "warning")
    assert first.text.endswith("(1 of 3 peers)")


def test_whom_this_node_refused_is_told_and_does_not_change_its_verdict() -> None:
    tried = Cause("used_up", "12D3KooWweb", "web", tries=12, seconds_since=41.0)
    first, second = findings(node(refused_callers=[tried]))
    assert first.kind == "sharing"
    assert second.level == "good"
    assert "web" in second.text
    assert "12 times" in second.text


def test_its_host_gets_the_remedy_of_his_side() -> None:
    clock = Cause("clock", "12D3KooWweb", "web", seconds=-400.0)
    assert "timedatectl" in findings(node(refused_callers=[clock]))[1].remedy
    blocked = Cause("blocked", "12D3KooWweb", "web")
    assert "-node unblock" in findings(node(refused_callers=[blocked]))[1].remedy


def test_a_finding_is_said_once_it_holds_and_until_it_no_longer_does() -> None:
    steady = Steady()
    assert steady.settle([], 0.0) == []
    for now in range(10, 90, 20):  # to and fro
        assert steady.settle([SATURATED], now) == []
        assert steady.settle([], now + 10) == []
    for now in range(100, 220, 10):
        assert steady.settle([SATURATED], now) == []
    assert steady.settle([SATURATED], 100 + HOLD_SECONDS) == [SATURATED]
    for now in range(230, 330, 20):
        assert steady.settle([], now) == [SATURATED]
        assert steady.settle([SATURATED], now + 10) == [SATURATED]
    last = 320
    assert steady.settle([], last + HOLD_SECONDS - 1) == [SATURATED]
    assert steady.settle([], last + HOLD_SECONDS) == []


def _walk(rng: random.Random, count: int) -> list[float]:
    """Noise that lasts: each step keeps four fifths of the last."""
    rewards = [0.5]
    for _ in range(count - 1):
        rewards.append(0.5 + 0.8 * (rewards[-1] - 0.5) + rng.gauss(0.0, 0.02))
    return rewards


#: An hour of a node that measures every twenty seconds, by kind: the reward on unseen texts, which
#: has the noise of its tasks.
HISTORIES: dict[str, Callable[[random.Random, int], list[float]]] = {
    "flat": lambda rng, count: [0.5 + rng.gauss(0.0, 0.02) for _ in range(count)],
    "noisy": _walk,
    "rising": lambda rng, count: [0.2 + 0.004 * n + rng.gauss(0.0, 0.02) for n in range(count)],
    "risen": lambda rng, count: [
        0.2 + 0.01 * min(n, 50) + rng.gauss(0.0, 0.02) for n in range(count)
    ],
}


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.parametrize("seed", range(8))
def test_the_word_learning_needs_a_rise_and_turns_at_most_once_in_ten_minutes(
    kind: str, seed: int
) -> None:
    steady, evals, said = Steady(), list[EvalPoint](), list[tuple[float, bool]]()
    for number, reward in enumerate(HISTORIES[kind](random.Random(seed), 180)):
        evals.append(EvalPoint(20.0 * number, number, reward, reward, None, {}, split_version=1))
        shot = node(evals=evals, seconds=20.0 * number)
        text = findings(shot, steady)[0].text
        assert findings(shot, steady)[0].text == text, "asking again turns nothing"
        said.append((20.0 * number, text.startswith("learning")))
    turns = [now for (_, a), (now, b) in pairwise(said) if a != b]
    assert all(b - a >= 600.0 for a, b in pairwise(turns)), turns
    if kind == "flat":
        assert not any(learning for _, learning in said)
    if kind == "rising":
        assert all(learning for now, learning in said if now >= 900.0)
    if kind == "risen":  # until second 1000
        assert any(learning for _, learning in said)
        assert not any(learning for now, learning in said if now >= 1900.0)


#: Reward on unseen texts of a node with the tiny model, alone on two busy cores, every 15 s.
RECORDED = [
    *(0.149, 0.609, 0.748, 0.722, 0.792, 0.87, 0.894, 0.894, 0.891, 0.917, 0.896, 0.913, 0.882),
    *(0.877, 0.892, 0.901, 0.896, 0.882, 0.877, 0.885),
]


def test_a_recorded_rise_is_told_once_and_no_longer_after_it_has_ended() -> None:
    """Its last values go on for as long as it takes, in their order."""
    rewards = [*RECORDED, *(RECORDED[-10:] * 12)]
    evals = [EvalPoint(15.0 * n, n, r, r, None, {}, split_version=1) for n, r in enumerate(rewards)]
    steady = Steady()
    said = [steady.learns(evals[: end + 1]) for end in range(len(evals))]
    turns = [n for n, (a, b) in enumerate(pairwise(said)) if a != b]
    assert len(turns) == 2
    first, last = turns
    assert 15.0 * first <= 150.0
    assert 600.0 <= 15.0 * (last - first) <= 900.0


def test_the_word_learning_is_the_same_however_often_somebody_asks() -> None:
    rewards = HISTORIES["rising"](random.Random(0), 120)
    evals = [EvalPoint(20.0 * n, n, r, r, None, {}, split_version=1) for n, r in enumerate(rewards)]
    often, once = Steady(), Steady()
    told = [often.learns(evals[: end + 1]) for end in range(len(evals))]
    assert once.learns(evals) == told[-1] is True
    assert Steady().learns([]) is False


def _kinds(steady: Steady, times: range, *, here: Callable[[int], bool]) -> list[str]:
    """The first finding on a node, whose sole peer is `here` or left, as it is asked each poll."""
    shots = (node(seconds=float(t), peers=[peer(seen=1.0 if here(t) else 300.0)]) for t in times)
    return [findings(shot, steady)[0].kind for shot in shots]


def test_a_sole_peer_that_comes_and_goes_does_not_turn_the_verdict() -> None:
    steady = Steady()
    assert _kinds(steady, range(0, 20, 5), here=lambda now: False) == ["alone"] * 4
    assert _kinds(steady, range(20, 600, 5), here=lambda now: now % 50 < 25) == ["sharing"] * 116
    gone = _kinds(steady, range(600, 900, 5), here=lambda now: False)
    assert gone == sorted(gone, reverse=True), "one turn"
    assert 5 * gone.count("sharing") <= COMPANY_SECONDS
    assert set(_kinds(steady, range(900, 1200, 5), here=lambda now: now % 50 < 25)) == {"alone"}
    assert findings(node(seconds=1200.0), steady)[0].text.endswith("answers again")
    back = _kinds(steady, range(1205, 1300, 5), here=lambda now: True)
    assert back == sorted(back)
    assert back[-1] == "sharing"


def test_what_is_bad_turns_the_company_at_once() -> None:
    steady = Steady()
    assert findings(node(seconds=0.0), steady)[0].kind == "sharing"
    shot = node(seconds=5.0, peers=[peer(seen=300.0)], causes=[Cause("link_down")])
    assert [said.kind for said in findings(shot, steady)] == ["link_down", "alone"]


def test_a_first_verdict_and_one_after_a_long_pause_say_what_is_so_now() -> None:
    steady = Steady()
    assert steady.settle([SATURATED], 0.0) == [SATURATED]
    assert steady.settle([], HOLD_SECONDS + 1) == []
    saturated = node(recent=RecentRow(256, 12, 0.97), seconds=1000.0)
    assert findings(saturated, steady)[0].kind == "saturated"
    assert findings(node(seconds=1010.0), steady)[0].kind == "saturated", "ten seconds are nothing"


def test_a_preset_has_its_name_and_anything_else_its_version() -> None:
    for made, preset in (
        *((drills.create(preset), f"drills {preset}") for preset in drills.PRESETS),
        *((create(preset=preset), f"reasoning_gym {preset}") for preset in ("chat", "sapo")),
    ):
        assert environment_name(made.name, with_split(made.version)) == preset
    own = create(datasets={"gcd": {}})
    assert environment_name(own.name, with_split(own.version)) == f"reasoning_gym {own.version}"
    assert environment_name("mine:create", with_split("short")).endswith(" short")


def test_an_environment_of_a_newer_release_is_named_with_the_release_that_this_node_needs() -> None:
    """A node that shares the preset but not the split is not told to take the same preset."""
    version = f"{drills.create('short').version} split 2, swarm-node 0.3.1"
    named = environment_name("drills", version)
    assert named == "drills short of swarm-node 0.3.1"
    (said,) = findings(node(peers=[peer(environment=named, seen=2.0)]))
    assert said.kind == "environment"
    assert named in said.text
    assert "needs swarm-node 0.3.1 or newer" in said.remedy
