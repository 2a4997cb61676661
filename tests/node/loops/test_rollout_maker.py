"""Tasks that do not fit the model are left out; sampling and measuring go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from in_memory import Host, World, small_settings
from virtual import virtual_time

from swarm_node.environments.registry import create_environment
from swarm_node.errors import ModelError
from swarm_node.node.metrics.first_groups import Beginning
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import Completion


class Failing(TorchSampler):
    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        raise ModelError("no memory")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Path]) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@virtual_time
async def test_prompts_too_long_are_left_out_and_counted(
    world: World, model: Path, tmp_path: Path
) -> None:
    """Of the model's 64 positions about 30 are left for a question, of which half are longer."""
    rows = [
        {"question": ("long " * 40 if n % 2 else "short ") + str(n), "answer": str(n)}
        for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    host = Host(
        create_environment("jsonl", {"path": str(tmp_path / "rows.jsonl"), "held_out": 0.5})
    )
    settings = small_settings(
        sampling__max_new_tokens=4, sampling__group_size=2, run__eval_tasks=24
    )
    codec, decoder = Codec.from_directory(model), CausalLM.from_directory(model)
    sampler = TorchSampler(decoder, codec, inline=True)
    node = world.node(settings, environment=host, codec=codec, sampler=sampler)
    info, tally = await host.start(), node._tally
    work = node._open_work(info, info.families)
    made: list[LocalGroup] = []

    async def deliver(groups: Sequence[LocalGroup]) -> None:
        made.extend(groups)

    await work.maker.make(24, deliver)
    assert 0 < len(made) < 24
    assert node._shared_state.slots.sampling == 0
    assert tally.faults["prompt_too_long"] == 24 - len(made)
    assert all(one.prompt.startswith("short") for one in made)
    finishes = [each.finish for one in made for each in one.group.completions]
    assert (tally.groups.completions, tally.groups.truncated) == (
        len(finishes),
        finishes.count("length"),
    )
    assert tally.samples.recent().truncated == tally.groups.truncated
    point = await work.evaluator.measure()
    assert 0.0 <= point.reward <= 1.0
    barren = Beginning(info.name, 0.0, 0, 16, ())
    work.maker._parts = replace(node._parts, sampler=Failing(decoder, codec, inline=True))
    with pytest.raises(ModelError):
        await work.maker._try(barren)
    assert tally.advice == barren.advice, "there is advice although no change could be tried"
    await node.close()
