"""Answers for the owner's programs, with the real sampler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch
from trained_homes import TINY
from virtual import virtual_time

from swarm_node.errors import ModelError
from swarm_node.node.loops.openai_requests import (
    MOST_ROWS,
    PLACES,
    SLICE,
    OpenAIRequests,
    SampledChoices,
)
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import Row, SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.sampling.vllm.messages import remaining_request
from swarm_node.rollout import Finish
from swarm_node.simulation.virtual_time import VirtualTimeLoop

torch.set_num_threads(1)
CODEC = Codec.from_directory(TINY)


def stays() -> bool:
    return False


def asked(text: str, n: int = 1, longest: int = 3 * SLICE, seed: int = 5) -> SampleRequest:
    # So hot that no answer ends by itself soon.
    return SampleRequest(CODEC.encode_prompt(text), n, seed, longest, 50.0)


@asynccontextmanager
async def sampling(share: float = 1.0) -> AsyncIterator[tuple[TorchSampler, OpenAIRequests]]:
    """A sampler, and guests that may have this share of its time."""
    sampler = TorchSampler.from_directory(TINY, codec=CODEC, threads=1)
    try:
        yield sampler, OpenAIRequests(sampler, share=share)
    finally:
        await sampler.close()


async def finish(guests: OpenAIRequests, answers: Sequence[SampledChoices]) -> None:
    while not all(each.over for each in answers):
        await guests.step()


def ids(answers: SampledChoices) -> list[list[int]]:
    return [row.ids for row in answers.rows]


async def test_an_answer_depends_on_its_request_alone() -> None:
    async with sampling() as (_, guests):
        alone = guests.ask(asked("1 + 1?", n=2), stays)
        await finish(guests, [alone])
        among = [
            guests.ask(request, stays)
            for request in (asked("another?", seed=1), asked("1 + 1?", n=2), asked("x", n=3))
        ]
        assert None not in among
        await finish(guests, [each for each in among if each])
        assert ids(among[1]) == ids(alone)
        assert ids(alone)[0] != ids(alone)[1]
        assert all(len(row) <= 3 * SLICE for row in ids(alone))
        assert {row.finish for row in alone.rows} <= {Finish.LENGTH, Finish.STOP}
        assert CODEC.eos_ids.isdisjoint(token for row in ids(alone) for token in row)


async def test_an_answer_says_which_policy_gave_its_newest_tokens() -> None:
    async with sampling() as (sampler, guests):
        answers = guests.ask(asked("1 + 1?"), stays)
        await guests.step()
        assert (answers.version, answers.over) == (0, False)
        await sampler.load(TINY / "model.safetensors", 7)
        await finish(guests, [answers])
        assert answers.version == 7


async def test_every_token_of_an_answer_is_ranked_once() -> None:
    async with sampling() as (_, guests):
        ranked = replace(asked("1 + 1?", n=2), temperature=1.0, top_logprobs=2)
        assert guests.refusal(ranked) == ""
        answers, bare = guests.ask(ranked, stays), guests.ask(asked("2?"), stays)
        await finish(guests, [answers, bare])
        for row in answers.rows:
            assert len(row.ranked_tokens) == len(row.ids)
            assert all(len(each.likeliest) == 2 for each in row.ranked_tokens)
        assert bare.rows[0].ranked_tokens == []


async def test_more_rows_than_places_take_turns() -> None:
    async with sampling() as (_, guests):
        many = [guests.ask(asked(f"{n}?", n=4), stays) for n in range(MOST_ROWS // 4)]
        assert guests.rows == MOST_ROWS
        assert guests.ask(asked("one more?"), stays) is None
        await guests.step()
        begun = [each for each in many if each and any(ids(each))]
        assert sum(each.request.n for each in begun) == PLACES
        for _ in range(MOST_ROWS // PLACES - 1):
            await guests.step()
        assert all(any(ids(each)) for each in many if each)
        await finish(guests, [each for each in many if each])
        assert guests.ask(asked("one more?"), stays) is not None


async def test_who_has_left_is_sampled_no_further() -> None:
    left = False
    async with sampling() as (_, guests):
        answers = guests.ask(asked("long", longest=20 * SLICE), lambda: left)
        other = guests.ask(asked("short"), stays)
        await guests.step()
        left, had = True, len(answers.rows[0].ids)
        await finish(guests, [other])
        assert len(answers.rows[0].ids) == had
        async with asyncio.timeout(5):
            await answers.news()
        assert guests.rows == 0 or not any(each is answers for each in guests._waiting)


@virtual_time
async def test_guests_take_their_share_of_the_time_and_no_more(loop: VirtualTimeLoop) -> None:
    """The sampler counts real seconds. On this clock they pass only in the pauses after them."""
    sampler = TorchSampler(CausalLM.from_directory(TINY), CODEC, inline=True)
    guests = OpenAIRequests(sampler, share=0.2, now=loop.time)
    assert guests.ask(asked("long", longest=12 * SLICE), stays) is not None
    used = 0.0
    for _ in range(6):
        before, began = sampler.guest_seconds, loop.time()
        await guests.step()
        assert sampler.guest_seconds > before
        assert loop.time() - began == pytest.approx(used / 0.2)
        used = sampler.guest_seconds - before


async def test_own_requests_are_not_metered_and_wait_for_one_slice_at_most() -> None:
    async with sampling() as (sampler, guests):
        own = asked("own")
        await sampler.sample([own])
        assert sampler.guest_seconds == 0.0
        assert guests.ask(asked("guest", longest=30 * SLICE), stays) is not None
        ordered: list[str] = []

        async def guest() -> None:
            for _ in range(3):
                await guests.step()
                ordered.append("guest")

        async def owner() -> None:
            await sampler.sample([own])
            ordered.append("own")

        await asyncio.gather(guest(), owner())
        assert ordered.index("own") <= 1


async def test_what_cannot_be_sampled_says_why_and_the_queue_goes_on() -> None:
    async with sampling() as (_, guests):
        bad = guests.ask(SampleRequest((10**6,), 1, 1, 4), stays)
        await guests.step()
        assert isinstance(bad.error, ModelError)
        good = guests.ask(asked("1 + 1?"), stays)
        await finish(guests, [good])
        assert good.error is None


@pytest.mark.parametrize(("guest", "priority"), [(False, 0), (True, 1)])
def test_an_engine_hears_whose_request_it_is(guest: bool, priority: int) -> None:
    request = SampleRequest((1, 2), 1, 1, 4, guest=guest, top_p=0.5, top_logprobs=3)
    message, _ = remaining_request(request, [Row.empty()])
    assert (message.priority, message.top_p, message.ranked) == (priority, 0.5, 3)
