"""What peers may take: all of them, the members of an issuer, one."""

from __future__ import annotations

import pytest

from swarm_node.p2p.limits.budgets import FREE_SECONDS, HALF_LIFE, Budget, Effort, Traffic, Wants

WANTS = Wants.of(local_groups=4, external_groups=4, batches=8, poll=2.0, answers=8, tokens=24)


def issuer(peer: str) -> str:
    """Peers are named `issuer/number`."""
    return peer.partition("/")[0]


def _granted(traffic: Traffic, peers: list[str], seconds: int, *, size: int = 0) -> int:
    """Requests that are answered, with `size` bytes each, when all peers ask 200 times a second."""
    granted = 0
    for tick in range(seconds * 200):
        for peer in peers:
            if traffic.asks(peer, tick / 200, guest=False):
                granted += 1
                traffic.charge_reply(peer, tick / 200, size)
    return granted


def test_what_a_node_wants_follows_from_its_settings() -> None:
    assert WANTS.groups == 16.0
    assert WANTS.size == 8 * (24 * 12 + 64) + 512
    assert WANTS.external_ratio == 1.0
    large = Wants.of(local_groups=4, external_groups=4, batches=8, poll=2.0, answers=8, tokens=512)
    assert large.size > 10 * WANTS.size
    alone = Wants.of(local_groups=4, external_groups=0, batches=8, poll=2.0, answers=8, tokens=24)
    assert alone.groups == WANTS.groups, "a node that takes nothing still serves"


def test_one_peer_gets_what_an_honest_one_needs_and_no_more() -> None:
    burst, rate = 200, 40
    assert _granted(Traffic(WANTS, issuer), ["a/1"], 100) == pytest.approx(burst + 100 * rate, 0.01)


@pytest.mark.slow(reason="many requests")
def test_keys_of_one_issuer_share_a_budget_and_all_issuers_another() -> None:
    def long_run(peers: list[str]) -> int:
        return _granted(Traffic(WANTS, issuer), peers, 40)

    one, same = long_run(["a/1"]), long_run([f"a/{index}" for index in range(20)])
    different = long_run([f"{index}/1" for index in range(20)])
    assert same == pytest.approx(1.5 * one, rel=0.02)
    assert different == pytest.approx(2.0 * one, rel=0.02)


def test_replies_are_paid_for_by_their_bytes() -> None:
    """`list 1000` drew 33 MB/s of one node."""
    size, seconds = 450_000, 100
    drawn = size * _granted(Traffic(WANTS, issuer), ["a/1"], seconds, size=size)
    assert drawn <= 2.0 * WANTS.groups * WANTS.size * (seconds + 5) + size


def test_one_reply_of_any_size_passes_and_is_a_debt() -> None:
    budget = Budget(10.0)
    assert budget.open("a", "a/1", 0.0)
    budget.charge("a", "a/1", 0.0, 1000.0)
    assert not budget.open("a", "a/1", 44.0)
    assert budget.open("a", "a/1", 46.0)
    assert budget.open("b", "b/1", 81.0)


def test_a_refused_request_is_not_charged() -> None:
    traffic = Traffic(WANTS, issuer)
    while traffic.asks("a/1", 0.0, guest=False):
        pass
    assert traffic.asks("b/1", 0.0, guest=False)


def test_who_gave_nothing_waits_while_the_node_is_busy() -> None:
    traffic = Traffic(WANTS, issuer)
    assert traffic.asks("guest/1", 0.0, guest=True)
    peers = [f"{index}/1" for index in range(9)]
    while any(traffic.asks(peer, 0.0, guest=True) for peer in peers):
        pass
    assert not traffic.asks("guest/2", 0.0, guest=True)
    assert traffic.asks("giver/1", 0.0, guest=False)


def test_who_gave_nothing_gets_half_of_what_others_get() -> None:
    granted = [
        sum(traffic.asks("a/1", tick / 200, guest=guest) for tick in range(100 * 200))
        for guest, traffic in ((False, Traffic(WANTS, issuer)), (True, Traffic(WANTS, issuer)))
    ]
    assert granted[1] == pytest.approx(granted[0] / 2, rel=0.02)


@pytest.mark.parametrize("guests", [False, True])
def test_floods_of_two_issuers_keep_nobody_else_from_asking(guests: bool) -> None:
    """Together they may take more than all may. An outsider counts as one issuer more."""
    traffic, answered = Traffic(WANTS, issuer), 0
    for tick in range(60 * 200):
        for name in ("a", "b"):
            traffic.asks(f"{name}/{tick % 50}", tick / 200, guest=guests)
        if tick % 40 == 0:
            answered += traffic.asks("c/1", tick / 200, guest=guests)
    assert answered == 60 * 5


def test_only_who_goes_on_after_many_refusals_floods() -> None:
    traffic = Traffic(WANTS, issuer)
    assert not any(traffic.floods("slow/1", float(second)) for second in range(1000))
    assert [traffic.floods("fast/1", tick / 100) for tick in range(200)].count(True) > 100


def test_an_authors_bytes_are_bounded_and_take_nothing_from_others() -> None:
    traffic, size, pulled = Traffic(WANTS, issuer), 200_000, 0
    for tick in range(16 * 60):
        pulled += size * traffic.pulls("a/1", tick / 16, size)
        assert traffic.pulls("b/1", tick / 16, WANTS.size), "an honest author"
    assert pulled <= 2.0 * WANTS.groups * WANTS.size * (60 + 5) + size


def test_a_peer_may_cost_as_much_judging_as_own_groups_do() -> None:
    effort = Effort(1.0, issuer)
    for second in range(600):
        effort.charge_own(0.5, float(second))
        effort.charge("a/1", 0.45, float(second))
        assert effort.has_budget("a/1", float(second))
    for second in range(600, 800):
        effort.charge_own(0.5, float(second))
        effort.charge("a/1", 1.0, float(second))
    assert effort.exceeds("a/1", 800.0)
    assert not effort.has_budget("a/1", 800.0)
    assert effort.has_budget("b/1", 800.0)
    assert effort.has_budget("a/1", 800.0 + 4 * HALF_LIFE)


def test_keys_do_not_multiply_the_time_for_judging() -> None:
    def groups(peers: list[str]) -> int:
        """Groups of five seconds that are judged of peers that offer without end."""
        effort, judged = Effort(1.0, issuer), 0
        while (able := [peer for peer in peers if effort.has_budget(peer, 0.0)]) and judged < 1000:
            effort.charge(able[0], FREE_SECONDS, 0.0)
            judged += 1
        return judged

    assert groups(["a/1"]) == 2
    assert groups([f"a/{index}" for index in range(50)]) == 3
    assert groups([f"{index}/1" for index in range(50)]) == 5


def test_own_judging_counts_for_as_many_groups_as_it_is_mixed_with() -> None:
    effort = Effort(3.0, issuer)
    effort.charge_own(10.0, 0.0)
    effort.charge("a/1", 34.0, 0.0)
    assert effort.has_budget("a/1", 0.0)
    effort.charge("a/1", 2.0, 0.0)
    assert not effort.has_budget("a/1", 0.0)


def test_costly_texts_of_two_issuers_leave_time_for_those_of_others() -> None:
    effort, judged, seconds = Effort(1.0, issuer), 0, 600
    for second in range(seconds):
        for peer in ("a/1", "b/1", "a/2", "b/2"):
            if effort.has_budget(peer, second):
                effort.charge(peer, FREE_SECONDS, second)
        judged += effort.has_budget("c/1", second)
    assert judged > seconds / 4


def test_what_is_given_back_leaves_the_shares_as_if_it_had_not_been_taken() -> None:
    """A charge fades, so a reservation of a minute would leave a negative share, with which the
    shares of all others grow without bound."""
    used, other = Traffic(WANTS, issuer), Traffic(WANTS, issuer)
    burst = int(10 * WANTS.groups * WANTS.size)
    for traffic in (used, other):
        traffic.charge_reply("honest/1", 0.0, burst // 2)
    assert used.reserves("bad/1", 0.0, burst)
    used.unsent("bad/1", HALF_LIFE, burst, reserved_at=0.0)
    for traffic in (used, other):
        assert traffic._bytes_out._usage.share("honest", HALF_LIFE) == pytest.approx(1.0)
        assert traffic._bytes_out._usage.total(HALF_LIFE) == pytest.approx(burst / 4)
        assert traffic.reserves("honest/1", HALF_LIFE, burst)
    budget = Budget(1.0)
    budget.charge("a", "a/1", 0.0, -100.0, charged_at=0.0)  # more than was taken
    assert [budget.take("a", "a/1", 0.0) for _ in range(11)] == [True] * 10 + [False]
