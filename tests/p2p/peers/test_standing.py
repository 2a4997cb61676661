"""What follows from a peer's deeds: consequences of refusals, standings, and the draw."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.p2p.peers.liveness import OFFENCE
from swarm_node.p2p.peers.standing import (
    BLAMELESS,
    NEWCOMERS_SHARE,
    STRIKES,
    Standing,
    draw,
    lower_quantile,
)
from swarm_node.p2p.wire.reasons import REASONS, Blame, blame_of

VIOLATIONS = sorted(reason for reason in REASONS if blame_of(reason) is Blame.VIOLATION)
USELESS = sorted(reason for reason in REASONS if blame_of(reason) is Blame.USELESS)


@pytest.mark.parametrize("reason", sorted(BLAMELESS))
def test_bad_luck_has_no_consequence(reason: str) -> None:
    standing = Standing()
    for now in range(100):
        assert standing.penalize_rejection(reason, float(now)) is Blame.NONE
    assert standing == Standing()


@pytest.mark.parametrize("reason", VIOLATIONS)
def test_one_violation_cuts_a_peer_off_and_each_further_one_for_twice_as_long(reason: str) -> None:
    standing, now, before = Standing(), 1000.0, OFFENCE.first / 2
    for _ in range(20):
        assert standing.penalize_rejection(reason, now) is Blame.VIOLATION
        off = standing.cut_until - now
        assert off == min(2 * before, OFFENCE.ceiling)
        assert standing.left_until == standing.off_until == standing.cut_until
        now, before = standing.cut_until, off


def test_what_was_under_way_when_a_peer_was_cut_off_prolongs_nothing() -> None:
    standing = Standing()
    for now in (0.0, 0.1, 0.2):
        standing.penalize_rejection("hash", now)
    assert (standing.cut_until, standing.offences) == (OFFENCE.first, 1)


def test_after_a_long_peace_offences_are_forgotten() -> None:
    standing = Standing()
    standing.penalize_rejection("hash", 0.0)
    standing.penalize_rejection("hash", standing.cut_until)
    later = standing.off_until + OFFENCE.ceiling + 1.0
    standing.penalize_rejection("hash", later)
    assert standing.cut_until == later + OFFENCE.first


@pytest.mark.parametrize("reason", USELESS)
def test_useless_groups_leave_a_peer_alone_for_longer_and_longer_and_then_drop_it(
    reason: str,
) -> None:
    standing, now, pauses = Standing(), 0.0, []
    for _ in range(STRIKES - 1):
        standing.penalize_rejection(reason, now)
        pauses.append(standing.left_until - now)
        now = standing.left_until
    assert all(later == 2 * earlier for earlier, later in pairwise(pauses))
    assert pauses[0] < 0.05
    assert 5.0 < now < 10.0, "an attacker is dropped within ten seconds"
    assert standing.offences == 0
    standing.penalize_rejection(reason, now)
    assert standing.left_until == standing.off_until == now + OFFENCE.first
    assert standing.cut_until == 0.0, "an honest peer with other settings still gets answers"


def test_a_useful_group_ends_a_row_of_useless_ones() -> None:
    standing = Standing()
    for now in range(1000):
        standing.penalize_rejection("too_long", 10.0 * now)
        if now % 2:
            standing.count_useful_group()
    assert standing.offences == 0


@given(st.floats(1.0, 500.0), st.floats(1.0, 500.0))
def test_the_score_is_the_lower_quantile_of_a_beta_distribution(a: float, b: float) -> None:
    from scipy.special import betaincinv  # here, because every worker imports every test module

    quantile = float(betaincinv(a, b, 0.05))
    assert lower_quantile(a, b) == pytest.approx(quantile, rel=0.3, abs=0.01)


@given(st.lists(st.sampled_from(["useful", "useless", "bad luck"]), max_size=400))
def test_a_score_stays_within_bounds_and_moves_with_the_deeds(deeds: list[str]) -> None:
    standing = Standing()
    for deed in deeds:
        before = standing.score
        if deed == "useful":
            standing.count_useful_group()
            assert standing.score > before
        elif deed == "useless":
            standing.penalize_rejection("zero_advantage", 0.0)
            assert standing.score < before
        else:
            standing.penalize_rejection("stale", 0.0)
            assert standing.score == before
        assert 0.0 < standing.score < 1.0


def test_old_deeds_fade() -> None:
    standing = Standing()
    for _ in range(5000):
        standing.count_useful_group()
    good = standing.score
    for _ in range(600):
        standing.penalize_rejection("zero_advantage", 0.0)
    assert good > 0.95
    assert standing.score < 0.25


def _standing(useful: int, useless: int = 0) -> Standing:
    return Standing(useful_count=float(useful), useless_count=float(useless))


def _shares(offering: list[tuple[str, Standing]], times: int = 4000) -> Counter[int]:
    rng = random.Random(1)
    return Counter(draw(rng, offering) for _ in range(times))


@pytest.mark.slow(reason="thousands of draws among 200 peers")
def test_many_keys_of_one_issuer_are_drawn_as_often_as_one() -> None:
    honest = [(f"issuer {index}", _standing(100)) for index in range(3)]
    one = _shares([*honest, ("ticket", _standing(100))])[3]
    drawn = _shares([*honest, *(("ticket", _standing(100)) for _ in range(200))])
    many = sum(count for index, count in drawn.items() if index >= 3)
    assert one == pytest.approx(1000, rel=0.1)
    assert many == pytest.approx(one, rel=0.1)


def test_new_keys_share_one_cap_however_many_there_are() -> None:
    known = [("founder", _standing(100)), ("other", _standing(100))]
    new = [(f"ticket {index}", Standing()) for index in range(100)]
    drawn = _shares([*known, *new])
    newcomers = sum(count for index, count in drawn.items() if index >= len(known))
    assert newcomers == pytest.approx(4000 * NEWCOMERS_SHARE, rel=0.1)


def test_where_all_are_new_all_are_drawn() -> None:
    drawn = _shares([("ticket", Standing()) for _ in range(4)])
    assert all(drawn[index] == pytest.approx(1000, rel=0.15) for index in range(4))


def test_a_peer_of_useless_groups_is_drawn_seldom_and_not_never() -> None:
    drawn = _shares([("a", _standing(100)), ("b", _standing(50, 50)), ("c", _standing(2, 98))])
    assert drawn[0] > 1.5 * drawn[1] > 10 * drawn[2] > 0
