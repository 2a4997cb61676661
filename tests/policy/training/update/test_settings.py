"""Settings of a trainer: what is impossible is named, and they pass to another process."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from builders import trainer_settings

from swarm_node.config import settings_keys
from swarm_node.errors import ConfigError
from swarm_node.policy.training.update.settings import TrainerSettings

SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)


@pytest.mark.parametrize(
    "change",
    [
        {"loss": "sapo"},
        {"learning_rate": math.nan},
        {"betas": (0.9, 1.0)},
        {"weight_decay": -1.0},
        {"warmup_updates": -1},
        {"clip_low": 0.0},
        {"clip_high": math.inf},
        {"ratio_cap": 1.1},
        {"max_grad_norm": 0.0},
        {"micro_batch_tokens": 0},
        {"lora_rank": -1},
        {"published": "adapter"},
    ],
)
def test_impossible_settings_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        replace(trainer_settings(), **change)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"learning_rate": 0.0}, "training.learning_rate"),
        ({"temperature": 0.0}, "sampling.temperature"),
        ({"longest_answer": 0}, "sampling.max_new_tokens"),
        ({"processes": 0}, "run.trainer_processes"),
        ({"hosts": 0}, "run.trainer_hosts"),
    ],
)
def test_an_impossible_setting_is_named_by_a_key_that_exists(
    change: dict[str, Any], key: str
) -> None:
    assert key in {name for name, _ in settings_keys()}
    with pytest.raises(ConfigError, match=rf"^{key} cannot be"):
        replace(trainer_settings(), **change)


@pytest.mark.parametrize(
    ("together", "said"),
    [
        ({"base": "nf4"}, r"training\.base"),
        ({"base": "nf4", "lora_rank": 4, "processes": 2}, "one process"),
        ({"dtype": "float16", "processes": 2}, "one process"),
        ({"optimizer": "adamw8bit", "processes": 2}, r'process.*"adamw"'),
    ],
)
def test_settings_that_do_not_go_together_are_refused(together: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trainer_settings(**together)


def test_settings_survive_a_trip_through_plain_values() -> None:
    plain = msgpack.unpackb(msgpack.packb(SETTINGS.plain()))
    assert plain == SETTINGS.plain() != trainer_settings().plain()
    assert TrainerSettings.from_plain(plain) == SETTINGS
