"""What would help a model whose first answers teach nothing is tried before it is advised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from in_memory import World, small_settings, tiny
from virtual import virtual_time

from swarm_node.environments.splits.seeds import task_seed
from swarm_node.node.loops.node_parts import Tally, at_sampler
from swarm_node.node.loops.sampling.remedy_trials import (
    ANSWERS,
    TASKS,
    Change,
    advice,
    changes,
    try_changes,
)
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.metrics.first_groups import Beginning
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.rollout import TaskRef

BARREN = Beginning("drills", 0.05, 0, 16, ("a", "b", "c"))
COOLER, GREEDY, LONGER = Change(0.7), Change(0.0), Change(max_new_tokens=32)


@pytest.mark.parametrize(
    ("temperature", "cut", "tried"),
    [
        (1.0, 0.0, [COOLER, GREEDY]),
        (0.7, 0.0, [GREEDY]),
        (0.7, 0.5, [GREEDY, LONGER]),
        (0.0, 0.5, [LONGER]),
    ],
)
def test_only_what_differs_and_could_help_is_tried(
    temperature: float, cut: float, tried: list[Change]
) -> None:
    beginning = Beginning("drills", 0.0, 0, 16, (), cut)
    assert list(changes(beginning, SampleRequest((1,), 8, 0, 16, temperature))) == tried


def test_the_change_that_helped_most_is_advised_and_greedy_never() -> None:
    told = advice(BARREN, {COOLER: 0.2, GREEDY: 0.9, LONGER: 0.4})
    assert told.startswith(f"set {LONGER.description} ")
    assert advice(BARREN, {COOLER: 0.06, GREEDY: 0.9}).startswith(BARREN.advice)
    assert "greedy 90%" in advice(BARREN, {GREEDY: 0.9})
    assert advice(BARREN, {}) == BARREN.advice


@virtual_time
async def test_a_trial_samples_and_judges_a_few_tasks_with_each_change(world: World) -> None:
    parts = world.parts(small_settings())
    await parts.sampler.load(*await parts.trainer.start())
    info = await parts.environment.start()
    refs = [
        TaskRef(info.name, info.version, info.families[0], task_seed("train", n))
        for n in range(TASKS + 2)
    ]
    prompts = await parts.environment.render(refs)
    requests = {
        ref: SampleRequest(tiny().codec.encode_prompt(prompt), 8, ref.seed, 12)
        for ref, prompt in zip(refs, prompts, strict=True)
    }
    tally = Tally()
    judging = Scoring(parts.environment, tally, Effort(1.0, str), world.clock)
    noted: list[tuple[int, int]] = []

    @contextmanager
    def calls(max_tokens: int, *, answers: int) -> Iterator[None]:
        noted.append((max_tokens, answers))
        with at_sampler(parts, tally, max_tokens, answers=answers):
            yield

    found = await try_changes(BARREN, requests, parts.sampler, judging, parts.codec, calls)
    assert noted == [(12, TASKS * ANSWERS), (12, TASKS)]
    assert (tally.groups.completions, tally.sums.sampled_tokens) == (0, 0)
    assert set(found) == {COOLER, GREEDY}
    # One answer each is right or wrong, so the mean is a multiple of one task's share.
    assert (found[GREEDY] * TASKS) % 1 == pytest.approx(0)
    assert found[GREEDY] != BARREN.pass_at_1
    await parts.trainer.close()
    parts.storage.close()
