"""Replay windows and rate limits against plain models of what they promise."""

import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from swarm_node.p2p.limits.gates import (
    MAX_ADVANCE,
    WINDOW,
    PeerGates,
    ReplayWindow,
    TokenBucket,
    Windows,
)


class WindowMachine(RuleBasedStateMachine):
    """A window next to the set of everything it ever accepted, with restarts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.window = ReplayWindow()
        self.accepted: set[int] = set()

    @property
    def high(self) -> int:
        return max(self.accepted, default=0)

    def expected(self, seq: int) -> str | None:
        if seq < 1 or seq <= self.high - WINDOW:
            return "too_old"
        if self.accepted and seq > self.high + MAX_ADVANCE:
            return "sequence"
        return "duplicate" if seq in self.accepted else None

    def offer(self, seq: int) -> None:
        refused = self.window.check(seq)
        assert (refused.reason if refused else None) == self.expected(seq)
        if refused is None:
            assert seq not in self.accepted
            self.window.mark(seq)
            self.accepted.add(seq)
        else:
            with pytest.raises(ValueError, match=refused.reason):
                self.window.mark(seq)

    @rule(seq=st.integers(-5, 3000))
    def offer_low(self, seq: int) -> None:
        self.offer(seq)

    @rule(offset=st.integers(-WINDOW - 3, 40))
    def offer_near(self, offset: int) -> None:
        self.offer(self.high + offset)

    @rule(offset=st.sampled_from([WINDOW - 1, WINDOW, WINDOW + 1, MAX_ADVANCE, MAX_ADVANCE + 1]))
    def offer_far(self, offset: int) -> None:
        self.offer(self.high + offset)

    @rule(seq=st.integers(1, (1 << 62) - 1))
    def offer_anywhere(self, seq: int) -> None:
        self.offer(seq)

    @rule(data=st.data())
    def offer_again(self, data: st.DataObject) -> None:
        if self.accepted:
            self.offer(data.draw(st.sampled_from(sorted(self.accepted))))

    @rule()
    def restart(self) -> None:
        self.window = ReplayWindow.from_row(*self.window.to_row())

    @invariant()
    def newest_agrees(self) -> None:
        assert self.window.high == self.high
        assert len(self.window.to_row()[1]) == WINDOW // 8


WindowMachine.TestCase.settings = examples(80, stateful_step_count=40)
TestWindow = WindowMachine.TestCase


def test_a_first_number_may_be_any_and_costs_no_memory() -> None:
    window = ReplayWindow()
    window.mark((1 << 62) - 1)
    assert window.to_row() == ((1 << 62) - 1, b"\x01" + bytes(127))


@pytest.mark.parametrize(
    ("high", "bitmap"),
    [
        (5, b"\x01" + bytes(126)),
        (5, b"\x01" + bytes(128)),
        (5, bytes(128)),
        (0, b"\x01" + bytes(127)),
        (-1, bytes(128)),
        (5, b"\x3f" + bytes(127)),
    ],
)
def test_a_damaged_row_is_not_taken_for_a_window(high: int, bitmap: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        ReplayWindow.from_row(high, bitmap)


@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 5)), max_size=60)
)
def test_a_group_is_new_once_till_its_author_is_forgotten(
    events: list[tuple[str, int, int]],
) -> None:
    """Against every (epoch, number) that was ever marked; two authors of three are remembered."""
    windows, known = Windows(capacity=2), dict[str, set[tuple[int, int]]]()
    for author, epoch, seq in events:
        marked = known.get(author, set())
        newest = max((e for e, _ in marked), default=epoch)
        refused = windows.check(author, epoch, seq)
        wanted = None
        if epoch < newest or seq < 1:
            wanted = "too_old"
        elif (epoch, seq) in marked:
            wanted = "duplicate"
        assert (refused.reason if refused else None) == wanted
        if refused is not None:
            with pytest.raises(ValueError, match=refused.reason):
                windows.mark(author, epoch, seq)
            continue
        high, bitmap = windows.mark(author, epoch, seq)
        assert high == max(s for e, s in {*marked, (epoch, seq)} if e == epoch)
        assert ReplayWindow.from_row(high, bitmap).check(seq) is not None
        known[author] = {*known.pop(author, set()), (epoch, seq)}
        if len(known) > 2:
            del known[next(iter(known))]
        assert len(windows) == len(known)


def test_an_author_begins_an_epoch_that_is_greater_than_its_last() -> None:
    windows = Windows()
    assert not windows.begins("a", 2), "nothing is known of it"
    windows.mark("a", 2, 1)
    assert [windows.begins("a", epoch) for epoch in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize("bitmap", [bytes(128), b"\x01", None])
def test_a_damaged_row_closes_the_epoch_of_its_author(bitmap: bytes) -> None:
    windows = Windows()
    windows.restore("b", 7, 1, b"\x01" + bytes(127))
    with pytest.raises(ValueError, match="damaged"):
        windows.restore("a", 7, 5, bitmap)
    refused = windows.check("a", 7, 6)
    assert refused.reason == "too_old"
    assert windows.check("a", 8, 1) is windows.check("b", 7, 2) is None
    with pytest.raises(ValueError, match="damaged"):
        windows.restore("c", "no epoch", 5, bitmap)  # type: ignore[arg-type]
    assert windows.check("c", 7, 1) is None


moments = st.floats(-1e6, 1e9, allow_nan=False)
amounts = st.floats(0, 200, allow_nan=False)


@examples(200)
@given(
    st.floats(0, 1e6, allow_nan=False),
    st.floats(0.1, 100, allow_nan=False),
    st.lists(st.tuples(moments, amounts), max_size=50),
)
def test_a_bucket_stays_between_empty_and_full(
    rate: float, burst: float, takes: list[tuple[float, float]]
) -> None:
    bucket = TokenBucket(rate, burst)
    for now, n in takes:
        before = bucket.tokens
        allowed = bucket.take(now, n)
        assert 0 <= bucket.tokens <= burst
        if not allowed:
            assert bucket.tokens >= before  # refilled perhaps, but nothing was taken
            assert n > bucket.tokens


@examples(100)
@given(
    st.integers(0, 20),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10)), max_size=60),
)
def test_no_stretch_of_time_lets_more_through_than_rate_and_burst(
    rate: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now, taken = TokenBucket(rate, burst), 0, list[tuple[int, int]]()
    for wait, n in steps:
        now += wait
        if bucket.take(now, n):
            taken.append((now, n))
    for i, (start, _) in enumerate(taken):
        for j in range(i, len(taken)):
            passed = sum(n for _, n in taken[i : j + 1])
            assert passed <= burst + rate * (taken[j][0] - start)


def test_a_bucket_refills_with_time_and_ignores_a_clock_that_goes_back() -> None:
    bucket = TokenBucket(rate=2, burst=3)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(50.0)
    assert not bucket.take(100.25)
    assert bucket.take(100.5)
    assert not bucket.take(100.5)
    assert bucket.take(1000.0, 3)
    assert not bucket.take(2000.0, 3.5)


@pytest.mark.parametrize("n", [-1, float("nan")])
def test_a_bucket_gives_no_nonsense(n: float) -> None:
    with pytest.raises(ValueError, match="only a number"):
        TokenBucket(1, 1).take(0, n)


@pytest.mark.parametrize(
    ("rate", "burst"), [(-1, 1), (1, 0), (float("nan"), 1), (1, float("inf")), (float("inf"), 1)]
)
def test_a_bucket_needs_finite_bounds(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        TokenBucket(rate, burst)


@examples(100)
@given(
    st.sampled_from([0, 1]), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=80)
)
def test_peers_have_separate_buckets_and_the_table_is_bounded(
    rate: int, events: list[tuple[int, int]]
) -> None:
    gates = PeerGates(rate=rate, burst=2, capacity=3)
    model: dict[int, TokenBucket] = {}
    now = 0
    for peer, wait in events:
        now += wait
        bucket = model.pop(peer, None) or TokenBucket(rate, 2)
        model[peer] = bucket
        if len(model) > 3:
            del model[next(iter(model))]
        assert gates.take(str(peer), now) == bucket.take(now)
        assert len(gates) == len(model) <= 3


def test_the_peer_silent_for_longest_is_forgotten_first() -> None:
    gates = PeerGates(rate=0, burst=1, capacity=2)
    assert [gates.take(peer, 0) for peer in ("a", "b", "a", "c", "a")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert gates.take("b", 0)


def test_a_table_of_peers_needs_room() -> None:
    with pytest.raises(ValueError, match="capacity"):
        PeerGates(1, 1, capacity=0)
