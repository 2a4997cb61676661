"""Rows that wait take the places of rows that ended, and get the tokens that they get alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from swarm_node.policy.models.decoder.causal_lm import CausalLM, ModelConfig
from swarm_node.policy.sampling.decoding import CacheShape, Decoder, run_size
from swarm_node.policy.sampling.generating import (
    IdlePlaces,
    Sampled,
    SeededRow,
    draw,
    draw_by_blocks,
    generate,
)

torch.set_num_threads(1)
END = frozenset((2,))


class Counting(CausalLM):
    """A model that counts the prompts and steps that it computes."""

    prompts = steps = 0

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        self.prompts += len(ids)
        return super().read(ids, mask)

    def logits(self, hidden: Tensor) -> Tensor:
        self.steps += 1
        return super().logits(hidden)


def model(vocabulary: int = 64) -> Counting:
    config = ModelConfig(vocabulary, 16, 24, 2, 4, 2, tie_word_embeddings=True)
    made = Counting(config, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        made.embedding.mul_(20.0)  # answers depend on what was read
    return made.eval()


def rows(
    lengths: Sequence[tuple[int, int]], group: int = 3, vocabulary: int = 64
) -> list[SeededRow]:
    """`group` rows of each prompt of so many tokens and up to as many new ones as is said."""
    rng = np.random.default_rng(0)
    made = []
    for prompt, answer in lengths:
        ids = tuple(rng.integers(3, vocabulary, prompt).tolist())
        made += [
            SeededRow(ids, rng.random(max(1, answer - 3 * place)), 0.7 + 0.3 * (place % 2))
            for place in range(group)
        ]
    return made


def sampled(
    used: CausalLM, asked: Sequence[SeededRow], places: int | None, shape: CacheShape | None = None
) -> list[Sampled]:
    return generate(Decoder(used, shape), asked, END, threading.Event(), places)


def assert_alike(ours: Sequence[Sampled], theirs: Sequence[Sampled]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-5)


#: Prompts and answers: a long tail; prompts longer than all that was there before; many short rows
#: after a long one, which fill the cache more than once.
CASES = {
    "tail": [(9, 5), (9, 60), (9, 8), (9, 12), (9, 40), (9, 7), (9, 9), (9, 30)],
    "longer prompts": [(2, 4), (3, 30), (3, 4), (20, 9), (45, 5), (46, 20), (70, 3)],
    "full": [(5, 60), *([(6, 9)] * 12), (6, 50), *([(6, 4)] * 6)],
}


@pytest.mark.slow(reason="samples each row alone")
@pytest.mark.parametrize("shape", [None, CacheShape(4, 96)], ids=["exact", "window"])
@pytest.mark.parametrize("case", CASES)
def test_rows_get_the_tokens_that_they_get_alone(case: str, shape: CacheShape | None) -> None:
    used, asked = model(), rows(CASES[case])
    alone = [sampled(used, [row], None)[0] for row in asked]
    assert len({tuple(each.token_ids.tolist()) for each in alone}) > len(asked) / 2
    for places in (1, 4, len(asked) - 1):
        assert_alike(sampled(used, asked, places, shape), alone)


def test_refills_save_steps_and_run_every_prompt_once() -> None:
    asked, together, apart = rows(CASES["tail"]), model(), model()
    assert_alike(
        sampled(together, asked, 6),
        [each for n in range(0, len(asked), 6) for each in sampled(apart, asked[n : n + 6], None)],
    )
    assert together.steps < 0.8 * apart.steps
    # The last prompt of the first rows runs again if rows of it wait; here none do.
    assert together.prompts == apart.prompts == len(CASES["tail"])


def test_rows_that_ended_leave_when_they_are_worth_a_copy_of_the_cache() -> None:
    left = [48]

    class Noting(Decoder):
        def keep(self, rows: Tensor) -> None:
            left.append(len(rows))
            super().keep(rows)

    one = rows([(9, 1)], group=1)[0]
    asked = [replace(one, uniforms=np.zeros(1 + length)) for length in range(left[0])]
    generate(Noting(model()), asked, frozenset(), threading.Event())
    assert len(left) > 3
    for before, after in pairwise(left):
        assert before - after == max(8, before // 4)


def test_a_cancelled_call_stops_in_the_middle_of_refills() -> None:
    abandoned = threading.Event()

    class Stopping(Decoder):
        def replace(self, *given: object) -> Tensor:
            abandoned.set()
            return super().replace(*given)  # type: ignore[arg-type]

    with pytest.raises(CancelledError):
        generate(Stopping(model()), rows(CASES["tail"]), END, abandoned, 6)


def test_a_refill_waits_until_idle_places_cost_as_much() -> None:
    def first(ended: int, places: int) -> int:
        idle, step = IdlePlaces(places), 1
        while not idle.due(ended, places):
            step += 1
        return step

    assert first(1, 64) > first(4, 64) > first(16, 64) > 1
    assert first(1, 4) < first(1, 64)  # of few places each is worth more
    assert first(64, 64) == 1
    # One idle of 32 places wastes 1/32 of a step and what a row adds to it, 1/32: in two steps 16
    # of them waste the two steps that a refill costs.
    assert first(16, 32) == 2
    again = IdlePlaces(64)
    while not again.due(8, 64):
        pass
    assert not again.due(8, 64)  # the sum begins anew


def test_a_run_has_rows_of_one_capacity() -> None:
    sizes = [(10, 20)] * 6 + [(50, 20)] * 3
    assert run_size(sizes, 4, None) == 9
    assert run_size(sizes, 4, CacheShape(4, 32)) == 6
    assert run_size(sizes, 4, CacheShape(4, 96)) == 9


def test_draws_by_blocks_are_those_of_one_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 5000, generator=generator) * 4
    uniforms = torch.rand(500, generator=generator, dtype=torch.float64)
    expected = draw(logits.log_softmax(-1), uniforms)
    assert draw_by_blocks(logits.softmax(-1), uniforms).tolist() == expected.tolist()


def test_draws_by_blocks_reach_rare_tokens_and_never_impossible_ones() -> None:
    shares = torch.zeros(6, 200_000)
    shares[:, 5], shares[:, 6], shares[:, 199_000] = 1.0, 2e-8, 2e-8
    uniforms = torch.tensor(
        [0.0, 0.5, 1 - 5e-8, 1 - 3e-8, 1 - 1e-9, 1 - 2**-53], dtype=torch.float64
    )
    # Both rare tokens have their share: the one beside a common one in its block, too.
    assert draw_by_blocks(shares, uniforms).tolist() == [5, 5, 5, 6, 199_000, 199_000]


def test_frequencies_of_a_large_vocabulary_follow_the_distribution() -> None:
    used = model(3000)
    asked = [SeededRow((5, 6, 7), np.array([u]), 1.0) for u in (np.arange(4000) + 0.5) / 4000]
    with torch.no_grad():
        logits = used(torch.tensor([(5, 6, 7)]))[0, -1]
    wanted = logits.softmax(-1).double().numpy()
    found = sampled(used, asked, 512)
    counted = np.bincount([int(each.token_ids[0]) for each in found], minlength=3000) / 4000
    # Evenly spaced numbers leave no chance: a token's share is off by less than two of them.
    np.testing.assert_allclose(counted, wanted, atol=2 / 4000)
    for each in found[::100]:
        token = int(each.token_ids[0])
        np.testing.assert_allclose(each.logprobs[0], np.log(wanted[token]), atol=1e-5)
