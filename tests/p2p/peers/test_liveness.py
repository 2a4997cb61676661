"""Back-off: every row of the table, every event, and what no sequence of events can do."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.p2p.peers import liveness
from swarm_node.p2p.peers.liveness import (
    DIRECT,
    PEER,
    RELAY,
    SOON_SECONDS,
    TELLER,
    TRY_SECONDS,
    UNMET,
    Backoff,
    Retry,
    came_back,
    choose,
)

ROWS = {name: row for name, row in vars(liveness).items() if isinstance(row, Backoff)}
#: Events with their times, and the next try.
Events = list[tuple[float, str]]


def fails(*times: float) -> Events:
    return [(time, "record_failure") for time in times]


#: Its next try is at 19,300.
LOST = fails(*range(0, 20_000, 1000))
CASES: dict[str, tuple[Backoff, Events, float]] = {
    "a peer fails once": (PEER, fails(10), 11),
    "a second failure is followed by a longer pause": (
        *(PEER, [*fails(10), (11, "begin"), *fails(11)]),
        12.125,
    ),
    "requests that fail together are one failure": (PEER, fails(10, 10.1, 10.2), 11),
    "an answer forgives all": (
        *(PEER, [*fails(10, 20, 30), (40, "record_answer"), *fails(50)]),
        51,
    ),
    "a greeting forgives nothing": (
        *(PEER, [*fails(10, 20), (21, "record_greeting"), *fails(30)]),
        32.5,
    ),
    "a failure that may be this node's own lengthens no pause": (
        *(PEER, [*fails(10, 20), (30, "own fault"), (40, "own fault")]),
        41.25,
    ),
    "a hint brings the next try forward": (PEER, [*LOST, (19_050, "soon")], 19_050),
    "hints are no reason to try every second": (
        *(PEER, [*LOST, (19_050, "soon"), (19_050, "begin"), *fails(19_051), (19_052, "soon")]),
        19_056,
    ),
    "an early try that fails leaves the pause as it was": (
        *(PEER, [*LOST, (19_050, "soon"), (19_050, "begin"), *fails(19_055)]),
        19_300,
    ),
    "a try that nobody reports is given up": (PEER, [(10, "begin")], 10 + TRY_SECONDS),
    "a peer that never answered waits for a minute": (UNMET, fails(10), 70),
    "other addresses are tried at once": (UNMET, [*fails(10), (20, "renew")], 20),
    "other addresses are tried even during a try": (
        *(UNMET, [*fails(10), (60, "begin"), (62, "renew")]),
        62,
    ),
    "a teller of dead peers": (TELLER, fails(10, 12), 16),
    "a relay is left out as long each time": (RELAY, fails(10, 50), 80),
    "a direct link whose ends do not know their position": (
        *(DIRECT, [(10, "begin"), *fails(11), (13, "begin"), *fails(14)]),
        16.5,
    ),
    "a direct link that cannot be": (DIRECT, [(10, "begin"), (11, "rest")], 131),
    "a direct link that was lost": (DIRECT, [(10, "rest"), (20, "renew")], 20),
}


def _apply(retry: Retry, event: str, now: float) -> None:
    if event == "own fault":
        retry.record_failure(now, counts=False)
    else:
        getattr(retry, event)(now)


@pytest.mark.parametrize("case", CASES)
def test_the_next_try_after_these_events(case: str) -> None:
    backoff, events, expected = CASES[case]
    retry = Retry(backoff)
    for now, event in events:
        _apply(retry, event, now)
    assert not retry.due(expected - 0.001)
    assert retry.due(expected)


def test_every_pause_grows_to_its_bound_and_stays_there_for_years() -> None:
    assert len(ROWS) == 13
    for name, row in ROWS.items():
        pauses = [row.after(failures) for failures in range(100)]
        assert pauses[0] == row.first, name
        assert pauses[-1] == row.after(10**9) == row.ceiling, name
        for one, other in pairwise(pauses):
            assert one <= other <= one * row.factor + 1e-9, name


@pytest.mark.parametrize(("cut", "patience"), [(10.0, 2.5), (60.0, 8.5), (9e4, 300.0)])
@pytest.mark.parametrize("timeout", [0.0, 5.0])
def test_who_was_cut_off_is_tried_soon_after_the_line_is_back(
    cut: float, patience: float, timeout: float
) -> None:
    """Every try fails after `timeout` seconds. The line may come back at any moment of a pause."""
    retry, now = Retry(PEER), 0.0
    retry.record_failure(now)
    while now < cut:
        silence, now = now, retry.due_at
        assert now - silence <= min(patience, silence / 8 + PEER.first) + 1e-6
        retry.begin(now)
        now += timeout
        retry.record_failure(now)


def test_while_nothing_else_answers_everything_is_due_soon() -> None:
    retry = Retry(PEER, failures=20)
    retry.begin(1000.0)
    retry.record_failure(1005.0)
    assert not retry.due(1006.0)
    assert not retry.due(1005.9, is_alone=True)
    assert retry.due(1000.0 + SOON_SECONDS, is_alone=True)


def test_what_is_asked_and_what_is_tried() -> None:
    retry = Retry(PEER)
    assert not retry.silent
    retry.busy(10.0)
    assert retry.ask_at == 10.0 + PEER.first
    retry.record_failure(10.0)
    assert retry.silent
    retry.record_greeting(11.0)
    assert (retry.silent, retry.ask_at) == (False, 11.0)


EVENTS = st.lists(
    st.tuples(
        st.floats(0.0, 4000.0),
        st.sampled_from(
            [
                "begin",
                "record_failure",
                "own fault",
                "record_answer",
                "record_greeting",
                "busy",
                "soon",
                "renew",
                "rest",
            ]
        ),
    ),
    max_size=60,
)


@given(row=st.sampled_from(sorted(ROWS)), events=EVENTS)
def test_no_events_put_a_try_off_beyond_the_longest_pause(row: str, events: Events) -> None:
    retry, now = Retry(ROWS[row]), 0.0
    for seconds, event in events:
        now += seconds
        _apply(retry, event, now)
        assert retry.due(now + max(retry.backoff.ceiling, TRY_SECONDS))
        assert retry.silent or retry.ask_at <= now + retry.backoff.ceiling


@given(events=EVENTS, timeout=st.floats(0.0, 5.0))
def test_a_peer_that_answers_again_is_asked_within_the_longest_pause(
    events: Events, timeout: float
) -> None:
    """Whatever happened before, a node that tries when it is due finds the peer."""
    retry, now = Retry(PEER), 0.0
    for seconds, event in events:
        now += seconds
        _apply(retry, event, now)
    back = now
    while retry.silent or retry.ask_at > now:
        now += 0.5
        assert now <= back + max(PEER.ceiling, TRY_SECONDS) + timeout + 1.0
        if retry.silent and retry.due(now):
            retry.begin(now)
            now += timeout
            retry.record_answer(now)


def _lost(lost_at: float, due_at: float = 0.0) -> Retry:
    return Retry(PEER, lost_at=lost_at, ask_at=math.inf, due_at=due_at, tried_at=-100.0)


def test_half_of_the_tries_go_to_those_lost_last_and_none_comes_before_its_time() -> None:
    retries = {f"dead {n}": _lost(-1000.0) for n in range(50)} | {"one": _lost(-60.0)}
    rng = random.Random(0)
    tried = [choose(rng, retries, 1.0, is_alone=False) for _ in range(400)]
    assert 160 < tried.count("one") < 260
    assert len(set(tried)) > 40
    assert choose(rng, {"peer": _lost(0.0, 2.0)}, 1.0, is_alone=False) is None
    assert choose(rng, {"peer": _lost(0.0, 2.0)}, 1.0, is_alone=True) == "peer"
    assert choose(rng, {}, 1.0, is_alone=True) is None


def test_while_nobody_answers_those_lost_last_do_not_keep_out_the_others() -> None:
    retries = {f"dead {n}": _lost(-60.0 + n) for n in range(4)} | {"live": _lost(-1000.0)}
    rng = random.Random(0)
    tried = [choose(rng, retries, 1.0, is_alone=True) for _ in range(100)]
    assert 10 < tried.count("live") < 40


def test_a_return_brings_back_those_that_were_lost_together() -> None:
    together, dead = [_lost(-40.0, 1e9), _lost(-130.0, 1e9)], _lost(-500.0, 1e9)
    came_back([*together, dead], -50.0, 10.0)
    assert all(retry.due(10.0) for retry in together)
    assert not dead.due(10.0)
    came_back([dead], -300.0, 10.0)
    assert dead.due(10.0)


def test_who_waits_for_others_to_be_tried_waits_no_less_for_that() -> None:
    """A node tries one peer at a time. So of many dead ones each is tried late."""
    retry = Retry(PEER)
    retry.record_failure(0.0)
    retry.begin(95.0)
    retry.record_failure(100.0)
    assert (retry.failures, retry.due_at) == (2, 112.5)
