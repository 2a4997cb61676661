"""Micro-batches, and sequences in which several answers share their prompt."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.memory.footprint import group_tokens
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.objective.packing import (
    MOST_SHARED_TOKENS,
    arrange,
    micro_batches,
    padded_tokens,
    sequences,
    shared_length,
)
from swarm_node.rollout import Provenance


def row(prompt: int, answer: int, question: int = 0) -> TrainRow:
    """Of one question and length, prompts are the same."""
    generator = np.random.default_rng((prompt, question))
    prompt_ids = generator.integers(0, 50, prompt).astype(np.uint32)
    answer_ids = np.random.default_rng(answer).integers(0, 50, answer).astype(np.uint32)
    return TrainRow(prompt_ids, answer_ids, None, 1.0, Provenance.LOCAL, group=question)


def talk(sizes: list[tuple[int, int]], question: int = 0) -> TrainRow:
    """A row of turns of so many sampled tokens; before each, but the first, so many given ones."""
    generator = np.random.default_rng([question, *(size for pair in sizes for size in pair)])
    ends = np.cumsum([sampled for sampled, _ in sizes])
    return TrainRow(
        row(12, 1, question).prompt_ids,
        generator.integers(0, 50, ends[-1]).astype(np.uint32),
        None,
        1.0,
        Provenance.LOCAL,
        group=question,
        observations=tuple(
            (int(end), tuple(generator.integers(0, 50, given).tolist()))
            for end, (_, given) in zip(ends[:-1], sizes[1:], strict=True)
        ),
    )


def turns_apart(one: TrainRow) -> list[TrainRow]:
    """A row for each turn, with all before it as its prompt."""
    whole, places = one.ids_after_prompt()
    starts = [0, *(at for at, _ in one.observations), one.completion_ids.size]
    return [
        TrainRow(
            np.concatenate([one.prompt_ids, whole[: places[start]]]),
            one.completion_ids[start:end],
            None,
            one.advantage,
            Provenance.LOCAL,
        )
        for start, end in pairwise(starts)
    ]


def apart(*sizes: tuple[int, int]) -> list[TrainRow]:
    """Rows of different questions."""
    return [row(prompt, answer, question) for question, (prompt, answer) in enumerate(sizes)]


@examples(100)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(0, 2))),
    budget=st.integers(1, 400),
)
def test_micro_batches_hold_every_row_once_within_the_budget(
    sizes: list[tuple[int, int, int]], budget: int
) -> None:
    rows = [row(10 * question + 1, answer, question) for _, answer, question in sizes]
    groups = micro_batches(rows, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(rows)))
    for group in groups:
        assert padded_tokens(rows, group) <= budget or len(group) == 1


def test_micro_batches_pack_rows_of_equal_length_fully() -> None:
    assert micro_batches(apart(*[(5, 3)] * 6), 24) == [[0, 1, 2], [3, 4, 5]]


def test_a_long_tail_is_not_padded_to_its_longest_row() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(4.5, 0.9, 64), 8, 1024).astype(int)
    rows = apart(*[(5, int(length) - 5) for length in lengths])
    groups = micro_batches(rows, 8192)
    padded = sum(len(group) * max(len(rows[index]) for index in group) for group in groups)
    # 36% when every micro-batch was filled up to the budget.
    assert 1 - lengths.sum() / padded < 0.12
    # And a few short rows are not worth more than one forward pass.
    assert len(micro_batches(apart(*[(5, length) for length in range(5, 15)]), 8192)) == 1


def test_answers_share_their_prompt_where_it_pays() -> None:
    short = [row(40, answer) for answer in range(3, 11)]
    assert sequences(short) == [list(range(8))]
    assert shared_length(short, range(8)) == 40 + sum(range(3, 11))
    long = [row(40, answer) for answer in range(203, 211)]
    assert sequences(long) == [[index] for index in range(8)], "attention would cost more"
    other = [*short, row(40, 3, question=1)]
    assert sequences(other) == [list(range(8)), [8]]


def test_a_sequence_is_no_longer_than_the_budget() -> None:
    rows = [row(40, 10 + n) for n in range(8)]
    assert [shared_length(rows, pack) <= 100 for pack in sequences(rows, 100)] == [True] * 2
    assert sequences(rows, 50) == [[index] for index in range(8)]
    many = [row(1000, 100 + n) for n in range(30)]
    assert max(shared_length(many, pack) for pack in sequences(many)) <= MOST_SHARED_TOKENS


def test_a_sequence_copies_its_prompt_for_few_answers() -> None:
    rows = [row(100, 1 + n % 3) for n in range(32)]
    packs = sequences(rows)
    assert 1 < len(packs) < 6
    for pack in packs:
        assert sum(len(rows[index]) for index in pack) <= 8 * shared_length(rows, pack)


TURNS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=4)


@examples(100)
@given(st.lists(st.tuples(TURNS, st.integers(0, 2)), min_size=1, max_size=8))
def test_of_a_dialogue_only_what_was_sampled_is_trained_on_and_all_before_it_is_seen(
    shapes: list[tuple[list[tuple[int, int]], int]],
) -> None:
    rows = [talk(turns, question) for turns, question in shapes]
    made = arrange(rows)
    places = iter(made.places.T)
    trained = 0
    for one in rows:
        seen = one.prompt_ids.tolist()
        given = dict(one.observations)
        for index, target in enumerate(one.completion_ids.tolist()):
            seen += given.get(index, ())
            sequence, position, wanted = next(places)
            assert wanted == target
            before = made.ids[sequence, : position + 1]
            if made.segments is not None:
                segments = made.segments[sequence, : position + 1]
                before = before[(segments == 0) | (segments == segments[-1])]
            assert before.tolist() == seen
            seen.append(target)
            trained += 1
    assert next(places, None) is None
    assert trained == sum(turn for turns, _ in shapes for turn, _ in turns)
    for group in micro_batches(rows, 200):
        assert padded_tokens(rows, group) <= 200 or len(group) == 1


@pytest.mark.parametrize("recompute", [False, True])
def test_shared_prompts_and_dialogues_have_the_log_probs_and_gradients_of_their_turns_apart(
    random_qwen2: Path, recompute: bool
) -> None:
    model = CausalLM.from_directory(random_qwen2)
    model.recompute = recompute
    shapes = [[(4, 0), (3, 5), (2, 4)], [(1, 0), (6, 7)], [(5, 0)], [(2, 0), (2, 1), (2, 6)]]
    rows = [talk(shape, question) for question in range(2) for shape in shapes]
    rows += [talk([(n, 0), (n, 4)], question=3) for n in range(1, 5)]
    assert len(sequences(rows)) < len(rows), "some share their prompt"
    together = completion_logprobs(model, rows, 0.7)
    weights = torch.arange(len(together)) % 3 - 1.0
    (together * weights).sum().backward()
    shared = {
        name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None
    }
    model.zero_grad()
    each = [turn for one in rows for turn in turns_apart(one)]
    assert len(each) > len(rows)
    alone = torch.cat([completion_logprobs(model, [one], 0.7) for one in each])
    (alone * weights).sum().backward()
    torch.testing.assert_close(together, alone, rtol=0.0, atol=1e-5)
    for name, part in model.named_parameters():
        torch.testing.assert_close(shared[name], part.grad, rtol=1e-5, atol=1e-5)


@given(st.integers(1, 3000), st.integers(1, 600), st.integers(1, 40))
def test_a_plan_counts_the_tokens_of_a_group_as_they_are_packed(
    prompt: int, answer: int, answers: int
) -> None:
    rows = [row(prompt, answer)] * answers
    packed = sum(shared_length(rows, pack) for pack in sequences(rows))
    assert group_tokens(prompt, answer, answers) == packed
