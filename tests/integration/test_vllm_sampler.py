"""The real vLLM on a CPU: what it samples, how it takes weights, and how it dies.

Sampling, syncs, pauses and interruptions are tested with async scheduling off, as vLLM has it on a
CPU, and on, as on a GPU. One engine of each kind serves the whole module, because starting one
takes long; tests that kill it come last.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
import structlog
import torch
from builders import trainer_settings
from integration.engines import (
    ON_CPUS,
    TINY,
    largest_gap,
    made,
    recomputed,
    signed,
    write_random,
)
from overlapping_engine import BARE, use_this_program
from safetensors.torch import save_file

from swarm_node.config import load_settings
from swarm_node.errors import ModelError
from swarm_node.node.loops.openai_requests import MOST_ROWS, PLACES, OpenAIRequests, SampledChoices
from swarm_node.node.loops.sampling.partial_rollouts import PartialRollouts, PendingGroup
from swarm_node.node.start import derive
from swarm_node.node.start.build import make_sampler
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import Model
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.planning.fit import Fit
from swarm_node.policy.sampling.fallback import FallbackSampler
from swarm_node.policy.sampling.sampler import (
    InterruptibleSampler,
    RestingSampler,
    Row,
    Sampler,
    SampleRequest,
)
from swarm_node.policy.sampling.vllm.engine import Deadlines, plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.weights.store import WeightStore
from swarm_node.rollout import Completion, Finish, TaskRef, VersionSpan

pytestmark = [*ON_CPUS]
CODEC = Codec.from_directory(TINY)
LONG = 900
RANK = 4
ENDLESS = 10
SYNC_SECONDS = 30.0
LORA = trainer_settings(learning_rate=0.02, warmup_updates=0, published="adapter", lora_rank=RANK)
_Result = TypeVar("_Result")


@dataclass
class Bench:
    """One sampler with its engine, and the trainer's side of it."""

    runner: asyncio.Runner
    sampler: VllmSampler
    store: WeightStore
    models: dict[int, CausalLM] = field(default_factory=dict)

    def run(self, body: Callable[[VllmSampler], Awaitable[_Result]]) -> _Result:
        async def guarded() -> _Result:
            return await body(self.sampler)

        return self.runner.run(guarded())

    def publish(self, seed: int) -> tuple[Path, int]:
        """The model of `seed` under the next version."""
        version = max(self.models, default=-1) + 1
        model = noisy(seed)
        self.models[version] = model
        canary = measure_canary(model).to_metadata()
        return self.store.publish(version, model.hf_state(), canary), version

    def draw_long(self) -> None:
        """Sample from now on with a random model, whose answers are long."""
        weights = self.publish(ENDLESS)
        self.run(lambda sampler: sampler.load(*weights))


def noisy(seed: int) -> CausalLM:
    """The tiny model with noise of `seed`, 0 for none; from ENDLESS on a random one, which draws
    tokens almost evenly: its answers take 276 tokens in the mean."""
    model = CausalLM.from_directory(TINY)
    generator = torch.Generator().manual_seed(seed)
    if seed >= ENDLESS:
        return CausalLM(model.config, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters() if seed else ():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="in turn"),
        pytest.param(
            True, id="overlapping", marks=pytest.mark.nightly(reason="a second engine of the file")
        ),
    ],
)
def bench(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    torch.set_num_threads(1)
    config = CausalLM.from_directory(TINY).config
    plan = plan_engine(config, placement=ON_CPU, max_rows=64, max_new_tokens=LONG, lora_rank=RANK)
    with asyncio.Runner() as runner:
        # On a CPU there is no memory to give back, but the engine goes through the same states.
        plan = replace(plan, sleep_level=1, async_scheduling=request.param)
        sampler = VllmSampler.from_directory(TINY, plan, deadlines=Deadlines(sync=SYNC_SECONDS))
        if request.param:
            use_this_program(sampler)
        made = Bench(runner, sampler, WeightStore(tmp_path_factory.mktemp("weights")))
        path, version = made.publish(0)
        made.run(lambda sampler: sampler.load(path, version))
        yield made
        engine = sampler.pid
        made.run(lambda sampler: sampler.close())
        assert engine is None or not psutil.pid_exists(engine)


#: For a test of the queue before the scheduler, or of an engine that ends.
in_turn = pytest.mark.parametrize("bench", [False], ids=["in turn"], indirect=True)


def request(
    question: str = "What is 3 + 4?", n: int = 4, seed: int = 7, room: int = 48, heat: float = 1.0
) -> SampleRequest:
    return SampleRequest(CODEC.encode_prompt(question), n, seed, room, heat)


def tokens(group: Sequence[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in group]


def test_log_probs_are_the_trainers_at_any_temperature(bench: Bench) -> None:
    protocol: Sampler = bench.sampler
    assert isinstance(protocol, InterruptibleSampler)
    assert protocol.version == 0
    assert bench.sampler.last_sync.difference < 1e-5
    for heat in (1.0, 0.7):
        asked = request("What is 3 + 4, <eos> or <sep>?", heat=heat, n=8)
        assert asked.prompt_ids.count(CODEC.eos_id) == 0  # what is asked is text
        (group,) = bench.run(lambda sampler, asked=asked: sampler.sample([asked]))
        assert len(group) == 8
        assert largest_gap(bench.models[0], asked, group, heat) < 1e-4
        for one in group:
            assert [(s.version, s.start, s.end) for s in one.spans] == [(0, 0, len(one.token_ids))]
            ended = int(one.token_ids[-1]) in CODEC.eos_ids
            assert one.finish is (Finish.STOP if ended else Finish.LENGTH)
            ids = one.token_ids.tolist()
            assert one.text == CODEC.decode(ids[:-1] if ended else ids)


def test_a_request_gives_the_same_completions_whatever_is_beside_it(bench: Bench) -> None:
    asked = request()
    others = [request(f"Is {n} larger than {n * 3 % 7}?", seed=n) for n in range(12)]
    (alone,) = bench.run(lambda sampler: sampler.sample([asked]))
    crowd = bench.run(lambda sampler: sampler.sample([*others, asked]))
    assert tokens(crowd[-1]) == tokens(alone)
    (other,) = bench.run(lambda sampler: sampler.sample([request(seed=8)]))
    assert tokens(other) != tokens(alone)
    assert len({tuple(row) for row in tokens(alone)}) > 1


@in_turn
def test_the_prompt_of_a_group_is_computed_once(bench: Bench) -> None:
    asked = request("Which of these words comes first in a dictionary? " * 3, n=8)
    before = bench.run(lambda sampler: sampler.stats())
    bench.run(lambda sampler: sampler.sample([asked]))
    after = bench.run(lambda sampler: sampler.stats())
    cached = after["cached_tokens"] - before["cached_tokens"]
    whole_blocks = len(asked.prompt_ids) // 32 * 32
    assert cached >= 7 * (whole_blocks - 32)


@in_turn
def test_impossible_requests_are_refused_and_the_engine_lives(bench: Bench) -> None:
    engine = bench.sampler.pid
    with pytest.raises(ValueError, match="outside"):
        bench.run(lambda sampler: sampler.sample([SampleRequest((CODEC.vocab_size,), 1, 0, 1)]))
    with pytest.raises(ModelError, match="max_new_tokens"):
        bench.run(lambda sampler: sampler.sample([request(room=1024)]))
    with pytest.raises(ModelError, match="temperature"):
        bench.run(lambda sampler: sampler.sample([request(heat=4.0)]))
    assert bench.sampler.pid == engine


def test_new_weights_are_used_at_once_and_nothing_of_the_old_remains(bench: Bench) -> None:
    asked = request("How many legs do 3 dogs have? " * 4, n=4)
    for seed in (1, 0):
        # The same prompt again: keys and values of the old weights must not be found in the cache.
        path, version = bench.publish(seed)
        bench.run(lambda sampler, path=path, version=version: sampler.load(path, version))
        (group,) = bench.run(lambda sampler: sampler.sample([asked]))
        assert bench.sampler.version == version
        assert {span.version for one in group for span in one.spans} == {version}
        assert largest_gap(bench.models[version], asked, group) < 1e-4
        assert largest_gap(bench.models[version - 1], asked, group) > 1e-2
    assert "canary" not in bench.sampler.faults


def test_requests_under_way_go_on_with_the_new_weights_and_say_so(bench: Bench) -> None:
    old_path, old_version = bench.publish(ENDLESS)
    path, version = bench.publish(ENDLESS + 1)
    asked = request(n=32, room=LONG)

    async def body(sampler: VllmSampler) -> tuple[Completion, ...]:
        await sampler.load(old_path, old_version)
        call = asyncio.ensure_future(sampler.sample([asked]))
        await until_sampling(sampler)
        await sampler.load(path, version)
        return (await call)[0]

    group = bench.run(body)
    crossed = [one for one in group if len(one.spans) == 2]
    assert crossed
    for one in crossed:
        old, new = one.spans
        assert (old.version, new.version) == (version - 1, version)
        assert (old.start, old.end, new.end) == (0, new.start, len(one.token_ids))
        for span in one.spans:
            said = recomputed(bench.models[span.version], asked, one)
            part = slice(span.start, span.end)
            assert np.abs(said[part] - one.logprobs[part]).max() < 1e-4


async def until_sampling(sampler: VllmSampler) -> None:
    """Until everything asked of the engine before has some tokens: it starts rows in order. One
    round trip, because on a busy machine the engine is far ahead of whoever waits for it."""
    await sampler.sample([request(n=1, room=4, seed=99)])


def test_a_sync_waits_for_no_answer(bench: Bench) -> None:
    """The engine has 64 places, and four times as many rows are in it: most of them wait."""
    old_path, old_version = bench.publish(ENDLESS)
    path, version = bench.publish(ENDLESS + 6)
    asked = [request(n=64, room=LONG, seed=40 + n) for n in range(8)]

    async def body(sampler: VllmSampler) -> int:
        await sampler.load(old_path, old_version)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(sampler.sample(asked))
            while (await sampler.stats())["unfinished"] < 4 * 64:
                assert not call.done()
            await sampler.load(path, version)
            left = (await sampler.stats())["unfinished"]
            call.cancel()
        return left

    # A canary that is served in its turn leaves less than one engine full.
    assert bench.run(body) > 2 * 64
    assert bench.sampler.version == version
    assert not bench.sampler.faults


def guest(question: str = "What is 3 + 4?", **more: Any) -> SampleRequest:
    return replace(request(question, n=2, seed=13, room=40), guest=True, **more)


async def served(sampler: VllmSampler, *requests: SampleRequest) -> list[SampledChoices]:
    """Answers of the queue of guests."""
    guests = OpenAIRequests(sampler)
    asked = [guests.ask(each, lambda: False) for each in requests]
    answers = [each for each in asked if each is not None]
    while not all(each.over for each in answers):
        await guests.step()
    assert not any(each.error for each in answers)
    return answers


@in_turn
def test_guests_wait_until_no_own_row_waits(bench: Bench) -> None:
    path, version = bench.publish(ENDLESS)
    asked = [request(n=64, room=LONG, seed=60 + n) for n in range(3)]

    async def body(sampler: VllmSampler) -> int:
        await sampler.load(path, version)
        async with asyncio.TaskGroup() as group:
            call = group.create_task(sampler.sample(asked))
            while (await sampler.stats())["unfinished"] < 2 * 64:
                assert not call.done()
            await served(sampler, guest())
            left = (await sampler.stats())["unfinished"]
            call.cancel()
        return left

    assert bench.run(body) <= 64


@in_turn
def test_own_rows_begin_while_guests_are_sampled(bench: Bench) -> None:
    """Guests take 16 places at most, and give each back after 16 tokens."""
    many = [guest(f"{n}?") for n in range(MOST_ROWS // 2)]

    async def body(sampler: VllmSampler) -> int:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(served(sampler, *many))
            most = 0
            while not call.done() and most < PLACES:
                most = max(most, (await sampler.stats())["unfinished"])
            await sampler.sample([request(n=48, room=4)])
            assert not call.done()
            assert (await sampler.stats())["unfinished"] <= PLACES
        return most

    assert bench.run(body) == PLACES


def own_logprobs(model: CausalLM, asked: SampleRequest, ids: Sequence[int]) -> torch.Tensor:
    """What the policy says of all tokens [T, V] at the places of an answer's."""
    with torch.no_grad():
        logits = model(torch.tensor([[*asked.prompt_ids, *ids]]))
    return logits[0, len(asked.prompt_ids) - 1 : -1].log_softmax(-1)


def test_guests_hear_the_policys_log_probs_and_the_likeliest_tokens(bench: Bench) -> None:
    path, version = bench.publish(0)

    async def body(sampler: VllmSampler) -> list[SampledChoices]:
        await sampler.load(path, version)
        heats = (1.0, 0.0)
        return await served(sampler, *(guest(temperature=heat, top_logprobs=3) for heat in heats))

    warm, cold = bench.run(body)
    for answers in (warm, cold):
        for row in answers.rows:
            own = own_logprobs(bench.models[version], answers.request, row.ids)
            assert len(row.ranked_tokens) == len(row.ids) > 0
            for token, ranked, said in zip(row.ids, row.ranked_tokens, own, strict=True):
                assert abs(ranked.logprob - float(said[token])) < 1e-4
                assert np.allclose(
                    [it for _, it in ranked.likeliest], said.topk(3).values, atol=1e-4
                )
                for other, logprob in ranked.likeliest:
                    assert abs(logprob - float(said[other])) < 1e-4
    assert all(
        token == ranked.likeliest[0][0]
        for row in cold.rows
        for token, ranked in zip(row.ids, row.ranked_tokens, strict=True)
    )
    assert cold.rows[0].ids == cold.rows[1].ids


def test_rankings_are_whole_while_new_weights_come(bench: Bench) -> None:
    """vLLM's sampler for CPUs ranks for nobody in a step that has a row of the canary: a row is cut
    there and goes on."""
    first, second = bench.publish(ENDLESS), bench.publish(ENDLESS + 1)

    async def body(sampler: VllmSampler) -> list[SampledChoices]:
        await sampler.load(*first)
        call = asyncio.ensure_future(
            served(sampler, *(guest(f"{n}?", temperature=1.0, top_logprobs=2) for n in range(16)))
        )
        for weights in (second, first, second, first):
            await sampler.load(*weights)
        assert not call.done()
        return await call

    for answers in bench.run(body):
        for row in answers.rows:
            assert len(row.ranked_tokens) == len(row.ids) > 0
            assert all(len(ranked.likeliest) == 2 for ranked in row.ranked_tokens)
            assert all(
                ranked.likeliest[0][1] >= ranked.logprob - 1e-6 for ranked in row.ranked_tokens
            )


@in_turn
def test_a_nucleus_is_drawn_from_and_what_cannot_be_said_is_refused(bench: Bench) -> None:
    path, version = bench.publish(0)
    asked = guest("How many legs has a dog?", temperature=1.3, top_p=0.6)

    async def body(sampler: VllmSampler) -> tuple[Completion, ...]:
        await sampler.load(path, version)
        (group,) = await sampler.sample([replace(asked, n=8)])
        for wrong in (
            replace(asked, top_logprobs=0),
            replace(asked, top_logprobs=0, top_p=1.0),
            replace(asked, top_logprobs=0, temperature=1.0),
        ):
            assert sampler.refusal(wrong)
            with pytest.raises(ModelError, match="temperature of 0"):
                await sampler.sample([wrong])
        return group

    for one in bench.run(body):
        own = own_logprobs(bench.models[version], asked, one.token_ids.tolist())
        scaled = (own / 1.3).log_softmax(-1)
        for token, logprob, row in zip(one.token_ids, one.logprobs, scaled, strict=True):
            order = row.argsort(descending=True)
            shares = row.exp()[order].cumsum(-1)
            kept = order[: int((shares < 0.6).sum()) + 1]
            assert int(token) in kept.tolist()
            expected = float(row[int(token)] - row[kept].logsumexp(-1))
            assert abs(float(logprob) - expected) < 1e-3


def test_what_is_under_way_goes_on_after_a_rest(bench: Bench) -> None:
    protocol: Sampler = bench.sampler
    assert isinstance(protocol, RestingSampler)
    bench.draw_long()
    before = bench.sampler.version
    path, version = bench.publish(ENDLESS + 5)
    asked = request(n=32, room=LONG, seed=31)

    async def body(sampler: VllmSampler) -> tuple[Completion, ...]:
        call = asyncio.ensure_future(sampler.sample([asked]))
        await until_sampling(sampler)
        assert await sampler.rest()
        late = asyncio.ensure_future(sampler.sample([request(n=1)]))
        done, _ = await asyncio.wait([call, late], timeout=1.0)
        assert not done
        await sampler.load(path, version)
        assert (await late)[0][0].spans[0].version == version
        return (await call)[0]

    group = bench.run(body)
    assert any([span.version for span in one.spans] == [before, version] for one in group)
    assert not bench.sampler.faults


def test_an_interrupted_group_goes_on_where_it_was(bench: Bench) -> None:
    bench.draw_long()
    asked = request(n=32, room=LONG, seed=21)
    cut = asyncio.Event()
    path, version = bench.publish(ENDLESS + 2)

    async def body(sampler: VllmSampler) -> tuple[list, list]:
        call = asyncio.ensure_future(sampler.complete(asked, (), cut))
        await until_sampling(sampler)
        cut.set()
        begun = await call
        await sampler.load(path, version)
        return begun, await sampler.complete(asked, begun)

    begun, rows = bench.run(body)
    assert any(row.finish is None and len(row.token_ids) for row in begun)
    for before, after in zip(begun, rows, strict=True):
        kept = len(before.token_ids)
        assert after.finish is not None
        assert after.token_ids[:kept].tolist() == before.token_ids.tolist()
        assert after.logprobs[:kept].tolist() == before.logprobs.tolist()
        one = bench.sampler.completion(after)
        assert one.spans[0].start == 0
        assert one.spans[-1].end == len(one.token_ids) <= LONG
        for span in one.spans:
            said = recomputed(bench.models[span.version], asked, one)
            part = slice(span.start, span.end)
            assert np.abs(said[part] - one.logprobs[part]).max() < 1e-4
    assert any(len(row.spans) == 2 for row in rows)


def test_rows_whose_prefixes_do_not_fit_one_step_go_on(bench: Bench) -> None:
    """60 rows of 600 tokens each are computed anew; vLLM takes some thousand tokens a step."""
    ids = np.random.default_rng(0).integers(3, 200, (60, 600)).astype(np.uint32)
    spans = (VersionSpan(bench.sampler.version, 0, 600),)
    begun = [Row(row, np.zeros(600, np.float32), spans, None) for row in ids]
    asked = request(n=60, room=604, seed=5)
    engine = bench.sampler.pid
    rows = bench.run(lambda sampler: sampler.complete(asked, begun))
    assert bench.sampler.pid == engine
    for before, after in zip(begun, rows, strict=True):
        assert after.token_ids[:600].tolist() == before.token_ids.tolist()
        assert 600 < len(after.token_ids) <= 604


def test_a_cancelled_call_frees_the_engine(bench: Bench) -> None:
    bench.draw_long()

    async def body(sampler: VllmSampler) -> None:
        call = asyncio.ensure_future(sampler.sample([request(n=60, room=LONG)]))
        await until_sampling(sampler)
        assert (await sampler.stats())["unfinished"] > 0
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await sampler.stats())["unfinished"] == 0

    bench.run(body)


def test_a_call_ends_with_its_target_and_the_rest_goes_on_in_the_next(bench: Bench) -> None:
    """Twice as many groups as awaited; the long ones are cut off and finished later."""
    bench.draw_long()
    lengths = {"short": 6, "long": 300}
    made: list[PendingGroup] = []
    partial_rollouts = PartialRollouts(bench.sampler, over_provision=2.0, max_staleness=1000)

    def job(family: str, seed: int) -> PendingGroup:
        return PendingGroup(
            TaskRef("env", "1", family, seed), "", request(seed=seed, room=lengths[family])
        )

    async def fresh(count: int) -> list[PendingGroup]:
        return [job("short" if n % 2 else "long", 100 + n) for n in range(count)]

    async def none(count: int) -> list[PendingGroup]:
        return []

    async def deliver(job: PendingGroup) -> None:
        made.append(job)

    async def body(_: VllmSampler) -> list[list[int]]:
        await partial_rollouts.gather(2, fresh, deliver)
        assert [job.ref.family for job in made] == ["short", "short"]
        assert len(partial_rollouts.interrupted_groups) == 2
        kept = [job.rows[0].token_ids.tolist() for job in partial_rollouts.interrupted_groups]
        await partial_rollouts.gather(2, none, deliver)
        return kept

    kept = bench.run(body)
    assert not partial_rollouts.interrupted_groups
    assert [job.ref.family for job in made] == ["short", "short", "long", "long"]
    assert any(kept)
    for before, after in zip(kept, sorted(made[2:], key=lambda job: job.ref.seed), strict=True):
        (row, *_) = after.rows
        assert row.token_ids[: len(before)].tolist() == before
        assert len(row.token_ids) <= 300
        done = bench.sampler.completion(row)
        assert largest_gap(bench.models[bench.sampler.version], after.request, [done]) < 1e-4


def test_the_trainers_adapters_are_swapped_in_place(bench: Bench, tmp_path: Path) -> None:
    path, version = bench.publish(0)
    base = bench.models[version]
    bench.run(lambda sampler: sampler.load(path, version))
    asked = request(n=4)
    host = TrainerHost(TINY, tmp_path / "c", made(tmp_path / "w"), LORA, at_least=version)
    (group,) = bench.run(lambda sampler: sampler.sample([asked]))
    for _ in range(2):
        result = host.update(signed(asked, group))
        bench.run(lambda sampler, it=result: sampler.load(it.weights, it.stats.version))
        (group,) = bench.run(lambda sampler: sampler.sample([asked]))
        assert {span.version for one in group for span in one.spans} == {host.core.version}
        assert largest_gap(host.core.model, asked, group) < 1e-4
        assert largest_gap(base, asked, group) > 1e-3
    assert host.core.version == version + 2
    bench.models[version + 2] = base  # so that versions go on from there
    path, version = bench.publish(0)
    bench.run(lambda sampler: sampler.load(path, version))
    (group,) = bench.run(lambda sampler: sampler.sample([asked]))
    assert largest_gap(base, asked, group) < 1e-4


@in_turn
def test_weights_without_a_canary_are_refused_and_the_old_stay(
    bench: Bench, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.safetensors"
    save_file(noisy(1).hf_state(), bare)
    for path in (bare, tmp_path / "absent.safetensors"):
        with pytest.raises(ModelError, match=r"canary|read"):
            bench.run(lambda sampler, path=path: sampler.load(path, 99))
    assert bench.sampler.version == max(bench.models)
    assert len(bench.run(lambda sampler: sampler.sample([request()]))[0]) == 4


def planted(bench: Bench, seed: int) -> tuple[Path, int, Path]:
    """A published file, its version, and the file that should be there: the tensors in the first
    are not those that its canary was measured on."""
    right = noisy(seed)
    version = max(bench.models) + 1
    bench.models[version] = right
    canary = measure_canary(right).to_metadata()
    good = bench.store.publish(version, right.hf_state(), canary)
    kept = good.rename(good.with_suffix(".right"))
    return bench.store.publish(version, noisy(seed + 1).hf_state(), canary), version, kept


async def load_and_replace(sampler: VllmSampler, file: tuple[Path, int, Path], faults: int) -> None:
    """Load a planted file, and put the right one there after so many wrong canaries."""
    path, version, right = file
    load = asyncio.ensure_future(sampler.load(path, version))
    while sampler.faults.get("canary", 0) < faults:
        assert not load.done()
        await asyncio.sleep(0)
    right.replace(path)
    await load


@in_turn
def test_a_wrong_canary_has_the_weights_loaded_again(bench: Bench) -> None:
    file = planted(bench, ENDLESS + 3)
    engine, before = bench.sampler.pid, bench.sampler.faults.get("engine", 0)
    bench.run(lambda sampler: load_and_replace(sampler, file, 1))
    assert bench.sampler.pid == engine
    assert (bench.sampler.faults["canary"], bench.sampler.faults.get("engine", 0)) == (1, before)
    (group,) = bench.run(lambda sampler: sampler.sample([request()]))
    assert largest_gap(bench.models[file[1]], request(), group) < 1e-4


@in_turn
def test_two_wrong_canaries_in_a_row_have_the_engine_replaced(bench: Bench) -> None:
    file = planted(bench, ENDLESS + 7)
    engine = bench.sampler.pid
    told, before = (bench.sampler.faults.get(kind, 0) for kind in ("canary", "engine"))
    bench.run(lambda sampler: load_and_replace(sampler, file, told + 2))
    assert bench.sampler.faults == {"canary": told + 2, "engine": 1 + before}
    assert bench.sampler.pid not in (None, engine)
    (group,) = bench.run(lambda sampler: sampler.sample([request()]))
    assert largest_gap(bench.models[file[1]], request(), group) < 1e-4


@in_turn
def test_a_killed_engine_core_costs_a_restart_and_no_request(bench: Bench) -> None:
    asked = request(n=8, room=LONG)
    core = bench.run(lambda sampler: sampler.stats())["core"]
    faults = bench.sampler.faults.get("engine", 0)

    async def body(sampler: VllmSampler) -> tuple[Completion, ...]:
        call = asyncio.ensure_future(sampler.sample([asked, request(seed=3)]))
        await asyncio.sleep(0.05)
        os.kill(core, signal.SIGKILL)
        return (await call)[0]

    group = bench.run(body)
    assert bench.sampler.faults["engine"] == faults + 1
    assert not psutil.pid_exists(core)
    assert bench.sampler.version == max(bench.models)
    assert largest_gap(bench.models[bench.sampler.version], asked, group) < 1e-4
    (again,) = bench.run(lambda sampler: sampler.sample([asked]))
    assert tokens(again) == tokens(group)


@in_turn
@pytest.mark.nightly(reason="waits for half a minute and starts an engine anew")
def test_a_sync_that_hangs_ends_the_engine_and_nothing_stays_paused(bench: Bench) -> None:
    core = bench.run(lambda sampler: sampler.stats())["core"]
    faults = bench.sampler.faults.get("engine", 0)
    path, version = bench.publish(1)

    async def body(sampler: VllmSampler) -> tuple[Completion, ...]:
        os.kill(core, signal.SIGSTOP)
        started = asyncio.get_running_loop().time()
        load = asyncio.ensure_future(sampler.load(path, version))
        call = asyncio.ensure_future(sampler.sample([request(seed=4)]))
        await load
        assert asyncio.get_running_loop().time() - started >= SYNC_SECONDS
        return (await call)[0]

    group = bench.run(body)
    assert bench.sampler.faults["engine"] == faults + 1
    assert not psutil.pid_exists(core)
    assert {span.version for one in group for span in one.spans} == {version}
    assert largest_gap(bench.models[version], request(seed=4), group) < 1e-4


@pytest.mark.nightly(reason="starts two engines")
def test_an_engine_that_cannot_overlap_starts_in_turn_and_says_so(tmp_path: Path) -> None:
    """The core of the first engine dies in its start, as it finds no events."""
    model, store = noisy(0), WeightStore(tmp_path)
    plan = plan_engine(model.config, placement=ON_CPU, max_rows=8, max_new_tokens=24)
    sampler = VllmSampler.from_directory(TINY, replace(plan, async_scheduling=True))
    use_this_program(sampler, **{BARE: "1"})
    path = store.publish(0, model.hf_state(), measure_canary(model).to_metadata())

    async def body() -> None:
        node = FallbackSampler(sampler, lambda: pytest.fail("the engine is given up"))
        assert node.description == "vllm"
        try:
            await node.load(path, 0)
            assert node.description.startswith("vllm (async")
            (group,) = await node.sample([request(room=8)])
            assert largest_gap(model, request(room=8), group) < 1e-4
        finally:
            await node.close()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(body())
    assert sampler.faults == {"engine": 1}
    said = [entry for entry in logs if entry["event"] == "vLLM runs without async scheduling"]
    assert len(said) == 1
    assert said[0]["reason"] in sampler.description


@pytest.mark.parametrize(
    "base_name",
    [
        "whole",
        pytest.param(
            "nf4",
            marks=pytest.mark.skipif(
                find_spec("vllm_bnb_plugin") is None,
                reason="needs vllm-bnb-plugin and bitsandbytes",
            ),
        ),
    ],
)
@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.nightly(reason="an engine of its own")
def test_adapters_on_an_untied_model_as_a_node_composes_it(
    tmp_path: Path, base_name: str, family: str
) -> None:
    """The base comes from the model's directory, only adapters from the trainer."""
    four_bit = base_name == "nf4"
    where, near = (Placement("cpu", "bfloat16"), 0.05) if four_bit else (ON_CPU, 1e-4)
    config = ModelConfig(CODEC.vocab_size, 64, 96, 2, 2, 1, model_type=family, head_dim=32)
    place = tmp_path / "model"
    base = write_random(place, config)
    flags = {"sampling.engine": "vllm", "training.lora_rank": 3, "training.learning_rate": 0.02}
    if four_bit:
        flags |= {"training.base": "nf4", "training.dtype": "bfloat16"}
    settings = load_settings(flags, environ={})
    found = Fit(where, vllm=True, training=TrainingMethod(lora_rank=3, nf4=four_bit))
    chosen = derive.trainer_settings(settings, found)
    assert chosen.published == "adapter"
    host = TrainerHost(place, tmp_path / "c", made(tmp_path / "w"), chosen)
    sampler = make_sampler(settings, Model.read("made", place), found)
    assert isinstance(sampler, FallbackSampler)
    asked = request(n=4)

    async def body() -> None:
        try:
            with pytest.raises(ModelError, match="load them"):
                await sampler.sample([asked])
            await sampler.load(host.weights_path, 0)
            (group,) = await sampler.sample([asked])
            assert largest_gap(host.core.model, asked, group) < near
            assert (largest_gap(base, asked, group) < near) != four_bit
            result = host.update(signed(asked, group))
            await sampler.load(result.weights, result.stats.version)
            (group,) = await sampler.sample([asked])
            assert {span.version for one in group for span in one.spans} == {1}
            assert largest_gap(host.core.model, asked, group) < near
        finally:
            await sampler.close()

    asyncio.run(body())
    assert not sampler.faults
