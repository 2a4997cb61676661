"""Settings of a trainer for benchmarks that have no node: its defaults, in float32 on the CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swarm_node.config import load_settings
from swarm_node.node.start import derive
from swarm_node.policy.training.update.settings import TrainerSettings


def trainer_settings(**changes: Any) -> TrainerSettings:
    """The defaults of a node, and `changes`."""
    node_settings = {"run.device": "cpu", "training.dtype": "float32"}
    return replace(derive.trainer_settings(load_settings(node_settings, environ={})), **changes)
