"""Decoding with a cache of fixed shape gives what decoding of exact shapes gives."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from swarm_node.policy.memory.footprint import WINDOWS, bucket_sizes
from swarm_node.policy.models.decoder.cache import KeyValueMemory
from swarm_node.policy.models.decoder.causal_lm import CausalLM, ModelConfig
from swarm_node.policy.models.families import FAMILIES
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling import decoding
from swarm_node.policy.sampling.decoding import (
    CacheShape,
    Decoder,
    batch_size,
    bucket,
    window_of,
)
from swarm_node.policy.sampling.generating import _left_padded
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import Completion

torch.set_num_threads(1)
TINY = resolve("tiny")
CODEC = Codec.from_directory(TINY)
SHORT, LONG = "Calculate 3 + 4.", "How many legs do 3 dogs have? " * 6


def request(question: str = SHORT, n: int = 24, seed: int = 0, room: int = 40) -> SampleRequest:
    return SampleRequest(CODEC.encode_prompt(question), n, seed, room, 1.3)


#: Rows that end at different times, prompts of two lengths, and a batch that exceeds a context.
REQUESTS = [request(), request(seed=1, n=3, room=5), request(LONG, seed=2, n=5), request(seed=3)]


def sampled(
    sampler: TorchSampler, requests: Sequence[SampleRequest] = REQUESTS
) -> list[tuple[Completion, ...]]:
    return asyncio.run(sampler.sample(requests))


def assert_alike(
    ours: list[tuple[Completion, ...]], theirs: list[tuple[Completion, ...]], atol: float = 1e-5
) -> None:
    for group, other in zip(ours, theirs, strict=True):
        for a, b in zip(group, other, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=atol)


def on(device: str, shape: CacheShape | None) -> TorchSampler:
    return TorchSampler(CausalLM.from_directory(TINY).to(device), CODEC, shape=shape, inline=True)


@pytest.mark.slow(reason="samples four times")
@pytest.mark.parametrize("shape", [CacheShape(64, 80), CacheShape(20, 80), CacheShape(6, 40)])
def test_a_cache_of_fixed_shape_gives_the_same_completions(shape: CacheShape) -> None:
    fixed, exact = on("cpu", shape), on("cpu", None)
    for _ in range(2):
        assert_alike(sampled(fixed), sampled(exact))


@torch.inference_mode()
def test_slots_that_only_ended_sequences_used_are_given_up() -> None:
    """Attention reads every slot of the cache at each step."""
    prompts = [CODEC.encode_prompt(text) for text in (LONG, SHORT)]
    ids, mask = _left_padded(prompts)
    decoder = Decoder(CausalLM.from_directory(TINY))
    decoder.begin(ids, mask, torch.arange(2), 8, refill_length=ids.shape[1] + 8)
    short = decoder.read(*_left_padded(prompts[1:]))
    decoder.replace(short, torch.tensor([0]), torch.tensor([0]), torch.tensor([False, True]))
    assert decoder._current_cache.length == len(prompts[1]) < len(prompts[0])


def test_the_cache_stays_where_it_is() -> None:
    sampler = on("cpu", CacheShape(64, 80))
    sampled(sampler)
    before = {key: run.args[1].keys[0].data_ptr() for key, run in runs(sampler).items()}
    sampled(sampler)
    after = {key: run.args[1].keys[0].data_ptr() for key, run in runs(sampler).items()}
    assert before == after
    assert len({rows for rows, *_ in before}) > 1


def test_a_larger_cache_is_asked_for_after_the_one_of_before_is_let_go() -> None:
    sampler = on("cpu", CacheShape(8, 80))
    sampled(sampler, [request(n=8, room=10)])
    decoder = sampler._decoder
    assert decoder._cache is not None
    caches = [decoder._cache, *(run.args[1] for run in runs(sampler).values())]
    held = [weakref.ref(cache) for cache in caches]
    del caches
    ids = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="memory"):
        decoder.begin(ids, ids == 0, ids[0, :1], 1 << 44)
    assert len(held) > 1
    assert all(cache() is None for cache in held)


def runs(sampler: TorchSampler) -> dict:
    return sampler._decoder._runs


def test_nothing_of_broken_weights_remains_in_the_cache(tmp_path: Path) -> None:
    whole = CausalLM.from_directory(TINY).hf_state()
    broken = {name: value * float("nan") for name, value in whole.items()}
    for name, state in (("whole", whole), ("broken", broken)):
        save_file(state, tmp_path / f"{name}.safetensors")
    sampler = on("cpu", CacheShape(64, 80))
    before = sampled(sampler)
    for version, name in enumerate(("broken", "whole")):
        asyncio.run(sampler.load(tmp_path / f"{name}.safetensors", version))
        after = sampled(sampler)
    assert_alike(after, before, atol=0)


@given(st.integers(1, 256), st.integers(1, 256))
def test_a_bucket_holds_its_rows_and_there_are_few(rows: int, most: int) -> None:
    size = bucket(min(rows, most), most)
    assert min(rows, most) <= size <= most
    assert size < 2 * max(rows, 8)  # the next power of two, but where a step takes as long anyway
    assert len({bucket(n, most) for n in range(1, most + 1)}) <= 6


@given(st.integers(1, 256), st.integers(2, 4096))
def test_there_are_as_many_graphs_as_are_planned(most: int, capacity: int) -> None:
    assert {bucket(n, most) for n in range(1, most + 1)} == set(bucket_sizes(most))
    assert len({window_of(used, capacity) for used in range(1, capacity + 1)}) == WINDOWS


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 600))
def test_a_capacity_is_enough_and_its_rows_fit(needed: int, rows: int, context: int) -> None:
    shape = CacheShape(rows, context)
    capacity = shape.capacity(needed)
    assert capacity >= needed
    assert (
        shape.max_sequences(capacity) == 1
        or shape.max_sequences(capacity) * capacity <= rows * context
    )
    assert shape.capacity(min(needed, context)) == context
    assert needed <= window_of(needed, capacity) <= capacity


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=80),
    st.integers(1, 64),
    st.builds(CacheShape, st.integers(1, 64), st.integers(1, 400)),
)
def test_a_batch_fits_the_cache(rows: list[tuple[int, int]], most: int, shape: CacheShape) -> None:
    count = batch_size(rows, most, shape)
    assert 1 <= count <= min(most, len(rows))
    prompts, answers = zip(*rows[:count], strict=True)
    assert count <= shape.max_sequences(shape.capacity(max(prompts) + max(answers)))
    assert batch_size(rows, most, None) == min(most, len(rows))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_step_reads_nothing_back_from_its_device(kind: str) -> None:
    """A graph cannot be captured of a step that does. Tensors on "meta" have nothing to read."""
    with torch.device("meta"), torch.inference_mode():
        config = ModelConfig(300, 64, 96, 2, 4, 2, model_type=kind, head_dim=32)
        model = CausalLM(config, draw=False)
        memory = KeyValueMemory(config)
        memory.reserve(16, 16 * 80, model.embedding)
        step = model.step(memory.tokens[:8], memory.view(8, 80, 40))
        assert model.logits(step).shape == (8, 300)
        with pytest.raises(RuntimeError):
            step.sum().item()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there a capture succeeds")
def test_without_graphs_it_decodes_eagerly_and_says_so() -> None:
    sampler = on("cpu", CacheShape(64, 80))
    sampler._decoder._captures = True  # as on a GPU, which is not there
    assert_alike(sampled(sampler), sampled(on("cpu", None)))
    assert sampler.faults == {"cuda_graph": 1}


class Tight:
    """Stands for a card whose memory holds no graph of more than 8 rows; such a card is not there.
    What would be captured runs eagerly."""

    def capture(self, compute: Callable[[], torch.Tensor], reads: object) -> Callable[[], object]:
        if len(compute()) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute

    def forget(self) -> None:
        pass


class Full(Tight):
    """Stands for one that holds no graph at all."""

    def capture(self, compute: Callable[[], torch.Tensor], reads: object) -> Callable[[], object]:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_where_memory_runs_out_in_a_capture_fewer_rows_are_sampled_by_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "_Graphs", Tight)
    sampler = on("cpu", CacheShape(64, 80))
    sampler._decoder._captures = True
    assert_alike(sampled(sampler), sampled(on("cpu", None)))
    assert sampler.faults == {"sampler_memory": 3}  # 56 rows are halved to 7
    assert sampler._decoder._captures


def test_where_few_rows_do_not_fit_a_graph_it_decodes_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "_Graphs", Full)
    sampler = on("cpu", CacheShape(64, 80))
    sampler._decoder._captures = True
    assert_alike(sampled(sampler, [request(n=8)]), sampled(on("cpu", None), [request(n=8)]))
    assert sampler.faults == {"cuda_graph": 1}


@pytest.mark.gpu
def test_a_capture_that_fails_leaves_nothing_behind() -> None:
    graphs, tensor = decoding._Graphs(), torch.ones(4, device="cuda:0")

    def reads_back() -> torch.Tensor:
        assert tensor.sum().item() == 4
        return tensor

    with pytest.raises(RuntimeError):
        graphs.capture(reads_back, None)
    torch.cuda.empty_cache()  # where the allocator takes it for under way, this fails
    graph = graphs.capture(lambda: 2 * tensor, None)
    assert graph().tolist() == [2.0] * 4


@pytest.mark.gpu
def test_graphs_give_what_eager_decoding_gives(tmp_path: Path) -> None:
    graphs, eager = on("cuda:0", CacheShape(64, 80)), on("cuda:0", None)
    assert_alike(sampled(graphs), sampled(eager), atol=1e-4)
    assert not graphs.faults
    assert runs(graphs)
    # The same graphs, with new weights in the old ones' places.
    captured = dict(runs(graphs))
    noisy = CausalLM.from_directory(TINY).hf_state()
    for value in noisy.values():
        value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    save_file(noisy, tmp_path / "noisy.safetensors")
    for sampler in (graphs, eager):
        asyncio.run(sampler.load(tmp_path / "noisy.safetensors", 1))
    assert_alike(sampled(graphs), sampled(eager), atol=1e-4)
    assert captured.items() <= runs(graphs).items()


@pytest.mark.gpu
def test_graphs_in_bfloat16_and_after_a_longer_prompt() -> None:
    model = CausalLM.from_directory(TINY, torch.bfloat16).to("cuda:0")
    sampler = TorchSampler(model, CODEC, shape=CacheShape(16, 40), inline=True)
    short = sampled(sampler, [request(room=10)])
    sampled(sampler, [request(LONG * 3, n=2, room=60)])
    assert_alike(sampled(sampler, [request(room=10)]), short, atol=0)
    assert not sampler.faults
