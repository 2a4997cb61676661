"""What the trainer makes of a loss by name, of peers' log-probs and of another tokenizer."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import trainer_settings, update_with_gradient

from swarm_node.config import load_settings
from swarm_node.node.start import derive
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.training.objective.logprobs import (
    ReferencePolicy,
    completion_logprobs,
    token_vectors,
)
from swarm_node.policy.training.objective.losses import LOSSES, TBA_BETA
from swarm_node.policy.training.objective.packing import micro_batches
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.rollout import (
    Provenance,
)

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)


def row(advantage: float, seed: int, *, gap: float | None = None, group: int = 0) -> TrainRow:
    """A row of the random model; with `gap`, stated log-probs that far from a guess of 1/64."""
    rng = np.random.default_rng(seed)
    length = 3 + seed % 4
    return TrainRow(
        rng.integers(0, 63, 3).astype(np.uint32),
        rng.integers(0, 63, length).astype(np.uint32),
        None if gap is None else np.full(length, -math.log(64) - gap, np.float32),
        advantage,
        Provenance.SAME_MODEL,
        group=group,
    )


def logprob(core: TrainerCore, one: TrainRow) -> float:
    with torch.no_grad():
        return float(completion_logprobs(core.model, [one], 1.0).sum())


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_makes_good_rows_likelier_than_bad_ones(random_qwen2: Path, loss: str) -> None:
    core = TrainerCore(random_qwen2, replace(SETTINGS, loss=loss))
    good, bad = row(1.0, 1), row(-1.0, 2)
    before = logprob(core, good) - logprob(core, bad)
    for _ in range(3):
        assert core.update(Batch((good, bad))).skipped is None
    assert logprob(core, good) - logprob(core, bad) > before


@pytest.mark.parametrize("loss", ["decoupled", "gspo", "tba"])
def test_micro_batches_have_the_gradient_of_a_whole_batch(random_qwen2: Path, loss: str) -> None:
    """Of losses by token, by row and with a reference; `test_micro_batches_add_up` has them all."""
    rows = tuple(row((-1.0) ** n, n, gap=0.1, group=n // 3) for n in range(6))
    gradients = []
    for budget in (10_000, 20):
        settings = replace(SETTINGS, loss=loss, micro_batch_tokens=budget, max_grad_norm=1e9)
        core = TrainerCore(random_qwen2, settings)
        core.update(Batch(rows))  # so that policy and reference differ
        gradients.append(update_with_gradient(core, rows)[1])
    for name, whole in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], whole, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("gap", [3.0, -3.0, 1e30])
def test_implausible_claims_count_and_are_taken_as_the_good_rows_alone(
    random_qwen2: Path, gap: float
) -> None:
    settings = replace(SETTINGS, max_grad_norm=1e9)
    honest = row(-0.5, 3, gap=0.1)
    lied = (row(1.0, 1, gap=gap), row(-1.0, 2, gap=gap), honest)
    stats, got = update_with_gradient(TrainerCore(random_qwen2, settings), lied)
    assert (stats.implausible, stats.refused) == (2, 0)
    # Without claims, and with what is dropped still counted among the tokens.
    plain = (row(1.0, 1), row(0.0, 2), honest)
    _, expected = update_with_gradient(TrainerCore(random_qwen2, settings), plain)
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-7)


def test_plausible_claims_and_own_log_probs_are_used(random_qwen2: Path) -> None:
    stats = TrainerCore(random_qwen2, SETTINGS).update(
        Batch((row(1.0, 1, gap=1.0), replace(row(-1.0, 2, gap=9.0), provenance=Provenance.LOCAL)))
    )
    assert stats.implausible == 0
    assert stats.mean_ratio > 1.5


def test_versions_become_how_far_behind_a_token_is(random_qwen2: Path) -> None:
    own = replace(row(1.0, 1), versions=np.array([2, 3, 7, 9], np.int64))
    logp = torch.zeros(4 + 5)
    tokens = token_vectors([own, row(1.0, 2)], logp, 7)
    assert tokens.staleness.tolist() == [5, 4, 0, 0, -1, -1, -1, -1, -1]
    assert tokens.row.tolist() == [0] * 4 + [1] * 5


def test_the_reference_is_the_base_model_and_its_drift_the_groups_mean(random_qwen2: Path) -> None:
    core = TrainerCore(random_qwen2, SETTINGS)
    rows = [row(1.0, 1, group=0), row(-1.0, 2, group=0), row(1.0, 3, group=1)]
    reference = ReferencePolicy.from_directory(random_qwen2)
    at_start = reference.log_probs(core.model, rows, 1.0, micro_batches(rows, 20))
    assert [judged.drift for _, judged in sorted(at_start.items())] == pytest.approx(
        [0.0] * 3, abs=1e-6
    )
    base = [logprob(core, one) for one in rows]
    core.update(Batch(tuple(rows)))
    moved = [logprob(core, one) - before for one, before in zip(rows, base, strict=True)]
    later = reference.log_probs(core.model, rows, 1.0, micro_batches(rows, 20))
    expected = [(moved[0] + moved[1]) / 2] * 2 + [moved[2]]
    assert [judged.drift for _, judged in sorted(later.items())] == pytest.approx(
        expected, abs=1e-4
    )
    for index, sum_before in enumerate(base):
        np.testing.assert_allclose(at_start[index].logp, later[index].logp)
        assert float(later[index].logp.sum()) == pytest.approx(sum_before, abs=1e-4)


def test_trajectory_balance_holds_the_policy_at_the_shaped_reward(random_qwen2: Path) -> None:
    """Its optimum is π ∝ π_ref·exp(R/β): log-ratios end A/β apart and no further."""
    rows = (row(0.02, 1), row(-0.02, 2))
    core = TrainerCore(random_qwen2, replace(SETTINGS, loss="tba", learning_rate=3e-3))
    base = [logprob(core, one) for one in rows]
    for _ in range(60):
        core.update(Batch(rows))
    moved = [logprob(core, one) - before for one, before in zip(rows, base, strict=True)]
    assert moved[0] - moved[1] == pytest.approx(0.04 / TBA_BETA, rel=0.05)


def test_settings_by_name_reach_the_trainer() -> None:
    flags = {"training.loss": "cispo", "sampling.max_new_tokens": 9, "training.lora_rank": 8}
    made = derive.trainer_settings(load_settings(flags, environ={}))
    assert (made.loss, made.longest_answer, made.lora_rank) == ("cispo", 9, 8)
    plain = derive.trainer_settings(load_settings({}, environ={}))
    assert plain == trainer_settings(device="auto", dtype="auto")
