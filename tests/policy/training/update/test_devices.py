"""Where the trainer computes and in which numbers, and what moves its weights."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import trainer_settings
from safetensors.torch import load_file, save_file

from swarm_node.errors import ConfigError, ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.memory.free import needed_memory
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import resolve
from swarm_node.policy.placement import (
    DtypeName,
    Hardware,
    Placement,
    Precision,
    hardware,
    place,
)
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.objective.logprobs import completion_logprobs, measure_canary
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.training.update.stats import UpdateStats
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.device import DTYPES
from swarm_node.rollout import Completion, Provenance

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2, micro_batch_tokens=40)
NONE, OLD, TWO = Hardware(0, False), Hardware(1, False), Hardware(2, True)
TURING = Hardware(1, False, float16=True)
TINY = resolve("tiny")
HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None


@pytest.mark.parametrize(
    ("device", "dtype", "found", "expected"),
    [
        ("auto", "auto", NONE, Placement("cpu", "float32")),
        ("auto", "auto", OLD, Placement("cuda:0", "float32")),
        ("auto", "auto", TWO, Placement("cuda:0", "bfloat16")),
        ("auto", "float32", TWO, Placement("cuda:0", "float32")),
        ("cpu", "auto", TWO, Placement("cpu", "float32")),
        ("cpu", "bfloat16", NONE, Placement("cpu", "bfloat16")),
        ("cuda", "bfloat16", OLD, Placement("cuda:0", "bfloat16")),
        ("auto", "auto", TURING, Placement("cuda:0", "float16")),
        ("cpu", "float16", NONE, Placement("cpu", "float16")),
        ("cuda:1", "auto", TWO, Placement("cuda:1", "bfloat16")),
    ],
)
def test_it_computes_on_cuda_where_there_is_any(
    device: str, dtype: DtypeName, found: Hardware, expected: Placement
) -> None:
    assert place(device, dtype, found) == expected


def test_gpus_are_counted_as_nvidia_smi_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    hardware()
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"  # the user's choice
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    hardware()
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # which child processes inherit


def test_several_processes_take_a_gpu_each_from_the_one_named_on() -> None:
    three = Hardware(3, True)
    taken = [place("cuda:1", "auto", three, rank=rank, ranks=2).device for rank in (0, 1)]
    assert taken == ["cuda:1", "cuda:2"]
    assert place("cpu", "auto", three, rank=1, ranks=2).device == "cpu"


@pytest.mark.parametrize(
    ("device", "found", "ranks", "message"),
    [
        ("tpu", TWO, 1, 'run.device is "auto"'),
        ("cuda:100", TWO, 1, 'run.device is "auto"'),
        ("cuda", NONE, 1, 'need GPU 0, and torch sees 0.*set run.device to "cpu"'),
        ("cuda:2", TWO, 1, "need GPU 2, and torch sees 2"),
        ("auto", OLD, 2, "run.trainer_processes = 2 need GPU 1"),
        ("cuda:1", TWO, 2, "need GPU 2"),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_do(
    device: str, found: Hardware, ranks: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        place(device, "auto", found, ranks=ranks)


def test_only_what_is_held_in_main_memory_is_asked_of_it() -> None:
    config = ModelConfig(64, 1024, 2048, 80, 16, 16)
    gpu, cpu = Placement("cuda:0", "bfloat16"), Placement("cpu", "float32")
    # Weights, gradients, two moments, the published copy and the sampler's weights, in float32.
    assert needed_memory(config) == needed_memory(config, placement=cpu) == config.weight_count * 24
    # In types of two bytes the sampler's weights and the published copy take half.
    halved = Placement("cpu", "bfloat16")
    assert needed_memory(config, placement=halved) == config.weight_count * 20
    # Weights on their way, two published versions and the copy of one, beside the processes.
    whole, adapters = (needed_memory(config, rank, placement=gpu) for rank in (0, 16))
    assert whole - adapters == config.weight_count * 10
    assert adapters == 3 << 30  # each base goes straight to its card
    assert needed_memory(config, 16, placement=gpu, trainer_processes=8) == adapters


def batch(seed: int, vocab: int = 63) -> Batch:
    rng = np.random.default_rng(seed)
    rows = [
        TrainRow(
            rng.integers(0, vocab, 2 + n % 3).astype(np.uint32),
            rng.integers(0, vocab, 5 + n).astype(np.uint32),
            rng.normal(-4, 0.3, 5 + n).astype(np.float32),
            (-1.0) ** n * (1 + n / 10),
            Provenance.LOCAL,
        )
        for n in range(6)
    ]
    return Batch(tuple(rows))


def trained(
    model: Path, settings: TrainerSettings, vocab: int = 63
) -> tuple[TrainerCore, list[UpdateStats]]:
    core = TrainerCore(model, settings)
    return core, [core.update(batch(seed, vocab)) for seed in range(3)]


def change(core: TrainerCore, model: Path) -> torch.Tensor:
    """How far all weights, adapters merged, are from those of the base model."""
    base = load_file(model / "model.safetensors")
    now = (
        core.adapter.merged_weights(torch.float32) if core.adapter else core.state(b"", {}).weights
    )
    return torch.cat([(now[name] - base[name]).flatten() for name in sorted(base)])


def flat(core: TrainerCore) -> torch.Tensor:
    """All weights, one after another."""
    state = core.state(b"", {}).weights
    return torch.cat([state[name].flatten() for name in sorted(state)])


def assert_alike(
    ours: tuple[TrainerCore, list[UpdateStats]],
    theirs: tuple[TrainerCore, list[UpdateStats]],
    model: Path,
    tolerance: float,
) -> None:
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert one.skipped is None
        assert one.loss == pytest.approx(other.loss, abs=tolerance)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=5 * tolerance)
    directions = (change(core, model) for core, _ in (ours, theirs))
    assert torch.cosine_similarity(*directions, dim=0) > 1 - 5 * tolerance


@pytest.mark.slow(reason="trains twice")
@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 4e-3)])
def test_products_of_two_bytes_teach_about_the_same(
    random_qwen2: Path, lora_rank: int, dtype: Precision, tolerance: float
) -> None:
    settings = replace(SETTINGS, lora_rank=lora_rank)
    whole = trained(random_qwen2, settings)
    half = trained(random_qwen2, replace(settings, dtype=dtype))
    assert whole[1][1].loss != half[1][1].loss
    assert_alike(half, whole, random_qwen2, tolerance=tolerance)
    assert {value.dtype for value in half[0].weights().values()} == {DTYPES[dtype]}
    # Steps are smaller than two bytes can tell: what is moved stays float32.
    state = half[0].state(b"", {})
    moved = [*state.weights.values(), *state.optimizer.values()]
    assert {value.dtype for value in moved if value.is_floating_point()} == {torch.float32}
    assert completion_logprobs(half[0].model, batch(0).rows, 1.0).dtype is torch.float32
    frozen = DTYPES[dtype] if lora_rank else torch.float32
    assert {value.dtype for value in half[0].model.parameters()} == {frozen}


@pytest.mark.slow(reason="trains and samples eight times")
@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 2e-2), ("float16", 4e-3)])
def test_the_sampler_in_two_bytes_says_what_the_trainer_would(
    tmp_path: Path, dtype: Precision, limit: float
) -> None:
    settings, where = trainer_settings(device="cpu", dtype=dtype), Placement("cpu", dtype)
    # One update's rounding may double the error, whatever the code does.
    errors = [sampled_error(TrainerCore(TINY, settings), where, tmp_path, n) for n in range(8)]
    assert np.mean(errors) < limit


@pytest.mark.slow(reason="trains")
def test_in_float16_a_loss_scale_keeps_small_gradients_and_falls_where_one_overflows(
    random_qwen2: Path,
) -> None:
    settings = replace(SETTINGS, dtype="float16", lora_rank=4)
    core = TrainerCore(random_qwen2, settings)
    scale = core._gradient.scale
    scale.factor = 2.0**40
    assert core.update(batch(0)).skipped is None
    assert 1.0 < scale.factor < 2.0**40, "it overflowed, and no update was lost"
    fine = core.update(batch(1)).grad_norm
    scale.GROWS, scale.factor, before = 1, scale.factor / 4, scale.factor / 4  # type: ignore[misc]
    assert core.update(batch(2)).skipped is None
    assert scale.factor == 2 * before
    assert math.isfinite(fine)


def test_a_model_that_overflows_in_float16_is_refused_with_what_to_do(
    random_qwen2: Path, tmp_path: Path
) -> None:
    weights = load_file(random_qwen2 / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"].fill_(1e5)
    model = Path(shutil.copytree(random_qwen2, tmp_path / "large"))
    save_file(weights, model / "model.safetensors")
    settings = replace(SETTINGS, dtype="float16")
    with pytest.raises(ModelError, match=r"float16.*training\.dtype"):
        measure_canary(TrainerCore(model, settings).model)
    measure_canary(TrainerCore(model, replace(settings, dtype="float32")).model)


def sampled_error(core: TrainerCore, placement: Placement, work: Path, seed: int = 0) -> float:
    """The mean difference between sampled log-probs and those of `core`, an update later."""
    core.update(batch(seed, vocab=200))
    file = work / "weights.safetensors"
    save_file(core.weights(), file)
    prompt = (5, 6, 7, 8)

    async def sample() -> tuple[Completion, ...]:
        sampler = TorchSampler.from_directory(TINY, placement)
        await sampler.load(file, 1)
        (group,) = await sampler.sample([SampleRequest(prompt, 8, 3, 12)])
        await sampler.close()
        return group

    differences = []
    for one in asyncio.run(sample()):
        row = TrainRow(np.array(prompt, np.uint32), one.token_ids, None, 1.0, Provenance.LOCAL)
        with torch.no_grad():
            logp = completion_logprobs(core.model, [row], 1.0).numpy()
        differences.append(np.abs(logp - one.logprobs))
    return float(np.concatenate(differences).mean())


def test_an_optimizer_that_is_not_installed_is_refused_with_what_to_do(random_qwen2: Path) -> None:
    if HAS_BITSANDBYTES:
        pytest.skip("bitsandbytes is installed")
    with pytest.raises(ConfigError, match=r"bitsandbytes.*\[gpu\]"):
        TrainerCore(random_qwen2, replace(SETTINGS, optimizer="adamw8bit"))


@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="needs bitsandbytes")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_eight_bit_moments_teach_about_the_same_and_resume_exactly(device: str) -> None:
    settings = replace(SETTINGS, device=device, learning_rate=1e-3)
    whole = trained(TINY, settings, vocab=200)
    eight = trained(TINY, replace(settings, optimizer="adamw8bit"), vocab=200)
    assert_alike(eight, whole, TINY, tolerance=2e-2)
    state = eight[0].state(b"", {})
    coded = {name for name, value in state.optimizer.items() if value.dtype == torch.uint8}
    assert len(coded) > 8
    assert not any("embedding" in name for name in coded), "a block spans several tokens"
    resumed = TrainerCore(TINY, eight[0].settings)
    resumed.restore(state)
    before = flat(resumed)
    for core in (eight[0], resumed):
        core.update(batch(7, vocab=200))
    ours, theirs = flat(eight[0]), flat(resumed)
    # A GPU's attention adds gradients up in no fixed order.
    far = 0.0 if device == "cpu" else 0.02 * float((ours - before).norm())
    assert float((ours - theirs).norm()) <= far


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, {"lora_rank": 4}, {"loss": "tba"}], ids=str)
def test_a_gpu_learns_as_a_cpu_does(random_qwen2: Path, changes: dict[str, Any]) -> None:
    settings = replace(SETTINGS, **changes)
    ours = trained(random_qwen2, replace(settings, device="cuda"))
    assert ours[0].placement.device == "cuda:0"
    assert_alike(ours, trained(random_qwen2, settings), random_qwen2, tolerance=2e-3)
    resumed = TrainerCore(random_qwen2, settings)  # on the CPU: a checkpoint is of no device
    resumed.restore(ours[0].state(b"", {}))
    one, other = (core.update(batch(7)) for core in (ours[0], resumed))
    assert one.loss == pytest.approx(other.loss, abs=2e-3)


@pytest.mark.gpu
def test_sampler_and_trainer_agree_on_a_gpu(tmp_path: Path) -> None:
    for dtype, limit in (("float32", 1e-3), ("bfloat16", 3e-2)):
        core = TrainerCore(TINY, trainer_settings(device="cuda", dtype=dtype))  # type: ignore[arg-type]
        assert sampled_error(core, core.placement, tmp_path) < limit


@pytest.mark.gpu
def test_out_of_memory_on_a_gpu_the_update_goes_on_with_smaller_micro_batches() -> None:
    core = TrainerCore(TINY, replace(SETTINGS, device="cuda", micro_batch_tokens=1 << 22))
    ids = np.arange(5, 105, dtype=np.uint32)
    rows = [TrainRow(ids[:4], ids, None, (-1.0) ** n, Provenance.LOCAL) for n in range(4000)]
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((1 << 30) / total)
    try:
        stats = core.update(Batch(tuple(rows)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert stats.skipped is None
    assert stats.halvings > 0
