"""vLLM on a GPU: its numbers in bfloat16, its sleep, and adapters. What needs no GPU is tested in
test_vllm_sampler.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import trainer_settings
from integration.engines import BUILD, TINY, signed

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.placement import BaseName, Placement
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import EnginePlan, plan_engine
from swarm_node.policy.sampling.vllm.messages import EngineStarted
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import completion_logprobs, measure_canary
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.weights.store import WeightStore
from swarm_node.rollout import Completion, Provenance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow(reason="starts vLLM, which compiles for the GPU"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not torch.cuda.is_available() or BUILD is None or BUILD.on_cpu,
        reason="needs a CUDA device and vllm built for it",
    ),
]
ON_GPU = Placement("cuda:0", "bfloat16")
#: Mean |Δ log-prob|: bfloat16 against the trainer's float32.
NEAR = 0.1
ASKED = SampleRequest(tuple(range(5, 45)), 8, 3, 48)
MIB = 1 << 20


def plan(**changes: int) -> EnginePlan:
    model = CausalLM.from_directory(TINY).config
    rank = changes.pop("lora_rank", 0)
    made = plan_engine(model, placement=ON_GPU, max_rows=64, max_new_tokens=64, lora_rank=rank)
    return replace(made, **changes)


def serve(plan: EnginePlan, body: Callable[[VllmSampler], Awaitable[None]]) -> None:
    async def run() -> None:
        sampler = VllmSampler.from_directory(TINY, plan)
        try:
            await body(sampler)
        finally:
            await sampler.close()
        assert sampler.faults.keys() <= {"base_copied"}

    asyncio.run(run())


@torch.no_grad()
def gap(model: CausalLM, group: tuple[Completion, ...]) -> float:
    prompt = np.asarray(ASKED.prompt_ids, np.uint32)
    rows = [TrainRow(prompt, one.token_ids, None, 0.0, Provenance.LOCAL) for one in group]
    said = completion_logprobs(model, rows, 1.0).cpu().numpy()
    return float(np.abs(said - np.concatenate([one.logprobs for one in group])).mean())


def test_log_probs_are_near_the_trainers_before_and_after_a_sync(tmp_path: Path) -> None:
    store, model = WeightStore(tmp_path), CausalLM.from_directory(TINY)
    random = CausalLM(model.config, generator=torch.Generator().manual_seed(1))

    async def body(sampler: VllmSampler) -> None:
        for version, now in enumerate((model, random, model)):
            path = store.publish(version, now.hf_state(), measure_canary(now).to_metadata())
            await sampler.load(path, version)
            (group,) = await sampler.sample([ASKED])
            assert gap(now, group) < NEAR

    serve(plan(), body)


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_the_engine_holds_no_memory_and_a_sync_wakes_it(tmp_path: Path, level: int) -> None:
    store, model = WeightStore(tmp_path), CausalLM.from_directory(TINY)
    random = CausalLM(model.config, generator=torch.Generator().manual_seed(1))

    async def body(sampler: VllmSampler) -> None:
        await sampler.load(
            store.publish(0, model.hf_state(), measure_canary(model).to_metadata()), 0
        )
        awake = torch.cuda.mem_get_info()[0]
        call = asyncio.ensure_future(sampler.sample([replace(ASKED, n=64)]))
        assert await sampler.rest()
        # The cache of keys and values alone is far more than that.
        assert torch.cuda.mem_get_info()[0] > awake + 1024 * MIB
        header = measure_canary(random).to_metadata()
        await sampler.load(store.publish(1, random.hf_state(), header), 1)
        await call
        (group,) = await sampler.sample([ASKED])
        assert gap(random, group) < NEAR

    serve(plan(sleep_level=level), body)


NF4 = pytest.param(
    "nf4",
    marks=pytest.mark.skipif(
        find_spec("vllm_bnb_plugin") is None,
        reason="needs vllm-bnb-plugin and bitsandbytes",
    ),
)


@pytest.mark.parametrize("base", ["whole", NF4])
def test_adapters_are_swapped_in_place(tmp_path: Path, base: BaseName) -> None:
    settings = trainer_settings(
        learning_rate=0.02, warmup_updates=0, lora_rank=4, base=base, published="adapter"
    )
    (tmp_path / "w").mkdir()
    host = TrainerHost(TINY, tmp_path / "c", tmp_path / "w", settings)

    async def body(sampler: VllmSampler) -> None:
        await sampler.load(host.weights_path, 0)
        (group,) = await sampler.sample([ASKED])
        result = host.update(signed(ASKED, group))
        await sampler.load(result.weights, result.stats.version)
        (group,) = await sampler.sample([ASKED])
        assert {span.version for one in group for span in one.spans} == {1}
        assert gap(host.core.model, group) < NEAR

    serve(plan(lora_rank=4, nf4=base == "nf4"), body)


@pytest.mark.parametrize("level", [0, 1])
def test_the_base_of_adapters_is_the_trainers_memory(tmp_path: Path, level: int) -> None:
    settings = trainer_settings(lora_rank=4, published="shared")
    (tmp_path / "w").mkdir()
    host = TrainerHost(TINY, tmp_path / "c", tmp_path / "w", settings)
    theirs = host.core.model
    before = theirs.hf_state()

    async def body(sampler: VllmSampler) -> None:
        await sampler.load(host.weights_path, 0)
        (group,) = await sampler.sample([ASKED])
        assert gap(theirs, group) < NEAR
        # vLLM makes 320 of the 277 embeddings, so it has a copy of them.
        shared = sum(part.nbytes for part in theirs.parameters()) - theirs.embedding.nbytes
        assert sampler.last_start == EngineStarted(shared, theirs.embedding.nbytes // 277 * 320)
        if level:
            assert await sampler.rest()
            await sampler.load(host.weights_path, 1)
        assert all(torch.equal(before[name], part) for name, part in theirs.hf_state().items())
        # What the trainer writes there is in the engine at once: a vector, a matrix.
        for parameter in (theirs.norm, next(theirs.blocks()).down):
            parameter.data.mul_(3.0)
            torch.cuda.synchronize()
            assert gap(theirs, group) > NEAR
            (group,) = await sampler.sample([ASKED])
            assert gap(theirs, group) < NEAR

    serve(plan(lora_rank=4, shares_base=True, sleep_level=level), body)
