"""The built-in sampler takes the place of an engine that failed, with what the engine had."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from surrounded import surrounded

from swarm_node.errors import EngineError, ModelError
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import Adapter
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.fallback import FallbackSampler
from swarm_node.policy.sampling.sampler import (
    InterruptibleSampler,
    RestingSampler,
    Row,
    SampleRequest,
    SharingSampler,
    extend_row,
    finish_row,
)
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.weights.base import make_base
from swarm_node.rollout import Completion

torch.set_num_threads(1)
TINY = resolve("tiny")
CODEC = Codec.from_directory(TINY)


class Engine(TorchSampler):
    """An engine of the built-in sampler's kind that fails once it is told to."""

    failing = closed = False
    pid = None
    description = "vllm"

    def refusal(self, request: SampleRequest) -> str:
        return "not with an engine"

    def _check(self) -> None:
        if self.failing:
            raise EngineError("the inference engine failed 4 times in a row")

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        self._check()
        return await super().sample(requests)

    async def complete(
        self,
        request: SampleRequest,
        partial_rows: Sequence[Row] = (),
        stop_event: asyncio.Event | None = None,
    ) -> list[Row]:
        (group,) = await self.sample([request])
        return [
            extend_row(Row.empty(), c.token_ids, c.logprobs, [(0, 0, len(c.token_ids))], c.finish)
            for c in group
        ]

    def completion(self, row: Row) -> Completion:
        return finish_row(row, CODEC.decode)

    async def load(self, weights: Path, version: int) -> None:
        self._check()
        await super().load(weights, version)

    async def rest(self) -> bool:
        return True

    async def close(self) -> None:
        self.closed = True
        await super().close()


class Counting(CausalLM):
    """Counts the batches that it begins."""

    batches = 0

    def prefill(self, *arguments: Any) -> torch.Tensor:
        self.batches += 1
        return super().prefill(*arguments)


def request(n: int = 4, seed: int = 0, room: int = 12) -> SampleRequest:
    return SampleRequest(CODEC.encode_prompt("Calculate 3 + 4."), n, seed, room)


def tokens(group: Sequence[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in group]


def noisy(seed: int = 1) -> CausalLM:
    model = CausalLM.from_directory(TINY)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model


def with_fallback(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test with a sampler, its engine, and the model that it falls back on."""

    async def guarded(**fixtures: Any) -> None:
        engine = Engine(CausalLM.from_directory(TINY), CODEC, shares=True)
        model = Counting.from_directory(TINY)
        sampler = FallbackSampler(engine, lambda: TorchSampler(model, CODEC, shares=True))
        assert isinstance(sampler, InterruptibleSampler)
        assert isinstance(sampler, RestingSampler)
        try:
            await test(sampler, engine, model, **fixtures)
        finally:
            await sampler.close()

    return surrounded(test, lambda _, **fixtures: asyncio.run(guarded(**fixtures)), first=3)


@pytest.mark.parametrize("failing_at", ["sample", "load"])
@with_fallback
async def test_it_goes_on_with_the_newest_weights_and_says_why(
    sampler: FallbackSampler, engine: Engine, model: Counting, tmp_path: Path, failing_at: str
) -> None:
    for version in (1, 2):
        save_file(noisy(version).hf_state(), tmp_path / f"{version}.safetensors")

    await sampler.load(tmp_path / "1.safetensors", 1)
    before = await sampler.sample([request()])
    assert (sampler.description, sampler.faults, sampler.version) == ("vllm", {}, 1)
    assert sampler.refusal(request()).endswith("engine")
    assert await sampler.rest()
    engine.failing = True
    if failing_at == "load":
        await sampler.load(tmp_path / "2.safetensors", 2)
        assert sampler.version == 2
    after = await sampler.sample([request()])
    if failing_at == "sample":
        assert sampler.version == 1
        assert tokens(after[0]) == tokens(before[0])
    assert engine.closed
    assert sampler.refusal(request()) == ""
    assert sampler.description.startswith("torch (vLLM")
    assert sampler.faults == {"engine_replaced": 1}
    assert not await sampler.rest()
    await sampler.load(tmp_path / "2.safetensors", 3)
    (group,) = await sampler.sample([request()])
    assert_policy(noisy(2), group, 3)


def assert_policy(model: CausalLM, group: Sequence[Completion], version: int) -> None:
    """`group` was sampled from `model`."""
    for one in group:
        assert {span.version for span in one.spans} == {version}
        ids = [*request().prompt_ids, *one.token_ids.tolist()]
        count = len(one.token_ids)
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -count - 1 : -1]
        expected = logits.log_softmax(-1)[range(count), one.token_ids.tolist()]
        np.testing.assert_allclose(one.logprobs, expected.numpy(), atol=1e-4)


@with_fallback
async def test_it_takes_adapters_as_the_engine_does(
    sampler: FallbackSampler, engine: Engine, model: Counting, tmp_path: Path
) -> None:
    trainer = CausalLM.from_directory(TINY)
    adapter = Adapter(trainer, 4)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    adapter.save(tmp_path)

    await sampler.load(tmp_path, 5)
    engine.failing = True
    (group,) = await sampler.sample([request()])
    assert_policy(trainer, group, 5)
    with torch.no_grad():
        for parameter in adapter.parameters.values():
            parameter.mul_(-1.5)
    adapter.save(tmp_path)
    await sampler.load(tmp_path, 6)
    (group,) = await sampler.sample([request()])
    assert_policy(trainer, group, 6)


@with_fallback
async def test_either_sampler_lets_go_of_the_trainers_base(
    sampler: FallbackSampler, engine: Engine, model: Counting, tmp_path: Path
) -> None:
    make_base(TINY, tmp_path, ON_CPU)
    published = tmp_path / "adapter-0"
    published.mkdir()
    Adapter(CausalLM.from_directory(TINY), 4).save(published)

    assert isinstance(sampler, SharingSampler)
    await sampler.load(published, 0)
    for failing in (False, True):
        engine.failing = failing
        await sampler.sample([request()])
        sampling = sampler._built_in or engine
        assert isinstance(sampling, TorchSampler)
        assert (sampling is engine) is not failing
        assert sampling._base
        await sampler.let_go()
        assert not sampling._base
        await sampler.load(published, 1)


@with_fallback
async def test_groups_under_way_are_sampled_anew_and_those_of_one_moment_in_one_batch(
    sampler: FallbackSampler, engine: Engine, model: Counting
) -> None:
    engine.failing = True
    groups = await asyncio.gather(*(sampler.complete(request(seed=n)) for n in range(6)))
    # The one that replaced the engine begins at once.
    assert model.batches <= 2
    model.batches = 0
    await asyncio.gather(*(sampler.complete(request(seed=n)) for n in range(6)))
    assert model.batches == 1
    assert sampler.faults == {"engine_replaced": 1}
    alone = await sampler.sample([request(seed=n) for n in range(6)])
    for rows, group in zip(groups, alone, strict=True):
        assert tokens(list(map(sampler.completion, rows))) == tokens(group)


@with_fallback
async def test_rows_that_the_engine_began_go_on(
    sampler: FallbackSampler, engine: Engine, model: Counting, tmp_path: Path
) -> None:
    save_file(noisy().hf_state(), tmp_path / "1.safetensors")

    asked = request(n=3, room=9)
    begun = await sampler.complete(request(n=3, seed=4, room=2))
    whole, *others = begun
    begun = [
        whole,
        *(Row(row.token_ids[:1], row.logprobs[:1], row.spans[:0], None) for row in others),
    ]
    begun[1:] = [
        extend_row(Row.empty(), row.token_ids, row.logprobs, [(0, 0, 1)], "abort")
        for row in begun[1:]
    ]
    await sampler.load(tmp_path / "1.safetensors", 1)
    engine.failing = True
    cut = asyncio.Event()
    rows = await sampler.complete(asked, begun, cut)
    assert rows[0] is whole
    for before, after in zip(begun[1:], rows[1:], strict=True):
        assert after.finish is not None
        assert after.token_ids[:1].tolist() == before.token_ids.tolist()
        assert 1 < len(after.token_ids) <= 9
        assert [(s.version, s.start) for s in after.spans] == [(0, 0), (1, 1)]
    cut.set()
    assert await sampler.complete(asked, begun, cut) == begun
    assert await sampler.complete(asked, rows) == rows


@with_fallback
async def test_a_call_that_is_cancelled_takes_no_other_with_it(
    sampler: FallbackSampler, engine: Engine, model: Counting
) -> None:
    engine.failing = True
    await sampler.sample([request(n=1)])
    calls = [asyncio.ensure_future(sampler.complete(request(seed=n))) for n in range(3)]
    for _turn in range(3):
        await asyncio.sleep(0)
    calls[0].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert [len(rows) for rows in done[1:] if isinstance(rows, list)] == [4, 4]


@with_fallback
async def test_a_request_that_is_too_long_fails_alone(
    sampler: FallbackSampler, engine: Engine, model: Counting
) -> None:
    engine.failing = True
    calls = [sampler.complete(request(room=2000)), sampler.complete(request())]
    wrong, right = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(wrong, ModelError)
    assert isinstance(right, list)
