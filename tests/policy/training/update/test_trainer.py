from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import same_tensors, train_rows, trainer_settings

from swarm_node.clock import Clock
from swarm_node.errors import CheckpointError, ConfigError, ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.model import policy_digests
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.rollout import Provenance

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)


def row(
    advantage: float,
    *,
    seed: int = 0,
    prompt: int = 4,
    length: int = 5,
    logprobs: np.ndarray | None = None,
    largest: int = 63,
) -> TrainRow:
    rng = np.random.default_rng(seed)
    return TrainRow(
        rng.integers(0, largest, prompt).astype(np.uint32),
        rng.integers(0, largest, length).astype(np.uint32),
        logprobs,
        advantage,
        Provenance.LOCAL,
    )


def mixed_batch(rows: int = 6) -> Batch:
    return Batch(tuple(train_rows(rows)))


def poison(core: TrainerCore) -> None:
    with torch.no_grad():
        core.model.norm[0] = math.nan


def test_logprobs_are_those_of_a_plain_forward_pass(random_qwen2: Path) -> None:
    model = TrainerCore(random_qwen2, SETTINGS).model
    rows = [row(1.0, seed=n, prompt=1 + n, length=6 - n) for n in range(5)]
    got = completion_logprobs(model, rows, 0.7).detach()
    expected = []
    for one in rows:
        ids = torch.from_numpy(
            np.concatenate([one.prompt_ids, one.completion_ids]).astype(np.int64)
        )
        full = (model(ids[None])[0] / 0.7).log_softmax(-1)
        for position in range(one.prompt_ids.size, len(one)):
            expected.append(float(full[position - 1, ids[position]].detach()))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_version_and_statistics_of_an_applied_update(random_qwen2: Path) -> None:
    times = iter([10.0, 12.5])
    core = TrainerCore(random_qwen2, SETTINGS, Clock(now=lambda: next(times), wall=lambda: 0.0))
    batch = Batch((*mixed_batch(4).rows, row(0.0, length=11)))
    stats = core.update(batch)
    assert (core.version, stats.version, stats.skipped) == (1, 1, None)
    assert (stats.rows, stats.informative, stats.refused) == (5, 4, 0)
    assert stats.tokens == sum(r.completion_ids.size for r in batch.rows)
    assert stats.grad_norm > 0
    # Nobody's log-probs were measured: the ratio is one by definition.
    assert (stats.mean_ratio, stats.mismatch_kl, stats.clip_ratio) == (1.0, 0.0, 0.0)
    assert stats.seconds == 2.5


@pytest.mark.parametrize("rank", [0, 4])
def test_entropy_is_the_mean_over_the_tokens_that_are_trained_on(
    random_qwen2: Path, rank: int
) -> None:
    core = TrainerCore(random_qwen2, replace(SETTINGS, temperature=0.7, lora_rank=rank))
    rows = mixed_batch(4).rows
    entropies = []
    with torch.no_grad():
        for one in rows:
            ids = np.concatenate([one.prompt_ids, one.completion_ids]).astype(np.int64)
            logps = (core.model(torch.from_numpy(ids)[None])[0] / 0.7).log_softmax(-1)
            entropies += (-(logps.exp() * logps).sum(-1)[one.prompt_ids.size - 1 : -1]).tolist()
    stats = core.update(Batch((*rows, row(0.0, length=11))))
    assert stats.entropy == pytest.approx(np.mean(entropies), rel=1e-5)


def test_own_logprobs_of_the_same_policy_give_ratio_one(random_qwen2: Path) -> None:
    core = TrainerCore(random_qwen2, SETTINGS)
    rows = mixed_batch().rows
    with torch.no_grad():
        measured = [completion_logprobs(core.model, [r], 1.0).numpy() for r in rows]
    exact = tuple(replace(r, logprobs=m) for r, m in zip(rows, measured, strict=True))
    off = tuple(
        replace(r, logprobs=m - np.float32(0.5)) for r, m in zip(rows, measured, strict=True)
    )
    on_policy = core.update(Batch(exact))
    assert on_policy.mean_ratio == pytest.approx(1.0, abs=1e-5)
    assert on_policy.mean_abs_delta < 1e-5
    # Of the losses, this one clips at e^0.5 wherever the log-probs come from.
    off_policy = TrainerCore(random_qwen2, replace(SETTINGS, loss="dapo")).update(Batch(off))
    assert off_policy.mean_ratio == pytest.approx(math.exp(0.5), rel=1e-4)
    assert off_policy.mismatch_kl == pytest.approx(math.exp(0.5) - 1.5, rel=1e-3)
    assert off_policy.clip_ratio > 0


def test_rows_without_advantage_only_shrink_the_step(random_qwen2: Path) -> None:
    settings = replace(SETTINGS, max_grad_norm=1e9)
    alone = TrainerCore(random_qwen2, settings).update(Batch((row(1.0, length=5),)))
    diluted = TrainerCore(random_qwen2, settings).update(
        Batch((row(1.0, length=5), row(0.0, seed=1, length=15)))
    )
    assert diluted.grad_norm == pytest.approx(alone.grad_norm / 4, rel=1e-5)


def test_a_batch_without_information_changes_nothing(random_qwen2: Path) -> None:
    core = TrainerCore(random_qwen2, SETTINGS)
    before = core.weights()
    for batch in (Batch(()), Batch((row(0.0),))):
        stats = core.update(batch)
        assert stats.skipped == "no mixed rewards"
    assert core.version == 0
    assert same_tensors(before, core.weights())


def test_rows_the_model_cannot_take_are_refused_alone(random_qwen2: Path) -> None:
    good = row(1.0)
    outside = replace(row(1.0), completion_ids=np.array([3, 64], np.uint32))
    too_long = row(1.0, length=60)
    core, reference = TrainerCore(random_qwen2, SETTINGS), TrainerCore(random_qwen2, SETTINGS)
    stats = core.update(Batch((outside, good, too_long)))
    reference.update(Batch((good,)))
    assert (stats.refused, stats.rows) == (2, 1)
    assert same_tensors(core.weights(), reference.weights())


def test_a_non_finite_update_is_skipped_and_the_third_one_raises(random_qwen2: Path) -> None:
    core = TrainerCore(random_qwen2, SETTINGS)
    core.update(mixed_batch())
    good = core.state(b"", {})
    poison(core)
    for _ in range(2):
        assert "parameters" in (core.update(mixed_batch()).skipped or "")
    with pytest.raises(ModelError, match="3 updates"):
        core.update(mixed_batch())
    assert core.version == 1
    core.restore(good)
    stats = core.update(mixed_batch())
    assert stats.skipped is None
    assert all(bool(value.isfinite().all()) for value in core.weights().values())


def test_an_overflowing_gradient_is_skipped(random_qwen2: Path) -> None:
    core = TrainerCore(random_qwen2, SETTINGS)
    before = core.weights()
    stats = core.update(Batch((row(1e38), row(-3e38, seed=2))))
    assert "gradient" in (stats.skipped or "")
    assert not math.isfinite(stats.grad_norm)
    assert same_tensors(before, core.weights())
    assert core.version == 0


def test_the_learning_rate_warms_up(random_qwen2: Path) -> None:
    def movement(warmup: int) -> float:
        core = TrainerCore(random_qwen2, replace(SETTINGS, warmup_updates=warmup))
        before = core.weights()
        core.update(mixed_batch())
        return max(float((core.weights()[k] - before[k]).abs().max()) for k in before)

    assert movement(10) == pytest.approx(movement(0) / 10, rel=1e-2)


def test_the_learning_rate_falls_to_a_tenth_and_stays_there() -> None:
    settings = replace(SETTINGS, learning_rate=1.0, warmup_updates=4, lr_decay_steps=10)
    rates = [settings.rate_at(update) for update in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:14] == sorted(rates[3:14], reverse=True)
    assert rates[8] == pytest.approx(0.55)
    assert rates[13:] == pytest.approx([0.1] * 7)
    constant = replace(settings, warmup_updates=0, lr_decay_steps=0)
    assert {constant.rate_at(update) for update in range(20)} == {1.0}
    with pytest.raises(ConfigError, match=r"training\.lr_decay_steps"):
        replace(settings, lr_decay_steps=-1)


def test_a_restored_state_goes_on_bit_for_bit(random_qwen2: Path) -> None:
    straight = TrainerCore(random_qwen2, trainer_settings())
    for _ in range(3):
        straight.update(mixed_batch())
    resumed = TrainerCore(random_qwen2, trainer_settings())
    resumed.restore(straight.state(b"", {}))
    assert resumed.version == 3
    for core in (straight, resumed):
        core.update(mixed_batch(5))
    assert same_tensors(straight.weights(), resumed.weights())


@pytest.mark.parametrize("broken", [float("nan"), None])
def test_damaged_moments_are_refused(random_qwen2: Path, broken: float | None) -> None:
    """The first step with them would end the process, or make every weight NaN."""
    core = TrainerCore(random_qwen2, SETTINGS)
    core.update(mixed_batch())
    state = core.state(b"", {})
    name = next(name for name in state.optimizer if name.startswith("exp_avg:"))
    value = state.optimizer[name]
    wrong = value[:1] if broken is None else value * broken
    with pytest.raises(CheckpointError, match=r"moments .* damaged"):
        core.restore(replace(state, optimizer={**state.optimizer, name: wrong}))


def test_the_digest_that_is_given_names_the_base_model(random_qwen2: Path) -> None:
    """The node hashed the files before, and hashing a large model again takes minutes."""
    given = TrainerCore(random_qwen2, SETTINGS, digest=b"d" * 32).state(b"", {})
    assert given.model == b"d" * 32
    hashed = TrainerCore(random_qwen2, SETTINGS)
    assert hashed.state(b"", {}).model == policy_digests(random_qwen2)[0]
    with pytest.raises(CheckpointError, match="another base"):
        hashed.restore(given)


def test_other_settings_than_the_checkpoint_are_told(
    random_qwen2: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = TrainerCore(random_qwen2, SETTINGS).state(b"", {})
    TrainerCore(random_qwen2, SETTINGS).restore(state)
    assert not caplog.records
    TrainerCore(random_qwen2, trainer_settings()).restore(state)
    (message,) = caplog.messages
    assert message.split(": ")[1].split(", ") == ["learning_rate", "warmup_updates"]
