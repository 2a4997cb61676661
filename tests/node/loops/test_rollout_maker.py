"""Tasks that do not fit the model are left out; sampling and measuring go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import replay_settings

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import load_settings
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.errors import ModelError
from swarm_node.node.loops.node_parts import Parts, Tally
from swarm_node.node.loops.reporting.evaluation import Evaluator
from swarm_node.node.loops.sampling.rollout_maker import RolloutMaker
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.loops.sampling.tasks import FittingTasks, SeededTasks
from swarm_node.node.metrics.first_groups import Beginning
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import Completion, PolicyRef
from swarm_node.storage import Storage


class Failing(TorchSampler):
    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        raise ModelError("no memory")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, make_model: Callable[..., Path]) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


async def test_prompts_too_long_are_left_out_and_counted(model: Path, tmp_path: Path) -> None:
    """Of the model's 64 positions about 30 are left for a question, of which half are longer."""
    rows = [
        {"question": ("long " * 40 if n % 2 else "short ") + str(n), "answer": str(n)}
        for n in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = load_settings({"sampling.max_new_tokens": 4, "sampling.group_size": 2}, environ={})
    unused: Mapping[str, Any] = {"transport": None, "trainer": None, "processes": dict}
    codec = Codec.from_directory(model)
    host = InlineEnvironmentHost(
        create_environment("jsonl", {"path": str(tmp_path / "rows.jsonl"), "held_out": 0.5})
    )
    storage = Storage(tmp_path / "node.sqlite")
    parts = Parts(
        sampler=TorchSampler.from_directory(model, threads=1),
        environment=host,
        storage=storage,
        codec=codec,
        policy=PolicyRef(b"m" * 32, b"t" * 32, 0),
        clock=SYSTEM_CLOCK,
        **unused,
    )
    tally, info = Tally(), await host.start()
    slots = Slots(ReplayBuffer(replay_settings()), 24)
    tasks = SeededTasks(info, info.families, storage, seed=0, peer_id="peer")
    maker = RolloutMaker(
        settings.sampling,
        parts,
        tally,
        Scoring(host, tally, Effort(1.0, str), SYSTEM_CLOCK),
        FittingTasks(settings.sampling, parts, tally, tasks),
        slots,
        None,
        seed=0,
        peer_id="peer",
    )
    made: list[LocalGroup] = []

    async def deliver(groups: Sequence[LocalGroup]) -> None:
        made.extend(groups)

    await maker.make(24, deliver)
    assert 0 < len(made) < 24
    assert slots.sampling == 0
    assert tally.faults["prompt_too_long"] == 24 - len(made)
    assert all(one.prompt.startswith("short") for one in made)
    finishes = [each.finish for one in made for each in one.group.completions]
    assert (tally.groups.completions, tally.groups.truncated) == (
        len(finishes),
        finishes.count("length"),
    )
    assert tally.samples.recent().truncated == tally.groups.truncated
    point = await Evaluator(
        sampling=settings.sampling,
        parts=parts,
        info=info,
        own_families=info.families,
        tasks=24,
        elapsed=0.0,
        tally=tally,
        min_pause=0.0,
    ).measure()
    assert 0.0 <= point.reward <= 1.0
    barren = Beginning(info.name, 0.0, 0, 16, ())
    maker._parts = replace(parts, sampler=Failing.from_directory(model, threads=1))
    with pytest.raises(ModelError):
        await maker._try(barren)
    assert tally.advice == barren.advice, "there is advice although no change could be tried"
    await parts.sampler.close()
    storage.close()
