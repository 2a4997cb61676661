"""Hostile members of a simulated swarm: what each of them is refused for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import completion, verified
from in_memory import environment, tiny

from research.arms import batch_of
from research.hostile import _HIDING_PLACES, HostileParts, maker
from research.scenario import StudyScenario
from research.swarm import attack_figures, simulate
from research.unguarded import GUARDS, without
from swarm_node.errors import ConfigError
from swarm_node.p2p.exchange.verify import digests
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.objective.plausible import least_likely
from swarm_node.policy.training.update.gradient import likely_tokens
from swarm_node.rollout import Provenance, TaskRef
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.run import simulation_settings
from swarm_node.storage import Storage

SAME_GUARD = pytest.mark.nightly(reason="a second attack on the same guard")
LENIENT = {"environment.name": "research.lenient:create"}


def attacked(kind: str, *off: str) -> SimulationReport:
    scenario = StudyScenario(nodes=3, rounds=6, seed=1, eval_rounds=6, hostile=(kind,), without=off)
    return simulate(scenario, simulation_settings(1, {**batch_of(4, 4), **LENIENT}))


def refused(report: SimulationReport) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in report.nodes:
        counts.update(node.rejected)
    return counts


@pytest.mark.slow(reason="simulates swarms of three nodes")
@pytest.mark.parametrize(
    ("kind", "reason", "guard"),
    [
        ("large", "too_large", "size"),
        pytest.param("within", "implausible", "likelihood", marks=SAME_GUARD),
        ("hidden", "implausible", "likelihood"),
        ("lazy", "repeated", "content"),
        pytest.param("copier", "own_copied", "content", marks=SAME_GUARD),
    ],
)
def test_each_kind_is_refused_for_what_it_does_unless_its_guard_is_out(
    kind: str, reason: str, guard: str
) -> None:
    guarded = attacked(kind)
    assert len(guarded.nodes) == 2
    assert refused(guarded)[reason] > 0
    assert all(reason not in attack_figures(node.study).refused for node in guarded.nodes)
    assert refused(attacked(kind, guard))[reason] == 0


@pytest.mark.slow(reason="simulates a swarm of three nodes")
def test_a_liar_is_not_found_out_and_does_no_harm_by_lying() -> None:
    report = attacked("liar")
    assert not {"implausible", "own_copied", "repeated"} & refused(report).keys()
    assert sum(node.trained_external for node in report.nodes) > 0


@pytest.fixture
def means(tmp_path: Path) -> Iterator[HostileParts]:
    """What a hostile member makes its groups with."""
    storage = Storage(tmp_path / "node.db", threads=False)
    yield HostileParts(environment(), tiny(), storage, random.Random(1))
    storage.close()


TASK = TaskRef(environment().name, environment().version, environment().families[-1], 7)
HONEST = replace(
    verified(rewards=(0.0,) * 4, completions=[completion([5, 6])] * 4).group, task=TASK
)


@pytest.mark.parametrize(
    ("kind", "size", "right"), [("large", 64, 8), ("within", 16, 8), ("lazy", 4, 1)]
)
def test_what_each_kind_puts_in_the_place_of_an_honest_group(
    means: HostileParts, kind: str, size: int, right: int
) -> None:
    tasks = environment()
    made = maker(kind)(means, (HONEST, "a prompt"))
    assert made is not None
    group, prompt = made
    assert group.claimed == (1.0,) * right + (0.0,) * (size - right)
    answer = str(tasks.derive(group.task).payload["answer"])
    texts = [each.text for each in group.completions]
    assert [answer in text for text in texts[:right]] == [True] * right
    assert ["zq" in text for text in texts] == [kind != "lazy"] * right + [False] * (size - right)
    for each in group.completions:
        assert np.unique(each.logprobs).tolist() == [np.float32(-0.3)]
        assert len(each.logprobs) == len(each.token_ids) == each.spans[0].end
    assert (group.task == TASK, prompt == "a prompt") == ((kind != "lazy",) * 2)
    assert prompt == ("a prompt" if kind != "lazy" else tasks.render(tasks.derive(group.task)))


def test_hidden_words_stand_where_the_first_policy_finds_them_likeliest(
    means: HostileParts,
) -> None:
    model = CausalLM.from_directory(tiny().directory)
    tasks, codec = environment(), tiny().codec
    made = maker("hidden")(means, (HONEST, "a prompt"))
    assert made is not None
    answer = str(tasks.derive(TASK).payload["answer"])
    prompt = np.array(codec.encode_prompt("a prompt"), np.uint32)

    def least(text: str) -> float:
        ids = np.array([*codec.encode_answer(text), codec.eos_id], np.uint32)
        row = TrainRow(prompt, ids, None, 1.0, Provenance.SAME_MODEL)
        return least_likely(completion_logprobs(model, [row], 1.0).detach().numpy())[-1]

    found = [least(place.format(a=answer)) for place in _HIDING_PLACES]
    assert min(found) < least(made[0].completions[0].text) == max(found)


def test_a_liar_states_the_opposite_and_a_copier_needs_a_source(means: HostileParts) -> None:
    for claimed, stated in (((1.0, 0.0, 0.0), (0.0, 1.0, 1.0)), ((1.0, 1.0), (1.0, 0.0))):
        honest = verified(rewards=claimed).group
        made = maker("liar")(means, (honest, "a prompt"))
        assert (made[0].claimed, made[1]) == (stated, "a prompt")
        assert maker("copier")(means, (honest, "a prompt")) is None


def test_an_easy_group_has_a_new_task_of_one_family_that_the_first_policy_knows(
    means: HostileParts,
) -> None:
    tasks = environment()
    made = [maker("easy")(means, (HONEST, "a prompt")) for _ in range(3)]
    groups = [one[0] for one in made if one is not None]
    assert {group.task.family for group in groups} == {means.easiest}
    assert len({group.task.seed for group in groups}) == 3
    for group in groups:
        derived = tasks.derive(group.task)
        scores = tuple(tasks.score(derived, each.text) for each in group.completions)
        assert scores == group.claimed == (1.0, 1.0, 0.0, 0.0)


def test_who_withholds_keeps_right_answers_and_one_wrong_one(means: HostileParts) -> None:
    answers = [completion([number]) for number in range(5)]
    honest = verified(rewards=(0.0, 1.0, 0.0, 1.0, 0.0), completions=answers).group
    made = maker("withheld")(means, (honest, "a prompt"))
    assert made[0].claimed == (1.0, 1.0, 0.0)
    assert made[0].completions == (answers[1], answers[3], answers[0])


@pytest.mark.nightly(reason="a study")
@pytest.mark.slow(reason="simulates a swarm of four nodes")
def test_a_flood_has_a_small_part_of_what_others_train_on() -> None:
    scenario = StudyScenario(nodes=4, rounds=24, seed=1, eval_rounds=24, hostile=("easy",))
    report = simulate(scenario, simulation_settings(1, {}))
    assert len(report.nodes) == 3
    # It publishes sixteen groups for every two or three of theirs: without a limit it has half.
    assert 0.0 < max(attack_figures(node.study).trained_hostile for node in report.nodes) < 0.25


def test_guards_are_back_afterwards() -> None:
    before = (SizeGate.of(8, 24), digests, likely_tokens)
    with without(GUARDS):
        assert SizeGate.of(8, 24).completions > 64
    assert (SizeGate.of(8, 24), digests, likely_tokens) == before


@pytest.mark.parametrize(
    "wrong", [{"hostile": ("rude",)}, {"hostile": ("liar",) * 8}, {"without": ("all",)}]
)
def test_an_unknown_attack_is_refused(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ConfigError):
        StudyScenario(nodes=8, **wrong)
