"""AdamW (arXiv 1711.05101) without torch's optimizer class, whose first use imports torch's
compiler: 36 MiB and a second of every trainer. The arithmetic is torch's own."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

_EPSILON = 1e-8


class AdamW:
    """`state` holds for each parameter that was ever stepped "step" (a count, f32 scalar),
    "exp_avg" and "exp_avg_sq", as `torch.optim.AdamW` names them."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._betas = betas
        self._weight_decay = weight_decay
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        moved = [parameter for parameter in self._parameters if parameter.grad is not None]
        for parameter in moved:
            if parameter not in self.state:
                self.state[parameter] = _new_state(parameter)
        states = [self.state[parameter] for parameter in moved]
        adamw(
            [parameter.detach() for parameter in moved],
            [parameter.grad for parameter in moved if parameter.grad is not None],
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
