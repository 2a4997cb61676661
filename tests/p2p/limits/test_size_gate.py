"""What a peer's group may hold."""

from __future__ import annotations

from swarm_node.p2p.limits.gates import SizeGate

GATE = SizeGate.of(group_size=8, max_new_tokens=24)


def test_a_group_of_four_times_ones_own_is_taken_and_no_larger_one() -> None:
    assert GATE.check_completion_lengths([96] * 32) is None
    assert GATE.check_announced_size(32, 1000) is None
    for refused in (GATE.check_completion_lengths([1] * 33), GATE.check_announced_size(33, 1000)):
        assert refused.reason == "too_large"


def test_one_answer_of_more_than_four_times_ones_own_limit_is_too_long() -> None:
    refused = GATE.check_completion_lengths([1, 97, 1])
    assert refused.reason == "too_long"


def test_the_bytes_of_an_announcement_say_what_cannot_be_short() -> None:
    """30,000 tokens of one answer, with eight bytes each for its id and its log-prob."""
    refused = GATE.check_announced_size(8, 240_000)
    assert refused.reason == "too_long"
    assert GATE.check_announced_size(32, 240_000 - 60_000) is None
    # Eight answers of 96 tokens: ids and log-probs, a text of six bytes a token, a span for each.
    assert GATE.check_announced_size(8, 8 * 96 * (8 + 6 + 12) + 500) is None
