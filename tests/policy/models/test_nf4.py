"""A frozen base in four bits: its numbers, its gradient, its bytes, and what is learnt on it."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders import printed_by, same_tensors, train_rows, trainer_settings

from swarm_node.errors import ConfigError, ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.memory.footprint import TrainingMethod, adapter_count, footprint
from swarm_node.policy.models.decoder.causal_lm import MATRICES, CausalLM
from swarm_node.policy.models.decoder.lora import Adapter, PublishedAdapter
from swarm_node.policy.models.decoder.nf4 import FourBit
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.placement import ON_CPU, Placement, has_bitsandbytes
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.checkpoints.checkpoint import read
from swarm_node.policy.training.objective.logprobs import completion_logprobs, measure_canary
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.base import base_index, make_base, map_base
from swarm_node.policy.weights.canary import difference, read_canary, text_ids
from swarm_node.rollout import Provenance

pytestmark = pytest.mark.slow(reason="bitsandbytes quantizes and trains models")

torch.set_num_threads(1)
TINY = resolve("tiny")
SETTINGS = trainer_settings(
    warmup_updates=0, learning_rate=1e-2, lora_rank=4, base="nf4", published="shared"
)
IDS = torch.randint(0, 64, (3, 11), generator=torch.Generator().manual_seed(3))
needs = pytest.mark.skipif(
    not has_bitsandbytes(), reason="needs bitsandbytes: pip install '.[gpu]'"
)
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


def rows() -> Batch:
    return Batch(tuple(train_rows(6)))


def host(model: Path, place: Path, **changes: Any) -> TrainerHost:
    (place / "weights").mkdir(exist_ok=True)
    settings = replace(SETTINGS, **changes)
    return TrainerHost(model, place / "checkpoints", place / "weights", settings)


def matrix(*parts: torch.Tensor, device: str = "cpu") -> FourBit:
    shape, dtype = (sum(map(len, parts)), parts[0].shape[1]), parts[0].dtype
    packed, absmax = FourBit.sizes(shape)
    made = FourBit(
        torch.empty(packed, dtype=torch.uint8, device=device),
        torch.empty(absmax, device=device),
        shape,
        dtype,
    )
    made.fill(parts)
    return made


def bell(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)


@needs
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_less_than_half_the_widest_step(device: str, dtype: torch.dtype) -> None:
    given = bell(256, 128, dtype=dtype)
    found = matrix(given, device=device).whole()
    assert (found.dtype, found.device.type) == (dtype, device.partition(":")[0])
    blocks = given.float().view(-1, 64)
    error = (found.float().cpu().view(-1, 64) - blocks).abs()
    largest = blocks.abs().amax(-1, keepdim=True)
    # nf4's widest step is 0.304 of a block's largest weight; that is rounded to eight bits.
    assert bool((error <= 0.16 * largest).all())
    assert error.mean() < 0.1 * blocks.abs().mean()


@needs
def test_joined_matrices_are_those_of_the_library_alone() -> None:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    one, other = bell(96, 64), 3 * bell(32, 64)
    alone = [
        dequantize_4bit(*quantize_4bit(part, compress_statistics=True, quant_type="nf4"))
        for part in (one, other)
    ]
    assert torch.equal(matrix(one, other).whole(), torch.cat(alone))


@needs
def test_a_matrix_without_whole_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match=r"blocks.*training\.base"):
        matrix(bell(3, 32))


@needs
@pytest.mark.parametrize("device", DEVICES)
def test_a_product_keeps_four_bits_for_its_gradient(device: str) -> None:
    held = matrix(bell(256, 128), device=device)
    bias = bell(256).to(device)
    inputs = [torch.randn(2, 5, 128).to(device).requires_grad_() for _ in range(2)]
    with torch.no_grad():
        inputs[1].copy_(inputs[0])
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        ours = held.linear(inputs[0], bias)
    # What the library keeps is on the node of the graph itself.
    kept += [part for part in ours.grad_fn.tensors if part is not None]
    assert kept
    assert all(part.numel() < 256 * 128 for part in kept), "the whole matrix was kept"
    theirs = F.linear(inputs[1], held.whole(), bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for output in (ours, theirs):
        output.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-5)


@needs
def test_adapters_get_the_gradient_of_the_dequantized_base(
    random_qwen2: Path, tmp_path: Path
) -> None:
    four = make_base(random_qwen2, None, ON_CPU, four_bit=True)
    whole = CausalLM.from_directory(random_qwen2)
    before = whole.hf_state()
    whole.load_hf_state(four.hf_state())
    moved = [name for name, value in whole.hf_state().items() if not value.equal(before[name])]
    assert all(name.endswith("_proj.weight") for name in moved)
    assert len(moved) == 7 * len(list(whole.blocks()))
    adapters = [Adapter(model, 4, seed=1) for model in (four, whole)]
    for adapter in adapters:
        for number, parameter in enumerate(adapter.parameters.values()):
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                parameter.normal_(std=0.1, generator=generator)
    four.recompute = True
    for model in (four, whole):
        torch.log_softmax(model(IDS), -1)[..., 7].sum().backward()
    for name, parameter in adapters[0].parameters.items():
        other = adapters[1].parameters[name].grad
        assert float(parameter.grad.abs().max()) > 0
        torch.testing.assert_close(parameter.grad, other, rtol=1e-3, atol=1e-5)
    merged = [adapter.merged_weights() for adapter in adapters]
    assert merged[0].keys() == merged[1].keys()
    for name, value in merged[0].items():
        torch.testing.assert_close(value, merged[1][name])
    applied = make_base(random_qwen2, None, ON_CPU, four_bit=True)
    PublishedAdapter(applied).load(adapters[0].state())
    torch.testing.assert_close(applied(IDS), four(IDS), rtol=0.0, atol=1e-5)


@needs
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("shares", [False, True])
def test_the_sampler_gives_the_log_probs_of_the_trainer(
    tmp_path: Path, half: bool, shares: bool
) -> None:
    """It shares the trainer's base, or holds the same one itself, in the place of an engine."""
    published = "shared" if shares else "adapter"
    trainer = host(TINY, tmp_path, dtype="bfloat16" if half else "float32", published=published)
    trainer.update(rows())

    async def sample() -> tuple[Any, ...]:
        where = Placement("cpu", "bfloat16" if half else "float32")
        sampler = TorchSampler.from_directory(TINY, where, threads=1, shares=shares, nf4=True)
        await sampler.load(trainer.weights_path, 1)
        canary = measure_canary(sampler._model, text_ids(TINY))
        (group,) = await sampler.sample([SampleRequest((3, 9, 12), 8, 0, 12, 1.0)])
        await sampler.close()
        return canary, group

    canary, group = asyncio.run(sample())
    limit = 0.05 if half else 1e-4
    stated = read_canary(trainer.weights_path / "adapter_model.safetensors")
    assert difference(canary.logprobs, stated.logprobs) < limit
    for one in group:
        row = TrainRow(np.array((3, 9, 12), np.uint32), one.token_ids, None, 1.0, Provenance.LOCAL)
        with torch.no_grad():
            logp = completion_logprobs(trainer.core.model, [row], 1.0).numpy()
        assert np.abs(logp - one.logprobs).mean() < limit


@needs
@pytest.mark.parametrize("half", [False, True])
def test_bytes_are_those_of_the_plan_and_lie_in_one_file(tmp_path: Path, half: bool) -> None:
    model = make_base(
        TINY, tmp_path, Placement("cpu", "bfloat16" if half else "float32"), four_bit=True
    )
    training = TrainingMethod(4, dtype="bfloat16" if half else "float32", nf4=True)
    parts = footprint(model.config, training, device="cpu", rows=1, max_new_tokens=1, one_base=True)
    planned = parts.trainer_weights - 4 * adapter_count(model.config, 4)
    pieces = [
        part
        for layer in model.blocks()
        for held in layer.four_bit.values()
        for part in (held._codes, held._absmax)
    ]
    pieces += [
        parameter for name, parameter in model.named_parameters() if not name.endswith(MATRICES)
    ]
    assert sum(part.numel() * part.element_size() for part in pieces) == planned
    file = tmp_path / "base.weights"
    assert {part.untyped_storage().filename for part in pieces} == {str(file)}
    assert planned <= file.stat().st_size <= planned + 128 * len(pieces)
    assert all(
        parameter.untyped_storage().nbytes() <= 4 and bool(parameter.isnan().all())
        for name, parameter in model.named_parameters()
        if name.endswith(MATRICES)
    )
    mapped, index = map_base(tmp_path, model.config)
    assert index == base_index(tmp_path)
    assert same_tensors(mapped.hf_state(), model.hf_state())
    assert same_tensors(
        make_base(TINY, tmp_path, Placement("cpu", "bfloat16" if half else "float32")).hf_state(),
        model.hf_state(),
    )


#: Says what a model of the trainer's base computes in another process.
READER = """
import sys
from pathlib import Path
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import resolve
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.weights.base import map_base
model, _ = map_base(Path(sys.argv[1]), ModelConfig.from_directory(resolve("tiny")))
print(model.layers[0].four_bit["qkv"].whole().device.type, *measure_canary(model).logprobs)
"""


@needs
@pytest.mark.slow(reason="another process imports torch and bitsandbytes")
@pytest.mark.parametrize("device", DEVICES)
def test_another_process_computes_with_the_same_bytes(tmp_path: Path, device: str) -> None:
    model = make_base(TINY, tmp_path, Placement(device, "bfloat16"), four_bit=True)
    kind, *said = printed_by(READER, tmp_path).split()
    assert kind == device.partition(":")[0]
    assert difference(measure_canary(model).logprobs, [float(each) for each in said]) < 1e-6


@needs
def test_a_checkpoint_names_the_files_and_goes_on_as_if_nothing_had_been(
    random_qwen2: Path, tmp_path: Path
) -> None:
    first = host(random_qwen2, tmp_path)
    first.update(rows())
    state = read(first.checkpoint({}))
    assert state.model == policy_digests(random_qwen2)[0]
    assert all(".lora_A." in name or ".lora_B." in name for name in state.weights)
    resumed = host(random_qwen2, tmp_path, published="adapter")  # a base of its own
    assert base_index(tmp_path / "weights")
    for each in (first, resumed):
        assert each.update(rows()).stats.skipped is None
    assert same_tensors(first.core.weights(), resumed.core.weights())
    whole = host(random_qwen2, tmp_path, base="whole", published="adapter")
    assert whole.core.version == 1, "adapters fit either base"
    adapter = Adapter(CausalLM.from_directory(random_qwen2), int(state.settings["lora_rank"]))
    adapter.load_state(state.weights)
    exported = adapter.merged_weights()  # what an export writes
    for name, value in whole.core.weights().items():  # of the whole base
        torch.testing.assert_close(exported[name], value)


@needs
@pytest.mark.parametrize("device", DEVICES)
def test_a_model_learns_on_a_base_of_four_bits(device: str) -> None:
    """Good answers become likelier and bad ones less likely, about as fast as on a whole base."""
    gains = []
    for base in ("whole", "nf4"):
        settings = replace(SETTINGS, base=base, published="merged", device=device)
        core = TrainerCore(TINY, settings)
        goal = rows()

        def score(core: TrainerCore = core, goal: Batch = goal) -> float:
            with torch.no_grad():
                return sum(
                    math.copysign(1, row.advantage)
                    * float(completion_logprobs(core.model, [row], 1.0).mean())
                    for row in goal.rows
                )

        before = score()
        for _ in range(4):
            assert core.update(goal).skipped is None
        gains.append(score() - before)
    assert gains[1] > 0.3
    assert gains[1] == pytest.approx(gains[0], rel=0.3)


def test_a_base_of_four_bits_is_for_adapters_of_one_process() -> None:
    with pytest.raises(ConfigError, match=r"training\.base"):
        trainer_settings(base="nf4")
    with pytest.raises(ConfigError, match="one process"):
        trainer_settings(base="nf4", lora_rank=4, processes=2)


@pytest.mark.skipif(has_bitsandbytes(), reason="bitsandbytes is installed")
def test_without_the_library_it_says_what_to_install(random_qwen2: Path) -> None:
    with pytest.raises(ConfigError, match=r"bitsandbytes.*\[gpu\]"):
        TrainerCore(random_qwen2, replace(SETTINGS, published="merged"))


#: A program on a processor for which bitsandbytes asks the hub for a kernel, with a package
#: `kernels` that says so.
_ASKS = """
import ctypes, sys
own = ctypes.CDLL.__getattr__
def answer(library, name):
    return (lambda: True) if name == "has_avx512bf16_cpu" else own(library, name)
ctypes.CDLL.__getattr__ = answer
{}
import bitsandbytes, kernels
"""
_KERNELS = """
def get_kernel(*_, **__):
    print("fetched")
    raise OSError("none here")
"""


@needs
@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("import bitsandbytes", "fetched\n"),
        ("from swarm_node.policy.models.decoder.nf4 import *; bitsandbytes('', '')", ""),
        ("from swarm_node.policy.models.decoder.lora import _peft; _peft()", ""),
    ],
)
def test_a_library_of_four_bits_fetches_no_code(tmp_path: Path, line: str, printed: str) -> None:
    (tmp_path / "kernels.py").write_text(_KERNELS)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    assert printed_by(_ASKS.format(line), PYTHONPATH=path) == printed
