"""What a peer's answer must be like to be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import trainer_settings

from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.training.objective.plausible import (
    OwnAnswers,
    learnt,
    least_likely,
    likely_tokens,
    mostly_unlikely,
)
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.rollout import Provenance

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)


def row(
    length: int,
    provenance: Provenance = Provenance.SAME_MODEL,
    advantage: float = 1.0,
    logprob: float | None = None,
    group: int = 0,
) -> TrainRow:
    ids = np.arange(length, dtype=np.uint32) % 60
    stated = None if logprob is None else np.full(length, logprob, np.float32)
    return TrainRow(ids[:1], ids, stated, advantage, provenance, group=group)


def own(logprob: float, count: int = 128, advantage: float = 0.0) -> list[TrainRow]:
    return [row(8, Provenance.LOCAL, advantage, logprob, group=9)] * count


def left_out(logp: Sequence[float], answers: OwnAnswers) -> bool:
    values = np.array(logp, np.float32)
    likely, groups = likely_tokens(values, [row(len(values))], answers.floors(1.0))
    assert bool(likely.all()) is not bool(groups)
    return groups == [0]


def known(logprob: float) -> OwnAnswers:
    answers = OwnAnswers()
    answers.note(own(logprob))
    return answers


def test_an_answer_is_described_by_its_mean_and_its_least_likely_windows() -> None:
    logp = np.array([-1, 0, -4, -8, 0, 0], np.float32)
    assert least_likely(logp) == pytest.approx((-13 / 6, -8, -6, -13 / 4))
    assert least_likely(logp[:1]) == (-1, -1, -1, -1)


def test_a_window_does_not_lie_in_two_turns() -> None:
    logp = np.array([0, 0, -6, 0, 0, 0], np.float32)
    assert least_likely(logp) == pytest.approx((-1, -6, -3, -1.5))
    assert least_likely(logp, [3]) == pytest.approx((-1, -6, -3, -2))
    assert least_likely(logp, [2, 3]) == pytest.approx((-1, -6, -6, -6))


def test_an_odd_turn_of_a_dialogue_is_found_among_likely_ones() -> None:
    values = np.array([-0.3] * 4 + [-5.0] + [-0.3] * 8, np.float32)
    one = row(len(values), group=4)
    floors = (known(-0.3).floors(1.0)[0], -9.0, -9.0, -2.3)
    assert likely_tokens(values, [one], floors)[1] == []
    turns = replace(one, observations=((4, (1,)), (5, (1,))))
    assert likely_tokens(values, [turns], floors)[1] == [4]


def test_poison_is_left_out_and_a_discovery_is_taken() -> None:
    answers = known(-0.3)
    assert left_out([-9.6] * 12, answers)
    assert not left_out([-0.3] * 12, answers)
    assert not left_out([-2.2, -0.1, -0.1, -0.1], answers)


def test_two_odd_tokens_among_five_hundred_plausible_ones_are_found() -> None:
    hidden = [-0.1] * 250 + [-9.0, -9.0] + [-0.1] * 248
    assert np.mean(hidden) > -0.2
    assert left_out(hidden, known(-0.3))


def test_what_is_unlikely_depends_on_how_sure_own_answers_are() -> None:
    assert left_out([-4.0] * 8, known(-0.3))
    assert not left_out([-4.0] * 8, known(-3.0))
    answers = known(-3.0)
    answers.note(own(-0.3, count=2000))
    assert left_out([-4.0] * 8, answers)


def test_before_there_are_own_answers_poison_is_left_out_too() -> None:
    assert left_out([-9.6] * 12, OwnAnswers())
    assert not left_out([-3.5] * 12, OwnAnswers())


def test_the_lowest_of_a_few_sure_own_answers_is_no_floor() -> None:
    few = OwnAnswers()
    few.note(own(-0.3, count=99))
    assert few.floors(1.0) == OwnAnswers().floors(1.0)
    few.note(own(-4.2, count=32))
    assert few.floors(1.0)[0] == pytest.approx(-6.2)


def test_floors_are_as_far_below_at_every_temperature_in_logits() -> None:
    colder = OwnAnswers()
    colder.note(own(-0.3 / 0.7))
    for answers, other in ((known(-0.3), colder), (OwnAnswers(), OwnAnswers())):
        scaled = [0.7 * floor for floor in other.floors(0.7)]
        assert scaled == pytest.approx(answers.floors(1.0))


def test_a_group_counts_against_its_author_if_most_of_its_good_answers_are_unlikely() -> None:
    rows = [row(4, group=n, advantage=a) for n in range(3) for a in (1.0, 1.0, 1.0, -1.0)]
    rows += [row(4, Provenance.LOCAL, group=3)]
    assert mostly_unlikely(rows, [1, 2, 3, 0]) == (1, 2)


@pytest.mark.parametrize(
    "spared",
    [row(4, Provenance.LOCAL), row(4, advantage=-1.0)],
    ids=["own", "a bad answer"],
)
def test_only_good_answers_of_peers_are_compared(spared: TrainRow) -> None:
    logp = np.full(8, -20, np.float32)
    likely, groups = likely_tokens(logp, [spared, row(4, group=3)], known(-0.3).floors(1.0))
    assert likely.tolist() == [True] * 4 + [False] * 4
    assert groups == [3]


def test_another_model_named_in_a_group_excuses_nothing() -> None:
    odd, foreign = np.full(4, -20, np.float32), row(4, Provenance.CROSS_MODEL, group=2)
    assert likely_tokens(odd, [foreign], known(-0.3).floors(1.0))[1] == [2]


@pytest.mark.parametrize("loss", ["decoupled", "gspo", "tba"])
@pytest.mark.parametrize("stated", [None, -0.3], ids=["ratio 1", "stated log-probs"])
def test_an_unlikely_answer_moves_nothing_and_its_group_is_named(
    random_qwen2: Path, loss: str, stated: float | None
) -> None:
    """A random model of 64 tokens gives each of them about -4.2."""
    poison = row(6, logprob=stated, group=3)
    sure = TrainerCore(random_qwen2, replace(SETTINGS, loss=loss))  # type: ignore[arg-type]
    stats = sure.update(Batch((*own(-0.3), poison)))
    assert stats.unlikely == (3,)
    assert stats.grad_norm == 0.0
    unsure = TrainerCore(random_qwen2, replace(SETTINGS, loss=loss))  # type: ignore[arg-type]
    stats = unsure.update(Batch((*own(-4.2), poison)))
    assert stats.unlikely == ()
    assert stats.grad_norm > 0.0


def test_a_peers_row_beyond_own_ones_must_fit_a_micro_batch(random_qwen2: Path) -> None:
    core = TrainerCore(random_qwen2, replace(SETTINGS, micro_batch_tokens=20, longest_answer=8))
    rows = [row(8, group=1), row(30, group=2), row(30, Provenance.LOCAL, logprob=-4.0, group=3)]
    stats = core.update(Batch((*own(-4.2), *rows)))
    assert stats.too_long == (2,)
    assert stats.refused == 1
    assert stats.informative == 2


def test_what_is_known_of_own_answers_survives_a_restart() -> None:
    answers = OwnAnswers(known(-0.3).to_bytes())
    assert answers.floors(1.0) == known(-0.3).floors(1.0)
    assert left_out([-4.0] * 8, answers)


@pytest.mark.parametrize("damaged", [b"short", bytes(32 * 1025), b"\xff" * 32])
def test_damaged_bytes_are_not_taken_for_own_answers(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        OwnAnswers(damaged)


def test_sure_answers_teach_less_than_surprising_ones_and_untrained_ones_nothing() -> None:
    rows = [row(2), row(2), row(2, advantage=0.5), row(2, advantage=-1.0), row(2)]
    sure, odd = np.log(np.array([0.9, 0.7])), np.log(np.array([0.2, 0.4]))
    logp = np.concatenate([sure, odd, odd, odd, odd]).astype(np.float32)
    likely = np.array([True] * 8 + [False] * 2)
    assert learnt(logp, rows, likely) == pytest.approx([0.2, 0.7, 0.35, 0.0, 0.0])


def test_an_update_says_what_each_group_taught(random_qwen2: Path) -> None:
    """A random model of 64 tokens gives each of them about 1/64."""
    core = TrainerCore(random_qwen2, SETTINGS)
    rows = [*own(-4.2), row(6, group=1), row(6, group=1), row(6, advantage=0.5, group=2)]
    stats = core.update(Batch((*rows, row(6, advantage=-1.0, group=3))))
    assert stats.learnt == pytest.approx((0.0, 2.0, 0.5, 0.0), rel=0.1)


def test_own_answers_are_remembered_as_if_one_by_one() -> None:
    rng = np.random.default_rng(0)
    rows = [
        replace(row(length), provenance=Provenance.LOCAL, logprobs=-rng.random(length, np.float32))
        for length in (*range(1, 9), *rng.integers(1, 40, 40).tolist())
    ]
    together, singly = OwnAnswers(), OwnAnswers()
    together.note(rows)
    for each in rows:
        singly.note([each])
    assert together.to_bytes() == singly.to_bytes()
    expected = [least_likely(each.logprobs) for each in rows if each.logprobs is not None]
    assert together.to_bytes() == np.array(expected, "<f8").tobytes()
