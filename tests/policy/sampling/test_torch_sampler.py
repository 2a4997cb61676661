"""The torch sampler draws from the policy, says so truthfully, and is reproducible."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import printed_by
from safetensors.torch import save_file

from swarm_node.errors import ModelError
from swarm_node.policy.models.decoder.cache import KeyValueCache
from swarm_node.policy.models.decoder.causal_lm import CausalLM, ModelConfig
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import Placement
from swarm_node.policy.sampling.generating import draw, nucleus
from swarm_node.policy.sampling.sampler import (
    MAX_RANKED,
    CountingSampler,
    Progress,
    SampleRequest,
)
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import Completion, Finish, VersionSpan

torch.set_num_threads(1)

TINY = resolve("tiny")
CODEC = Codec.from_directory(TINY)
QUESTIONS = (
    "Calculate 3 + 4.",
    "Spell this word backward (example: sun -> nus): cat",
    "Simplify the fraction 4/6 to its lowest terms. Give only the simplified fraction as your "
    "final answer.",
)


def request(
    question: str = QUESTIONS[0], n: int = 4, seed: int = 0, **more: object
) -> SampleRequest:
    settings = {"max_new_tokens": 12, "temperature": 1.0, **more}
    return SampleRequest(CODEC.encode_prompt(question), n, seed, **settings)  # type: ignore[arg-type]


def with_sampler(use: Callable[[TorchSampler], Awaitable[Any]], max_rows: int = 256) -> Any:
    async def run() -> Any:
        sampler = TorchSampler.from_directory(TINY, threads=1, max_rows=max_rows)
        try:
            return await use(sampler)
        finally:
            await sampler.close()

    return asyncio.run(run())


def sample(requests: Sequence[SampleRequest], max_rows: int = 256) -> list[tuple[Completion, ...]]:
    groups: list[tuple[Completion, ...]] = with_sampler(
        lambda sampler: sampler.sample(requests), max_rows
    )
    return groups


def token_lists(group: tuple[Completion, ...]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in group]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_those_of_a_full_forward_pass(temperature: float) -> None:
    requests = [
        request(question, seed=seed, temperature=temperature, max_new_tokens=9)
        for seed, question in enumerate(QUESTIONS)
    ]
    model = CausalLM.from_directory(TINY)
    for asked, group in zip(requests, sample(requests), strict=True):
        assert len(group) == asked.n
        for completion in group:
            prompt, answer = list(asked.prompt_ids), completion.token_ids.tolist()
            with torch.no_grad():
                logits = model(torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1]
            expected = (logits / temperature).log_softmax(-1)[range(len(answer)), answer]
            np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=1e-4)


def test_completions_end_at_the_end_token_or_at_the_budget() -> None:
    group = sample([request(QUESTIONS[1], n=64, max_new_tokens=4)])[0]
    assert {completion.finish for completion in group} == {Finish.STOP, Finish.LENGTH}
    for completion in group:
        ids = completion.token_ids.tolist()
        ends = [token in CODEC.eos_ids for token in ids]
        assert not any(ends[:-1])
        assert completion.token_ids.dtype == np.uint32
        assert completion.logprobs.dtype == np.float32
        if completion.finish is Finish.STOP:
            assert ends[-1]
            assert completion.text == CODEC.decode(ids[:-1])
        else:
            assert not ends[-1]
            assert len(ids) == 4
            assert completion.text == CODEC.decode(ids)


def answered_logits(asked: SampleRequest, answer: Sequence[int]) -> torch.Tensor:
    """The model's logits [T, V] of the tokens of an answer, in one forward pass."""
    ids = torch.tensor([[*asked.prompt_ids, *answer]])
    with torch.no_grad():
        return CausalLM.from_directory(TINY)(ids)[0, len(asked.prompt_ids) - 1 : -1]


@pytest.mark.parametrize(("heat", "top_p"), [(1.0, 1.0), (1.6, 0.8), (0.0, 1.0)])
def test_rankings_are_the_policys_own_whatever_is_drawn(heat: float, top_p: float) -> None:
    asked = [
        request(question, seed=seed, temperature=heat, top_p=top_p, top_logprobs=ranked)
        for seed, (question, ranked) in enumerate(zip(QUESTIONS, (5, 0, None), strict=True))
    ]
    for one, group in zip(asked, sample(asked), strict=True):
        for completion in group:
            if one.top_logprobs is None:
                assert completion.ranking is None
                continue
            ranking, answer = completion.ranking, completion.token_ids.tolist()
            own = answered_logits(one, answer).log_softmax(-1)
            places = range(len(answer))
            assert np.allclose(ranking.sampled_logprobs, own[places, answer], atol=1e-5)
            assert ranking.ids.shape == ranking.logprobs.shape == (len(answer), one.top_logprobs)
            said = own.gather(1, torch.from_numpy(ranking.ids.astype(np.int64)))
            assert np.allclose(ranking.logprobs, said, atol=1e-5)
            assert np.allclose(said, own.topk(one.top_logprobs).values, atol=1e-5)


def test_the_coldest_answer_has_the_likeliest_tokens() -> None:
    asked = request(n=2, temperature=0.0)
    for completion in sample([asked])[0]:
        answer = completion.token_ids.tolist()
        assert answer == answered_logits(asked, answer).argmax(-1).tolist()
        assert np.allclose(completion.logprobs, 0.0)


def test_a_nucleus_has_the_fewest_likeliest_tokens_with_its_probability() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.25, 0.15]]).log().expand(4, 4)
    left = nucleus(logits, torch.tensor([[0.4], [0.5001], [0.9], [1.0]])).isfinite()
    assert left.tolist() == [
        [False, True, False, False],
        [False, True, True, False],
        [False, True, True, True],
        [True, True, True, True],
    ]
    # Where rounding makes the sum exceed 1, a row that wants every token keeps them.
    flat = torch.zeros(1, 100_003)
    assert nucleus(flat, torch.tensor([[1.0]])).isfinite().all()


def test_drawn_tokens_and_their_log_probs_are_those_of_the_nucleus() -> None:
    asked = request(n=2000, seed=5, max_new_tokens=2, temperature=1.5, top_p=0.7)
    (group,) = sample([asked])
    first = answered_logits(asked, [0])[0] / 1.5
    order = first.argsort(descending=True)
    shares = first.softmax(-1)[order].cumsum(-1)
    kept = order[: int((shares < 0.7).sum()) + 1].tolist()
    assert 1 < len(kept) < 100
    drawn = np.array([completion.token_ids[0] for completion in group])
    assert set(drawn.tolist()) <= set(kept)
    expected = first[kept].log_softmax(-1)
    for token, logprob in zip(kept, expected.tolist(), strict=True):
        mine = drawn == token
        said = [c.logprobs[0] for c, is_mine in zip(group, mine, strict=True) if is_mine]
        assert np.allclose(said, logprob, atol=1e-5)
        share = np.exp(logprob)
        assert abs(mine.mean() - share) < 5 * (share * (1 - share) / len(drawn)) ** 0.5


def test_draw_inverts_the_cumulative_distribution() -> None:
    probabilities = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    uniforms = torch.tensor([0.0, 0.1, 0.2499, 0.2501, 0.9, 1 - 2**-53], dtype=torch.float64)
    tokens = draw(probabilities.log().expand(6, 5), uniforms)
    assert tokens.tolist() == [1, 1, 1, 3, 3, 3]


def test_draw_reaches_rare_tokens_of_a_large_vocabulary() -> None:
    # float32 sums would lose the last token's share: it is less than half a step below 1.
    logprobs = torch.full((1, 200_000), -float("inf"))
    logprobs[0, 0], logprobs[0, -1] = 0.0, np.log(2e-8)
    tokens = draw(logprobs, torch.tensor([1 - 1e-9], dtype=torch.float64))
    assert tokens.tolist() == [199_999]


def test_a_request_gives_the_same_completions_in_any_company() -> None:
    asked = [request(question, seed=seed) for seed, question in enumerate(QUESTIONS)]
    alone = [token_lists(sample([one])[0]) for one in asked]
    assert list(map(token_lists, sample(asked))) == alone
    assert list(map(token_lists, sample(asked[::-1]))) == alone[::-1]
    assert list(map(token_lists, sample(asked, max_rows=5))) == alone
    mixed = [asked[0], request(n=8, seed=99, max_new_tokens=3), asked[2]]
    together = list(map(token_lists, sample(mixed)))
    assert (together[0], together[2]) == (alone[0], alone[2])


def test_requests_of_one_prompt_differ_by_seed_and_rows_differ() -> None:
    first, again, other = sample([request(n=16, seed=s, max_new_tokens=9) for s in (5, 5, 6)])
    assert token_lists(first) == token_lists(again) != token_lists(other)
    assert len({tuple(ids) for ids in token_lists(first)}) > 1


def test_weights_are_swapped_between_calls(tmp_path: Path) -> None:
    model = CausalLM.from_directory(TINY)
    certain = model.hf_state()
    # A final norm of zero makes every logit equal: the policy becomes uniform.
    certain["model.norm.weight"].zero_()
    save_file(certain, tmp_path / "uniform.safetensors")

    async def use(sampler: TorchSampler) -> None:
        assert sampler.version == 0
        async with asyncio.TaskGroup() as tasks:
            before = tasks.create_task(sampler.sample([request(n=2)]))
            await asyncio.sleep(0)
            tasks.create_task(sampler.load(tmp_path / "uniform.safetensors", 7))
        loaded = await sampler.sample([request(n=2)])
        assert sampler.version == 7
        for groups, version in ((before.result(), 0), (loaded, 7)):
            for completion in groups[0]:
                assert completion.spans == (VersionSpan(version, 0, len(completion.token_ids)),)
        uniform = np.float32(-np.log(CODEC.vocab_size))
        assert all(np.allclose(c.logprobs, uniform, atol=1e-5) for c in loaded[0])
        assert not any(np.allclose(c.logprobs, uniform, atol=1e-2) for c in before.result()[0])

    with_sampler(use)


def test_weights_that_do_not_fit_leave_the_old_ones_in_use(tmp_path: Path) -> None:
    save_file({"model.norm.weight": torch.zeros(64)}, tmp_path / "part.safetensors")

    async def use(sampler: TorchSampler) -> None:
        before = await sampler.sample([request()])
        for name in ("part.safetensors", "absent.safetensors"):
            with pytest.raises(ModelError):
                await sampler.load(tmp_path / name, 9)
        assert sampler.version == 0
        assert token_lists((await sampler.sample([request()]))[0]) == token_lists(before[0])

    with_sampler(use)


class Gate(CausalLM):
    """A model whose prefill waits until the test lets it go on."""

    entered: threading.Event
    leave: threading.Event

    def prefill(
        self, ids: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor, cache: KeyValueCache
    ) -> torch.Tensor:
        self.entered.set()
        assert self.leave.wait(60)
        return super().prefill(ids, mask, rows, cache)


def gated() -> Gate:
    model = Gate.from_directory(TINY)
    model.entered, model.leave = threading.Event(), threading.Event()
    return model


async def test_sampling_does_not_block_the_event_loop() -> None:
    model = gated()
    sampler = TorchSampler(model, CODEC)
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(sampler.sample([request()]))
        # The loop serves this waiting while the call is inside the model.
        await asyncio.to_thread(model.entered.wait, 60)
        assert not call.done()
        model.leave.set()
    assert len(call.result()[0]) == 4
    await sampler.close()


async def test_a_cancelled_call_leaves_the_sampler_usable() -> None:
    model = gated()
    sampler = TorchSampler(model, CODEC)
    call = asyncio.ensure_future(sampler.sample([request(n=64, max_new_tokens=900)]))
    await asyncio.to_thread(model.entered.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    model.leave.set()
    assert len((await sampler.sample([request()]))[0]) == 4
    await sampler.close()


@pytest.mark.parametrize("max_rows", [3, 256])
def test_it_counts_every_token_and_answer_of_the_node_and_none_of_guests(max_rows: int) -> None:
    async def use(sampler: TorchSampler) -> None:
        assert isinstance(sampler, CountingSampler)
        own = await sampler.sample([request(question, n=5) for question in QUESTIONS])
        counted = Progress(sum(len(ids) for group in own for ids in token_lists(group)), 15)
        assert sampler.progress == counted
        await sampler.sample([request(guest=True)])
        assert sampler.progress == counted

    with_sampler(use, max_rows)


async def test_its_counts_grow_while_it_samples() -> None:
    sampler = TorchSampler.from_directory(TINY, threads=1)
    call = asyncio.create_task(sampler.sample([request(n=64, max_new_tokens=200)]))
    seen = set()
    while not call.done():
        seen.add(sampler.progress.tokens)
        await asyncio.sleep(0.001)
    assert seen > {0}, "a busy machine may see few of the counts"
    assert sampler.progress.answers == 64
    await sampler.close()


def test_impossible_requests_are_refused() -> None:
    async def use(sampler: TorchSampler) -> None:
        for wrong in (
            request(n=0),
            request(seed=-1),
            request(max_new_tokens=0),
            request(temperature=-0.1),
            request(temperature=float("nan")),
            request(top_p=0.0),
            request(top_p=float("nan")),
            request(top_logprobs=MAX_RANKED + 1),
            SampleRequest((), 1, 0, 1),
            SampleRequest((CODEC.vocab_size,), 1, 0, 1),
        ):
            with pytest.raises(ValueError, match=r"must|needs|outside|most"):
                await sampler.sample([wrong])
        with pytest.raises(ModelError, match="max_new_tokens"):
            await sampler.sample([request(max_new_tokens=1024)])
        assert await sampler.sample([]) == []

    with_sampler(use)


@pytest.mark.gpu
def test_sampling_on_a_gpu_agrees_with_the_cpu() -> None:
    async def run() -> list[tuple[Completion, ...]]:
        sampler = TorchSampler.from_directory(TINY, Placement("cuda:0", "float32"))
        groups = await sampler.sample([request(question) for question in QUESTIONS])
        await sampler.close()
        return groups

    on_cpu = sample([request(question) for question in QUESTIONS])
    for ours, theirs in zip(asyncio.run(run()), on_cpu, strict=True):
        assert token_lists(ours) == token_lists(theirs)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-3)


def test_a_model_of_padded_vocabulary_decodes_every_id() -> None:
    config = ModelConfig(CODEC.vocab_size + 20, 16, 24, 1, 2, 1, tie_word_embeddings=True)
    model = CausalLM(config, generator=torch.Generator().manual_seed(0))
    codec = Codec(CODEC._tokenizer, config.vocab_size, [CODEC.eos_id])

    async def run() -> tuple[Completion, ...]:
        sampler = TorchSampler(model, codec)
        groups = await sampler.sample([request(n=64)])
        await sampler.close()
        return groups[0]

    group = asyncio.run(run())
    assert any((completion.token_ids >= CODEC.vocab_size).any() for completion in group)


def test_a_model_that_memory_does_not_hold_is_refused(tmp_path: Path) -> None:
    config = ModelConfig(1 << 35, 1 << 20, 24, 1, 2, 1, tie_word_embeddings=True)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    with pytest.raises(ModelError, match="smaller model"):
        TorchSampler.from_directory(tmp_path, codec=CODEC)


#: Samples under a limit of the address space, `extra` bytes above what the process has by then.
LIMITED = """
import asyncio, json, resource, sys
from swarm_node.errors import ModelError
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.decoder.causal_lm import CausalLM, ModelConfig
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler

codec = Codec.from_directory(resolve("tiny"))
model = CausalLM.from_directory(resolve("tiny"))
if sys.argv[2] == "large":
    model = CausalLM(ModelConfig(codec.vocab_size, 64, 96, 64, 16, 16, head_dim=64))
sampler = TorchSampler(model, codec, inline=True)

def sample(n, room):
    request = SampleRequest(codec.encode_prompt("Calculate 3 + 4."), n, 7, room)
    (group,) = asyncio.run(sampler.sample([request]))
    return [completion.token_ids.tolist() for completion in group]

sample(4, 4)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    print(json.dumps([sample(128, 900), dict(sampler.faults)]))
except ModelError as error:
    print(json.dumps(str(error)))
"""


def limited(extra: int, model: str = "tiny") -> tuple[Any, str]:
    """What the program printed, and its log. 128 rows of 900 tokens take 90 MB of keys and values
    in the tiny model, and one takes 480 MB in the large one."""
    *log, last = printed_by(LIMITED, extra, model).splitlines()
    return json.loads(last), "\n".join(log)


@pytest.mark.slow(reason="starts a process that imports torch")
@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's here")
def test_out_of_memory_it_halves_its_rows_and_gives_the_same_completions() -> None:
    (scarce, faults), log = limited(50 << 20)
    assert scarce == token_lists(sample([request(n=128, seed=7, max_new_tokens=900)])[0])
    assert faults["sampler_memory"] >= 1
    assert log.count("out of memory") == faults["sampler_memory"]


@pytest.mark.slow(reason="starts a process that imports torch")
@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's here")
def test_where_not_even_one_row_fits_the_error_says_what_to_lower() -> None:
    error, _ = limited(100 << 20, "large")
    assert "sampling.max_new_tokens" in error
