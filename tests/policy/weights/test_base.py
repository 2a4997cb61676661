"""Trainer and built-in sampler hold the frozen base once."""

from __future__ import annotations

import asyncio
import gc
import resource
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import printed_by, train_rows, trainer_settings

from swarm_node.errors import ModelError
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.sampling.decoding import CacheShape
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.weights.base import base_index, make_base, map_base
from swarm_node.rollout import Completion

TINY = resolve("tiny")
CODEC = Codec.from_directory(TINY)
SETTINGS = trainer_settings(lora_rank=4, learning_rate=1e-2, warmup_updates=1)


def trainer(place: Path, published: str) -> TrainerHost:
    weights = place / published
    weights.mkdir(exist_ok=True)
    settings = replace(SETTINGS, published=published)
    return TrainerHost(TINY, place / f"checkpoints-{published}", weights, settings)


def batch(seed: int) -> Batch:
    rows = train_rows(6)
    return Batch(rows[seed:] + rows[:seed])


async def sampled(sampler: TorchSampler) -> tuple[Completion, ...]:
    prompt = CODEC.encode_prompt("Calculate 3 + 4.")
    (group,) = await sampler.sample([SampleRequest(prompt, 8, 0, 12, 1.0)])
    return group


def test_the_sampler_gives_the_answers_of_merged_weights(tmp_path: Path) -> None:
    merged, shared = trainer(tmp_path, "merged"), trainer(tmp_path, "shared")

    async def compare() -> None:
        own = TorchSampler.from_directory(TINY, threads=1)
        sharing = TorchSampler.from_directory(TINY, threads=1, shares=True)
        for version in range(3):
            if version:
                merged.update(batch(version))
                shared.update(batch(version))
            await own.load(merged.weights_path, version)
            await sharing.load(shared.weights_path, version)
            for one, other in zip(await sampled(own), await sampled(sharing), strict=True):
                assert one.token_ids.tolist() == other.token_ids.tolist()
                assert other.spans[0].version == version
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
        await own.close()
        await sharing.close()

    asyncio.run(compare())
    assert merged.core.version == 2


def test_the_base_of_before_is_let_go_at_once(tmp_path: Path) -> None:
    """Collected as garbage, it would be unmapped at any time: in the middle of a capture too."""
    host, index = trainer(tmp_path, "shared"), tmp_path / "shared" / "base.json"
    model = CausalLM(host.core.model.config, draw=False)
    sampler = TorchSampler(model, CODEC, shape=CacheShape(8, 80), inline=True, shares=True)
    asyncio.run(sampler.load(host.weights_path, 0))
    asyncio.run(sampled(sampler))
    before = weakref.ref(sampler._model)
    index.write_text(index.read_text() + "\n")  # another text is another base
    gc.collect()
    gc.disable()
    try:
        asyncio.run(sampler.load(host.weights_path, 0))
        assert sampler._model is not before()
        assert before() is None
    finally:
        gc.enable()


async def test_a_base_that_is_let_go_is_unmapped_and_sampling_waits_for_the_next(
    tmp_path: Path,
) -> None:
    host = trainer(tmp_path, "shared")

    own = CausalLM.from_directory(TINY)
    unshared = TorchSampler(own, CODEC, inline=True)
    await unshared.let_go()
    assert unshared._model is own
    await sampled(unshared)
    model = CausalLM(host.core.model.config, draw=False)
    sampler = TorchSampler(model, CODEC, shape=CacheShape(8, 80), inline=True, shares=True)
    await sampler.load(host.weights_path, 0)
    before, base = await sampled(sampler), weakref.ref(sampler._model)
    await sampler.let_go()
    assert base() is None
    asked = asyncio.create_task(sampled(sampler))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not asked.done()
    await sampler.load(host.weights_path, 3)
    after = await asked
    assert after[0].spans[0].version == 3
    assert [one.text for one in after] == [one.text for one in before]


def test_both_processes_map_one_file(tmp_path: Path) -> None:
    host = trainer(tmp_path, "shared")
    place = tmp_path / "shared"
    file = str(place / "base.weights")
    model, index = map_base(place, host.core.model.config)
    assert index == base_index(place)
    theirs = host.core.model
    assert {part.untyped_storage().filename for part in theirs.parameters()} == {file}
    for each in (model, theirs):
        assert not any(part.requires_grad for part in each.parameters())
    own = CausalLM.from_directory(TINY).hf_state()
    assert all(torch.equal(own[name], part) for name, part in model.hf_state().items())
    # What is trained lies apart: an update leaves the base as it was.
    host.update(batch(0))
    assert all(torch.equal(own[name], part) for name, part in model.hf_state().items())
    # The trainer's writing shows in what a reader maps, and not the other way round.
    theirs.embedding.data[7, 5] = 42.0
    assert model.embedding[7, 5] == 42.0
    model.embedding.data[7, 5] = 43.0
    assert theirs.embedding[7, 5] == 42.0
    before = (place / "base.weights").stat()
    trainer(tmp_path, "shared")
    after = (place / "base.weights").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "mapped again"


def test_a_base_in_bfloat16_has_half_the_bytes(tmp_path: Path) -> None:
    for half in (False, True):
        place = tmp_path / str(half)
        place.mkdir()
        make_base(TINY, place, Placement("cpu", "bfloat16" if half else "float32"))
    whole, halved = (
        (tmp_path / str(half) / "base.weights").stat().st_size for half in (False, True)
    )
    assert whole == 2 * halved
    assert map_base(tmp_path / "True", CausalLM.from_directory(TINY).config)[0].norm.dtype == (
        torch.bfloat16
    )


def test_a_base_of_another_shape_is_refused(tmp_path: Path, random_qwen2: Path) -> None:
    make_base(TINY, tmp_path, ON_CPU)
    with pytest.raises(ModelError, match="this model"):
        map_base(tmp_path, CausalLM.from_directory(random_qwen2).config)


def test_a_full_directory_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ModelError, match="no space") as refused:
            make_base(TINY, tmp_path, ON_CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "--shm-size" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


#: Maps the base of a trainer in another process and compares it with the model's own weights.
READER = """
import sys
from pathlib import Path
import torch
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.weights.base import map_base
own = CausalLM.from_directory(resolve("tiny"), torch.bfloat16)
model, _ = map_base(Path(sys.argv[1]), own.config)
state = own.hf_state()
print(all(torch.equal(state[name], part) for name, part in model.hf_state().items()),
      {part.device.type for part in model.parameters()})
"""


@pytest.mark.gpu
def test_a_base_on_a_gpu_is_mapped_by_another_process(tmp_path: Path) -> None:
    model = make_base(TINY, tmp_path, Placement("cuda:0", "bfloat16"))
    assert model.norm.is_cuda
    assert printed_by(READER, tmp_path) == "True {'cuda'}\n"
