"""The real vLLM on a CPU, spread over two processes as over two cards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from builders import trainer_settings
from integration.engines import ON_CPUS, TINY, largest_gap, made, signed

from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import Deadlines, plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.weights.store import WeightStore

pytestmark = [
    pytest.mark.nightly(reason="engines of their own: test_vllm_sampler has one"),
    *ON_CPUS,
]
LORA = trainer_settings(learning_rate=0.02, warmup_updates=0, published="adapter", lora_rank=4)
ASKED = SampleRequest((5, 6, 7, 8, 9, 10), n=4, max_new_tokens=24, temperature=1.0, seed=3)


@pytest.fixture(autouse=True)
def _no_shared_memory() -> Iterator[None]:
    """Remove what vLLM's workers on CPUs leave when they are killed. GPUs have no such memory.
    What was there before is another program's."""
    memory = Path("/dev/shm")
    before = {*memory.glob("vllm_dist_*-cpushm_*")}
    yield
    for left in {*memory.glob("vllm_dist_*-cpushm_*")} - before:
        left.unlink()


def lives(process: psutil.Process) -> bool:
    """A killed one may wait for its new parent to notice."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_each_process_takes_its_part_of_weights_and_adapters(tmp_path: Path) -> None:
    model = CausalLM.from_directory(TINY)
    tiny = model.hf_state()
    noisy = {name: part + 0.02 * torch.randn(part.shape) for name, part in tiny.items()}
    plan = plan_engine(model.config, placement=ON_CPU, max_rows=8, max_new_tokens=64, lora_rank=4)
    store = WeightStore(made(tmp_path / "whole"))
    workers: list[psutil.Process] = []

    async def scenario(sampler: VllmSampler) -> None:
        for version in range(2):  # the second is the tiny model, which the adapters are for
            model.load_hf_state(noisy if not version else tiny)
            canary = measure_canary(model).to_metadata()
            await sampler.load(store.publish(version, model.hf_state(), canary), version)
            assert sampler.last_sync.difference < 1e-5
            (group,) = await sampler.sample([ASKED])
            assert largest_gap(model, ASKED, group) < 1e-4
        host = TrainerHost(TINY, tmp_path / "c", made(tmp_path / "adapters"), LORA, at_least=1)
        result = host.update(signed(ASKED, group))
        await sampler.load(result.weights, result.stats.version)
        (group,) = await sampler.sample([ASKED])
        assert largest_gap(host.core.model, ASKED, group) < 1e-4
        assert largest_gap(model, ASKED, group) > 1e-3
        below = psutil.Process(sampler.pid).children(recursive=True)
        workers.extend(child for child in below if "Worker_TP" in " ".join(child.cmdline()))
        assert len(workers) == 2

    async def run() -> None:
        sampler = VllmSampler.from_directory(
            TINY, replace(plan, tensor_parallel=2), deadlines=Deadlines(sync=300.0)
        )
        try:
            await scenario(sampler)
        finally:
            await sampler.close()

    asyncio.run(run())
    end = time.monotonic() + 30  # the guard ends them after it has ended what started them
    while any(map(lives, workers)) and time.monotonic() < end:
        time.sleep(0.2)
    assert not any(map(lives, workers))
