"""Low-rank adapters by peft on a model that transformers computes: on every linear layer of its
decoder, the output head aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.models.by_transformers.config import linear_layers
from swarm_node.policy.models.by_transformers.language_model import TransformersLM
from swarm_node.policy.models.decoder.lora import (
    ADAPTER,
    PREFIX,
    check_fits,
    inject,
    lora_config,
    write_adapter,
)
from swarm_node.policy.models.hub import HubModel
from swarm_node.policy.models.tensors import on_host


class TransformersAdapter:
    """The adapters of one model; see `lora.Adapter`, whose methods it has."""

    def __init__(
        self, model: TransformersLM, rank: int, *, base: HubModel | None = None, seed: int = 0
    ) -> None:
        """
        Raises:
            ModelError: peft's names of layers mean others too.
        """
        self._model = model.requires_grad_(False)
        self._rank, self._base = rank, base
        self._targets = _targets(model)
        inner = model.inner
        #: The trained parameters, by their names in peft's files.
        self.parameters = inject(inner, self._config(inference=False), seed)
        self._layers: dict[str, Any] = {
            name: module for name, module in inner.named_modules() if hasattr(module, "lora_A")
        }

    @property
    def rank(self) -> int:
        return self._rank

    def state(self) -> dict[str, Tensor]:
        """A copy of the adapters' tensors, in main memory."""
        return {name: on_host(value) for name, value in self.parameters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned.

        Raises:
            ModelError: it is of another model or another rank; nothing was changed.
        """
        check_fits(self.parameters, state, self._rank)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[name])

    @torch.no_grad()
    def merged(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The whole model's weights with the adapters added, under transformers' names."""
        state: dict[str, Tensor] = {}
        for name, weight in self._model.hf_weights():
            layer, total = self._layers.get(name.removesuffix(".weight")), weight.detach()
            if layer is not None and name.endswith(".weight"):
                total = weight.float() + layer.get_delta_weight(ADAPTER)
            state[name] = on_host(total, dtype or weight.dtype)
        return state

    def save(self, directory: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write the files of an adapter, as peft and vLLM load them."""
        write_adapter(self.state(), self._config(inference=True), directory, metadata)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside this context the model computes its base policy."""
        self.switch(on=False)
        try:
            yield
        finally:
            self.switch(on=True)

    def switch(self, *, on: bool) -> None:
        """Let the model compute with or without the adapters."""
        for layer in self._layers.values():
            layer.enable_adapters(on)

    def _config(self, *, inference: bool) -> Any:
        return lora_config(self._rank, self._targets, self._base, inference=inference)


class PublishedTransformersAdapter:
    """An adapter that a trainer published, on a model that only samples; see
    `lora.PublishedAdapter`."""

    def __init__(self, model: TransformersLM) -> None:
        self._model = model
        #: Inputs and outputs of the layers that have adapters, by their names in peft's files.
        self._layers = {f"{PREFIX}{name}": sizes for name, sizes in decoder_layers(model).items()}
        self._adapter: TransformersAdapter | None = None
        self._on = False

    def load(self, state: Mapping[str, Tensor]) -> bool:
        """See `lora.PublishedAdapter.load`. Every adapter has the rank of the first.

        Raises:
            ModelError: it is not an adapter of this model; nothing was changed.
        """
        rank = next((len(value) for name, value in state.items() if "lora_A" in name), 0)
        wanted = {
            f"{name}.lora_{factor}.weight": size
            for name, (inputs, outputs) in self._layers.items()
            for factor, size in (("A", (rank, inputs)), ("B", (outputs, rank)))
        }
        if not rank or wanted != {name: tuple(value.shape) for name, value in state.items()}:
            raise ModelError("the adapter does not fit this model: it has other layers or sizes")
        if self._adapter is None:
            self._adapter = TransformersAdapter(self._model, rank)
            self._adapter.switch(on=False)
        self._adapter.load_state(state)
        self._adapter.switch(on=True)
        changed, self._on = not self._on, True
        return changed

    def remove(self) -> bool:
        """Let the model compute without it. Returns True if it computed with it before."""
        if self._adapter is not None:
            self._adapter.switch(on=False)
        was, self._on = self._on, False
        return was


def decoder_layers(model: TransformersLM) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the decoder's linear layers, by their names in the whole model."""
    decoder = model.inner.get_decoder()
    path = next(name for name, module in model.inner.named_modules() if module is decoder)
    return {f"{path}.{name}": sizes for name, sizes in linear_layers(decoder).items()}


def _targets(model: TransformersLM) -> list[str]:
    """The last names of the decoder's linear layers, by which peft finds them again."""
    found = decoder_layers(model).keys()
    names = {name.rpartition(".")[2] for name in found}
    meant = {name for name, _ in model.inner.named_modules() if name.rpartition(".")[2] in names}
    if not found or meant != found:
        raise ModelError(
            f"a {model.config.model_type} of transformers has no linear layers that peft can name "
            "apart from others: set training.lora_rank to 0, which trains all weights"
        )
    return sorted(names)
