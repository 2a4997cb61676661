"""What is chosen for a model where the user chose nothing."""

from __future__ import annotations

import os

import pytest
from fits import fit
from machines import settings_of

from swarm_node.cli.verbs.plan import shape_of
from swarm_node.config import Settings
from swarm_node.node.preflight import defaults
from swarm_node.node.preflight.defaults import demand_of, for_model, torch_threads
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.planning.fit import GpuMemory, Machine

TINY, CHAT = shape_of("tiny"), shape_of("qwen2.5-1.5b")
GIB = 1 << 30


def for_training(
    settings: Settings, shape: ModelConfig, training: TrainingMethod, rows: int
) -> Settings:
    return defaults.for_training(settings, demand_of(settings, shape), training, rows)


def test_a_model_trained_from_nothing_keeps_short_answers_and_a_high_rate() -> None:
    settings = settings_of()
    assert for_model(settings, TINY) is settings
    assert for_training(settings, TINY, TrainingMethod(8), 0) is settings


def test_a_pretrained_model_shares_the_cores_with_its_trainer() -> None:
    cores = len(os.sched_getaffinity(0))
    assert torch_threads(settings_of(), TINY) == 1
    assert torch_threads(settings_of(), CHAT) == max(1, cores // 2)
    assert torch_threads(settings_of(run__threads=3), CHAT) == 3
    assert torch_threads(settings_of(run__threads=3), TINY) == 3


@pytest.mark.parametrize(("rank", "rate"), [(0, 1e-6), (32, 1e-5)])
def test_a_pretrained_model_gets_what_it_can_begin_on(rank: int, rate: float) -> None:
    settings = for_training(for_model(settings_of(), CHAT), CHAT, TrainingMethod(rank), 0)
    assert settings.sampling.max_new_tokens == 24
    assert settings.environment.options == {"preset": "graded"}
    assert settings.training.learning_rate == rate


@pytest.mark.parametrize(
    ("given", "own", "tasks"),
    [
        ({"experience__local": 8}, 8, 8),
        ({"experience__local": 1}, 1, 2),
        ({"experience__external": 0}, 4, 4),
        ({"experience__external": 2}, 4, 6),
    ],
)
def test_a_cpu_samples_one_batch_and_keeps_the_groups_that_were_set(
    given: dict[str, int], own: int, tasks: int
) -> None:
    settings = for_training(for_model(settings_of(**given), CHAT), CHAT, TrainingMethod(16), 0)
    assert (settings.experience.local, settings.sampling.max_concurrent_groups) == (own, tasks)


@pytest.mark.parametrize(
    ("rows", "tasks"), [(0, 4), (32, 8), (64, 8), (96, 12), (128, 16), (192, 16)]
)
def test_a_pretrained_model_samples_as_many_groups_as_rows_are_planned(
    rows: int, tasks: int
) -> None:
    settings = for_training(for_model(settings_of(), CHAT), CHAT, TrainingMethod(32), rows)
    assert (settings.sampling.max_concurrent_groups, settings.sampling.group_size) == (tasks, 8)
    assert settings.experience.local == (settings_of().experience.local if rows else 2)
    chosen = for_model(settings_of(sampling__max_concurrent_groups=3), CHAT)
    assert for_training(chosen, CHAT, TrainingMethod(32), rows).sampling.max_concurrent_groups == 3


def test_what_the_user_chose_stays() -> None:
    chosen = settings_of(sampling__max_new_tokens=100, training__learning_rate=3e-5)
    kept = for_training(for_model(chosen, CHAT), CHAT, TrainingMethod(32), 0)
    assert (kept.sampling.max_new_tokens, kept.training.learning_rate) == (100, 3e-5)
    small = for_model(settings_of(sampling__group_size=2, experience__local=16), CHAT)
    assert (small.sampling.group_size, small.experience.local) == (2, 16)
    assert small.sampling.max_new_tokens == 24
    for name, options in (
        ("drills", {"preset": "long"}),
        ("drills", {"families": {"sorting": [4, 5]}}),
        ("reasoning_gym", {"preset": "sapo"}),
        ("reasoning_gym", {"datasets": {"gcd": {}}}),
    ):
        own = settings_of(environment__name=name, environment__options=options)
        assert for_model(own, CHAT).environment.options == options
    own = settings_of(environment__name="jsonl", environment__options={"path": "x.jsonl"})
    assert for_model(own, CHAT).environment == own.environment
    scored = settings_of(
        environment__name="reasoning_gym", environment__options={"scoring": "native"}
    )
    assert for_model(scored, CHAT).environment.options == {"scoring": "native", "preset": "chat"}


@pytest.mark.parametrize(
    ("name", "options", "longest"),
    [
        ("drills", {}, 24),
        ("drills", {"preset": "graded", "system": "Be brief.", "examples": 2}, 24),
        ("drills", {"preset": "graded-reasoning"}, 512),
        ("drills", {"instruction": "Think step by step."}, 512),
        ("drills", {"preset": "chat"}, 512),
        ("drills", {"families": {"sorting": [4, 5]}}, 512),
        ("reasoning_gym", {}, 512),
        ("jsonl", {"path": "x.jsonl"}, 512),
    ],
)
def test_only_answers_that_are_a_number_are_short(
    name: str, options: dict[str, object], longest: int
) -> None:
    settings = settings_of(environment__name=name, environment__options=options)
    assert for_model(settings, CHAT).sampling.max_new_tokens == longest


def test_the_plan_is_made_for_the_answers_of_that_model() -> None:
    card = Machine(
        Placement("cuda:0", "bfloat16"), 64 * GIB, GpuMemory(12 * GIB, 12 * GIB), vllm=None
    )
    settings = for_model(settings_of(), CHAT)
    found = fit(settings, CHAT, card)
    assert found.plan.max_model_len == 4096 + 24


def test_without_a_gpu_adapters_of_a_pretrained_model_are_trained_unless_all_are_asked_for() -> (
    None
):
    machine, model = Machine(ON_CPU, 64 * GIB, None, vllm=None), shape_of("qwen2.5-0.5b")
    for given, shape, rank in (({}, model, 16), ({"lora_rank": 0}, model, 0), ({}, TINY, 0)):
        settings = settings_of(**{f"training__{key}": value for key, value in given.items()})
        assert fit(settings, shape, machine).training.lora_rank == rank


@pytest.mark.parametrize(
    ("name", "rank", "rate"),
    [("smollm2-135m", 16, 1e-4), ("smollm2-135m", 0, 1e-5), ("smollm2-360m", 16, 1e-5)],
)
def test_a_small_model_learns_at_higher_rates(name: str, rank: int, rate: float) -> None:
    shape = shape_of(name)
    settings = for_training(for_model(settings_of(), shape), shape, TrainingMethod(rank), 0)
    assert (settings.training.learning_rate, settings.sampling.temperature) == (rate, 0.7)
    chosen = for_model(settings_of(sampling__temperature=1.0), shape)
    assert chosen.sampling.temperature == 1.0
