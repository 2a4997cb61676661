"""Where the trainer computes and in which numbers, and what moves its weights."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import trainer_settings
from safetensors.torch import load_file, save_file

from swarm_node.errors import ConfigError, ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.memory.free import check_memory
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.models.model import resolve
from swarm_node.policy.placement import DtypeName, Hardware, Placement, hardware, place
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.training.update.trainer import TrainerCore, UpdateStats
from swarm_node.rollout import Completion, Provenance

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2, micro_batch_tokens=40)
NONE, OLD, TWO = Hardware(0, False), Hardware(1, False), Hardware(2, True)
TINY = resolve("tiny")
HAS_BITSANDBYTES = importlib.util.find_spec("bitsandbytes") is not None
GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    ("device", "dtype", "found", "expected"),
    [
        ("auto", "auto", NONE, Placement("cpu", half=False)),
        ("auto", "auto", OLD, Placement("cuda:0", half=False)),
        ("auto", "auto", TWO, Placement("cuda:0", half=True)),
        ("auto", "float32", TWO, Placement("cuda:0", half=False)),
        ("cpu", "auto", TWO, Placement("cpu", half=False)),
        ("cpu", "bfloat16", NONE, Placement("cpu", half=True)),
        ("cuda", "bfloat16", OLD, Placement("cuda:0", half=True)),
        ("cuda:1", "auto", TWO, Placement("cuda:1", half=True)),
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
    config = Qwen2Config(64, 1024, 2048, 80, 16, 16)
    needed, check = config.weight_count * 24, partial(check_memory, config, free=16 * 10**9)
    assert needed > 16 * 10**9
    gpu = Placement("cuda:0", half=True)
    check(placement=gpu)
    with pytest.raises(ModelError, match=f"{needed / 1e9:.1f} GB of memory here"):
        check(placement=Placement("cpu", half=False))
    check(placement=gpu, trainer_processes=8)  # each reads its part
    with pytest.raises(ModelError, match="GB of memory here"):
        check(16, placement=gpu, trainer_processes=8)
    check(16, placement=gpu, one_base=True)


def batch(seed: int, vocab: int = 63) -> Batch:
    rng = np.random.default_rng(seed)
    rows = [
        TrainRow(
            rng.integers(0, vocab, 2 + n % 3).astype(np.uint32),
            rng.integers(0, vocab, 5 + n).astype(np.uint32),
            rng.normal(-4, 0.3, 5 + n).astype(np.float32),
            (-1.0) ** n * (1 + n / 10),
            Provenance.OWN,
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
    now = core.adapter.merged(torch.float32) if core.adapter else core.state(b"", {}).weights
    return torch.cat([(now[name] - base[name]).flatten() for name in sorted(base)])


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


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_products_in_bfloat16_teach_about_the_same(random_qwen2: Path, lora_rank: int) -> None:
    settings = replace(SETTINGS, lora_rank=lora_rank)
    whole = trained(random_qwen2, settings)
    half = trained(random_qwen2, replace(settings, dtype="bfloat16"))
    assert whole[1][1].loss != half[1][1].loss
    assert_alike(half, whole, random_qwen2, tolerance=2e-2)
    assert {value.dtype for value in half[0].weights().values()} == {torch.bfloat16}
    # Steps are smaller than bfloat16 can tell: what is moved stays float32.
    assert {value.dtype for value in half[0].state(b"", {}).weights.values()} == {torch.float32}


def test_the_sampler_in_bfloat16_says_what_the_trainer_would(tmp_path: Path) -> None:
    settings, where = trainer_settings(device="cpu", dtype="bfloat16"), Placement("cpu", half=True)
    # One update's rounding may double the error, whatever the code does.
    errors = [sampled_error(TrainerCore(TINY, settings), where, tmp_path, n) for n in range(8)]
    assert np.mean(errors) < 2e-2


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
        row = TrainRow(np.array(prompt, np.uint32), one.token_ids, None, 1.0, Provenance.OWN)
        with torch.no_grad():
            logp = completion_logprobs(core.model, [row], 1.0).numpy()
        differences.append(np.abs(logp - one.logprobs))
    return float(np.concatenate(differences).mean())


def test_an_optimizer_that_is_not_installed_is_refused_with_what_to_do(random_qwen2: Path) -> None:
    if HAS_BITSANDBYTES:
        pytest.skip("bitsandbytes is installed")
    with pytest.raises(ConfigError, match=r"needs bitsandbytes: run `pip install '\.\[gpu\]'`"):
        TrainerCore(random_qwen2, replace(SETTINGS, optimizer="adamw8bit"))


def test_eight_bit_moments_are_refused_with_several_processes() -> None:
    with pytest.raises(ConfigError, match=r'works in one process: .* set "adamw"'):
        replace(SETTINGS, optimizer="adamw8bit", processes=2)


@pytest.mark.skipif(not HAS_BITSANDBYTES, reason="needs bitsandbytes")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_eight_bit_moments_teach_about_the_same_and_resume_exactly(device: str) -> None:
    settings = replace(SETTINGS, device=device, learning_rate=1e-3)
    whole = trained(TINY, settings, vocab=200)
    eight = trained(TINY, replace(settings, optimizer="adamw8bit"), vocab=200)
    assert_alike(eight, whole, TINY, tolerance=2e-2)
    state = eight[0].state(b"", {})
    assert sum(value.dtype == torch.uint8 for value in state.optimizer.values()) > 8
    resumed = TrainerCore(TINY, eight[0].settings)
    resumed.restore(state)
    for core in (eight[0], resumed):
        core.update(batch(7, vocab=200))
    ours, theirs = eight[0].weights(), resumed.weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sampler_and_trainer_agree_on_a_gpu(tmp_path: Path) -> None:
    for dtype, limit in (("float32", 1e-3), ("bfloat16", 3e-2)):
        core = TrainerCore(TINY, trainer_settings(device="cuda", dtype=dtype))  # type: ignore[arg-type]
        assert sampled_error(core, core.placement, tmp_path) < limit


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_out_of_memory_on_a_gpu_the_update_goes_on_with_smaller_micro_batches() -> None:
    core = TrainerCore(TINY, replace(SETTINGS, device="cuda", micro_batch_tokens=1 << 22))
    ids = np.arange(5, 105, dtype=np.uint32)
    rows = [TrainRow(ids[:4], ids, None, (-1.0) ** n, Provenance.OWN) for n in range(4000)]
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((1 << 30) / total)
    try:
        stats = core.update(Batch(tuple(rows)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert stats.skipped is None
    assert stats.halvings > 0
