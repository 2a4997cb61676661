"""Models and their adapters by what computes them: the native decoder, or transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import Adapter, PublishedAdapter, TrainedAdapter
from swarm_node.policy.models.hub import HubModel

if TYPE_CHECKING:
    from swarm_node.policy.models.by_transformers.language_model import TransformersLM
    from swarm_node.policy.models.by_transformers.lora import PublishedTransformersAdapter

_Made = TypeVar("_Made")


class PolicyModel(Protocol):
    """What a trainer needs of a model: log-probs with gradients, and its weights under
    transformers' names. Methods are described at `CausalLM`."""

    recompute: bool
    products: torch.dtype

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shares_prompts(self) -> bool:
        """Check that `hidden` takes sequences of several answers (`packing.py`)."""
        ...

    @property
    def embedding(self) -> nn.Parameter: ...

    @property
    def head_weight(self) -> nn.Parameter | None:
        """The output head [V, hidden]; None where `logits` is more than a product with it."""
        ...

    def whole(self, function: Callable[..., _Made], *args: Any) -> _Made: ...

    def hidden(self, ids: Tensor, segments: Tensor | None = None) -> Tensor: ...

    def logits(self, hidden_states: Tensor) -> Tensor: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def hf_parts(self, name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]: ...

    def hf_state(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]: ...

    def load_hf_state(self, state: Mapping[str, Tensor]) -> None: ...


def load_model(path: Path) -> CausalLM | TransformersLM:
    """The model in a directory, in float32.

    Raises:
        ModelError: see `CausalLM.from_directory` and `TransformersLM.from_directory`.
    """
    if ModelConfig.from_directory(path).native:
        return CausalLM.from_directory(path)
    from swarm_node.policy.models.by_transformers.language_model import TransformersLM

    return TransformersLM.from_directory(path)


def make_adapter(
    model: PolicyModel, rank: int, *, base: HubModel | None = None, seed: int = 0
) -> TrainedAdapter:
    """New adapters of a model.

    Raises:
        ModelError: the model has no layers that can have adapters.
    """
    if isinstance(model, CausalLM):
        return Adapter(model, rank, base=base, seed=seed)
    from swarm_node.policy.models.by_transformers.language_model import TransformersLM
    from swarm_node.policy.models.by_transformers.lora import TransformersAdapter

    assert isinstance(model, TransformersLM)
    return TransformersAdapter(model, rank, base=base, seed=seed)


def published_adapter(
    model: CausalLM | TransformersLM,
) -> PublishedAdapter | PublishedTransformersAdapter:
    """The place of published adapters on a model that samples."""
    if isinstance(model, CausalLM):
        return PublishedAdapter(model)
    from swarm_node.policy.models.by_transformers.lora import PublishedTransformersAdapter

    return PublishedTransformersAdapter(model)
