"""What a node is doing: calls in the order of the sampler, and estimates from censored answers."""

from __future__ import annotations

from swarm_node.node.metrics.progress import Underway, describe_work, remaining_seconds
from swarm_node.node.metrics.snapshot import WorkRow
from swarm_node.policy.sampling.sampler import Progress


def test_what_a_sampler_counts_belongs_to_its_oldest_call() -> None:
    underway = Underway()
    first = underway.begin("sampling", 8, 64, 16, 0.0, Progress(1000, 50))
    underway.begin("evaluating", 0, 20, 16, 1.0, Progress(1000, 50))
    row = underway.row(10.0, Progress(1500, 87), 0, None)
    assert (row.sampler, row.done, row.completions, row.tokens_per_second) == (
        "sampling",
        37,
        64,
        50.0,
    )
    underway.end(first, 20.0, Progress(2000, 114))
    row = underway.row(30.0, Progress(2100, 120), 0, None)
    assert (row.sampler, row.done, row.completions, row.tokens_per_second) == (
        "evaluating",
        6,
        20,
        10,
    )


def test_answers_that_go_on_are_as_long_as_the_mean_of_all_tokens_allows() -> None:
    call = Underway().begin("sampling", 2, 10, 100, 0.0, Progress())
    assert remaining_seconds(call, 5.0, Progress(15, 0)) is None
    # Nothing has ended: each answer may take all its tokens.
    assert remaining_seconds(call, 5.0, Progress(500, 0)) == 5.0
    # Half have ended: the others go on for 100 tokens each, at 100 tokens a second.
    assert remaining_seconds(call, 5.0, Progress(500, 5)) == 5.0
    # They can go on for no longer than the longest answer.
    assert remaining_seconds(call, 8.0, Progress(800, 1)) == 2.0
    assert remaining_seconds(call, 8.0, Progress(800, 10)) == 0.0


def test_the_first_update_waits_for_all_batches_that_it_lacks() -> None:
    underway = Underway()
    underway.begin("sampling", 2, 10, 100, 0.0, Progress())
    assert underway.row(5.0, Progress(500, 5), 2, None).first_step == 5.0
    assert underway.row(5.0, Progress(500, 5), 6, None).first_step == 25.0
    assert underway.row(5.0, Progress(500, 5), 0, None).first_step is None


def test_a_sampler_that_counts_nothing_is_still_said_to_sample() -> None:
    underway = Underway()
    assert list(describe_work(underway.row(5.0, None, 0, None), 0)) == []
    underway.begin("sampling", 2, 10, 100, 0.0, Progress())
    underway.update_began = 2.0
    row = underway.row(5.0, None, 2, 60.0)
    assert row == WorkRow("sampling", None, 10, training=3.0, end=60.0)
    assert len(list(describe_work(row, 0))) == 3
