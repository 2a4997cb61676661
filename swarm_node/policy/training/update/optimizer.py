"""The optimizer: AdamW, with its moments in float32 or in eight bits.

`AdamW` does without torch's optimizer class, whose first use imports torch's compiler: 36 MiB and a
second of every trainer. The arithmetic is torch's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from swarm_node.policy.models.decoder.nf4 import bitsandbytes
from swarm_node.policy.placement import OptimizerName
from swarm_node.policy.training.update.moments import in_eight_bits, in_float32

_EPSILON = 1e-8


def make_optimizer(
    name: OptimizerName,
    parameters: Sequence[nn.Parameter],
    betas: tuple[float, float],
    weight_decay: float,
    tables: Collection[nn.Parameter] = (),
) -> AdamW | AdamW8bit:
    """The optimizer that `training.optimizer` names. `tables` are those of the `parameters` that
    have a row for each token of the vocabulary.

    Raises:
        ConfigError: it is not installed.
    """
    if name == "adamw":
        return AdamW(parameters, betas, weight_decay)
    return AdamW8bit(parameters, betas, weight_decay, tables)


class AdamW:
    """AdamW (arXiv 1711.05101). For each parameter that was ever stepped, `state` holds "step" (a
    count, f32 scalar), "exp_avg" and "exp_avg_sq", as `torch.optim.AdamW` names them. An optimizer
    whose `state` is restored continues identically."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._betas = betas
        self._weight_decay = weight_decay
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def layout(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A parameter's moments as `state` holds them, whichever optimizer they are of."""
        return in_float32(moments)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        parameters = [parameter for parameter in self._parameters if parameter.grad is not None]
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = _new_state(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            [parameter.detach() for parameter in parameters],
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=_EPSILON,
            maximize=False,
        )


def _new_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


class AdamW8bit:
    """AdamW of bitsandbytes, whose moments are quantised in blocks (Dettmers et al., arXiv
    2110.02861) and take a quarter of the memory. The moments of tensors with fewer than 4096
    weights are not quantised.

    Nor are those of `tables`. A block spans several tokens, and the gradient of one that occurs is
    many times that of the others. Of a gradient of 1e-4 of the block's largest, the first moment is
    kept and the second rounded to 0, so that a later step divides by next to nothing: on an H100 a
    weight of an embedding moved by 870 times the learning rate (docs/research/one-gpu.md).
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        betas: tuple[float, float],
        weight_decay: float,
        tables: Collection[nn.Parameter],
    ) -> None:
        library = bitsandbytes('training.optimizer = "adamw8bit"', 'training.optimizer to "adamw"')
        self._tables = AdamW(tables, betas, weight_decay)
        self._table_ids = frozenset(map(id, tables))
        rest = [parameter for parameter in parameters if id(parameter) not in self._table_ids]
        self._wrapped = library.optim.AdamW8bit(
            rest, lr=0.0, betas=betas, weight_decay=weight_decay
        )
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        codes = library.functional.create_dynamic_map
        self._codes = codes(signed=True), codes(signed=False)

    def layout(self, parameter: nn.Parameter, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if id(parameter) in self._table_ids:
            return in_float32(moments)
        return in_eight_bits(moments, self._codes)

    def step(self, learning_rate: float) -> None:
        # `state` may have been cleared or restored since.
        self._tables.state.clear()
        self._wrapped.state.clear()
        # bitsandbytes counts steps in plain integers; `state` and checkpoints hold tensors.
        for parameter, moments in self.state.items():
            if id(parameter) in self._table_ids:
                self._tables.state[parameter] = moments
            else:
                self._wrapped.state[parameter] = {**moments, "step": int(moments["step"])}
        for group in self._wrapped.param_groups:
            group["lr"] = learning_rate
        self._wrapped.step()
        self._tables.step(learning_rate)
        self.state = self._tables.state | {
            parameter: {**moments, "step": torch.tensor(moments["step"])}
            for parameter, moments in self._wrapped.state.items()
        }
