"""The real vLLM on a CPU computes with the frozen base of adapters in the trainer's memory."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from integration.engines import ON_CPUS, largest_gap, made, signed, write_random

from swarm_node.config import load_settings
from swarm_node.errors import ModelError
from swarm_node.node.start.derive import engine_plan, trainer_settings
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import Model
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.planning.fit import Fit
from swarm_node.policy.sampling.fallback import FallbackSampler
from swarm_node.policy.sampling.sampler import SampleRequest, SharingSampler
from swarm_node.policy.sampling.vllm.messages import EngineStarted
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.processes.worker import TrainerHost

pytestmark = [
    pytest.mark.nightly(reason="engines of their own: test_vllm_sampler has one"),
    *ON_CPUS,
]
ASKED = SampleRequest((5, 6, 7, 8, 9, 10), n=4, max_new_tokens=24, seed=3)
LONG = replace(ASKED, n=16, max_new_tokens=1000)
QWEN2 = ModelConfig(320, 64, 96, 2, 2, 1, head_dim=32, tie_word_embeddings=True)
#: An untied head, normalised heads, and a vocabulary that vLLM pads.
QWEN3 = replace(QWEN2, vocab_size=277, model_type="qwen3", tie_word_embeddings=False)
SETTINGS = load_settings(
    {"sampling.engine": "vllm", "training.lora_rank": 3, "training.learning_rate": 0.02}, environ={}
)
FOUND = Fit(ON_CPU, vllm=True, training=TrainingMethod(lora_rank=3), shares_base=True)


def node_of(place: Path, config: ModelConfig) -> tuple[TrainerHost, Model]:
    """A trainer as a node composes it, of a model with random weights."""
    directory = place / "model"
    write_random(directory, config)
    settings = trainer_settings(SETTINGS, FOUND)
    assert settings.published == "shared"
    host = TrainerHost(directory, place / "checkpoints", made(place / "weights"), settings)
    return host, Model.read("made", directory)


def run(model: Model, body: Callable[[VllmSampler], Awaitable[None]]) -> None:
    plan = engine_plan(SETTINGS, model.config, FOUND)
    assert plan.shares_base
    plan = replace(plan, sleep_level=1)

    async def guarded() -> None:
        sampler = VllmSampler.from_directory(model.directory, plan, codec=model.codec)
        try:
            await body(sampler)
        finally:
            await sampler.close()

    asyncio.run(guarded())


def size(*parameters: torch.Tensor) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def test_the_engine_computes_with_the_trainers_memory(tmp_path: Path) -> None:
    host, model = node_of(tmp_path, QWEN2)
    theirs = host.core.model

    async def body(sampler: VllmSampler) -> None:
        await sampler.load(host.weights_path, 0)
        assert sampler.last_start == EngineStarted(shared=size(*theirs.parameters()), copied=0)
        assert sampler.last_sync.difference < 1e-5
        (group,) = await sampler.sample([ASKED])
        assert largest_gap(theirs, ASKED, group) < 1e-4
        result, before = host.update(signed(ASKED, group)), theirs.hf_state()
        assert await sampler.rest()
        await sampler.load(result.weights, result.stats.version)
        (group,) = await sampler.sample([ASKED])
        assert {span.version for one in group for span in one.spans} == {1}
        assert largest_gap(theirs, ASKED, group) < 1e-4
        with pytest.raises(ModelError, match="overwrite"):
            await sampler.load(model.directory / "model.safetensors", 2)
        assert all(torch.equal(before[name], part) for name, part in theirs.hf_state().items())
        # What the trainer writes there is in the engine at once: a vector, a matrix.
        for parameter in (theirs.norm, next(theirs.blocks()).down):
            parameter.data.mul_(3.0)
            assert largest_gap(theirs, ASKED, group) > 1e-2
            (group,) = await sampler.sample([ASKED])
            assert largest_gap(theirs, ASKED, group) < 1e-4
        assert not sampler.faults

    run(model, body)


def test_an_engine_that_lets_go_ends_and_what_was_under_way_goes_on(tmp_path: Path) -> None:
    host, model = node_of(tmp_path, QWEN2)

    async def body(sampler: VllmSampler) -> None:
        elsewhere = tmp_path / "elsewhere" / "adapter-0"
        shutil.copytree(host.weights_path, elsewhere)
        with pytest.raises(ModelError, match="no base"):
            await sampler.load(elsewhere, 0)
        sharing: SharingSampler = FallbackSampler(sampler, lambda: sampler)
        await sampler.load(host.weights_path, 0)
        call = asyncio.ensure_future(sampler.sample([LONG]))
        await sampler.sample([replace(ASKED, n=1)])  # rows start in order
        assert sampler.pid is not None
        engine = psutil.Process(sampler.pid)
        await sharing.let_go()
        assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
        done, _ = await asyncio.wait([call], timeout=1.0)
        assert not done
        assert sampler.pid is None
        await sampler.load(host.weights_path, 5)
        (group,) = await call
        assert {span.version for one in group for span in one.spans} == {5}
        assert largest_gap(host.core.model, LONG, group) < 1e-4
        assert not sampler.faults

    run(model, body)


def test_what_vllm_lays_out_in_another_way_is_copied_and_counted(tmp_path: Path) -> None:
    host, model = node_of(tmp_path, QWEN3)
    theirs, index = host.core.model, tmp_path / "weights" / "base.json"

    async def body(sampler: VllmSampler) -> None:
        await sampler.load(host.weights_path, 0)
        own = size(theirs.embedding, theirs.head_weight)
        shared = size(*theirs.parameters()) - own
        # Of a vocabulary of 277, vLLM makes 320.
        assert sampler.last_start == EngineStarted(shared, copied=own // 277 * 320)
        assert sampler.faults == {"base_copied": 1}
        (group,) = await sampler.sample([ASKED])
        assert largest_gap(theirs, ASKED, group) < 1e-4
        engine = sampler.pid
        await sampler.load(host.weights_path, 1)
        assert sampler.pid == engine
        index.write_text(index.read_text() + "\n")  # another text is another base
        await sampler.load(host.weights_path, 2)
        assert sampler.pid not in (None, engine)
        (group,) = await sampler.sample([ASKED])
        assert largest_gap(theirs, ASKED, group) < 1e-4

    run(model, body)
