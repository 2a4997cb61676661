"""What moves the weights: AdamW, with its moments in float32 or in eight bits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from swarm_node.errors import ConfigError
from swarm_node.policy.placement import OptimizerName
from swarm_node.policy.training.adamw import AdamW


class Optimizer(Protocol):
    """`state` holds named tensors for each parameter that was ever stepped; what is put back there
    after a restart goes on as if nothing had happened."""

    state: dict[nn.Parameter, dict[str, Tensor]]

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        ...


def make_optimizer(
    name: OptimizerName,
    parameters: Sequence[nn.Parameter],
    betas: tuple[float, float],
    weight_decay: float,
) -> Optimizer:
    """The optimizer that `training.optimizer` names.

    Raises:
        ConfigError: it is not installed.
    """
    if name == "adamw":
        return AdamW(parameters, betas, weight_decay)
    return AdamW8bit(parameters, betas, weight_decay)


class AdamW8bit:
    """AdamW whose moments are quantised in blocks (Dettmers et al., arXiv 2110.02861), through
    bitsandbytes: a quarter of their memory. Tensors of under 4096 weights keep theirs whole."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], betas: tuple[float, float], weight_decay: float
    ) -> None:
        try:
            library: Any = import_module("bitsandbytes")
        except ImportError as error:
            raise ConfigError(
                'training.optimizer = "adamw8bit" needs bitsandbytes: pip install '
                "'swarm-node[gpu]', or set training.optimizer to \"adamw\""
            ) from error
        self._wrapped = library.optim.AdamW8bit(
            parameters, lr=0.0, betas=betas, weight_decay=weight_decay
        )
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def step(self, learning_rate: float) -> None:
        # Theirs counts steps in plain integers; here, as in a checkpoint, all are tensors.
        for parameter, moments in self.state.items():
            self._wrapped.state[parameter] = {**moments, "step": int(moments["step"])}
        for group in self._wrapped.param_groups:
            group["lr"] = learning_rate
        self._wrapped.step()
        self.state = {
            parameter: {**moments, "step": torch.tensor(moments["step"])}
            for parameter, moments in self._wrapped.state.items()
        }
