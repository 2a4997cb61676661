"""Low-rank adapters by peft on a model that transformers computes: on every linear layer of its
decoder, the output head aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.models.by_transformers.config import linear_layers
from swarm_node.policy.models.by_transformers.language_model import TransformersLM
from swarm_node.policy.models.decoder.lora import PREFIX, TrainedAdapter
from swarm_node.policy.models.hub import HubModel


class TransformersAdapter(TrainedAdapter):
    """The adapters of a model that transformers computes."""

    def __init__(
        self, model: TransformersLM, rank: int, *, base: HubModel | None = None, seed: int = 0
    ) -> None:
        """
        Raises:
            ModelError: peft's names of layers mean others too.
        """
        model.requires_grad_(False)
        super().__init__(model.hf_weights, model.inner, _targets(model), rank, base=base, seed=seed)

    @contextmanager
    def disable(self) -> Iterator[None]:
        self.switch(on=False)
        try:
            yield
        finally:
            self.switch(on=True)

    def switch(self, *, on: bool) -> None:
        """Let the model compute with or without the adapters."""
        for layer in self._layers.values():
            layer.enable_adapters(on)


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
        shapes = {
            f"{name}.lora_{factor}.weight": size
            for name, (inputs, outputs) in self._layers.items()
            for factor, size in (("A", (rank, inputs)), ("B", (outputs, rank)))
        }
        if not rank or shapes != {name: tuple(value.shape) for name, value in state.items()}:
            raise ModelError("the adapter does not fit this model: it has other layers or sizes")
        if self._adapter is None:
            self._adapter = TransformersAdapter(self._model, rank)
            self._adapter.switch(on=False)
        self._adapter.load_state(state)
        self._adapter.switch(on=True)
        was_off, self._on = not self._on, True
        return was_off

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
    layer_names = decoder_layers(model).keys()
    names = {name.rpartition(".")[2] for name in layer_names}
    matches = {name for name, _ in model.inner.named_modules() if name.rpartition(".")[2] in names}
    if not layer_names or matches != layer_names:
        raise ModelError(
            f"a {model.config.model_type} of transformers has no linear layers that peft can name "
            "apart from others",
            "set training.lora_rank to 0 for full fine-tuning",
        )
    return sorted(names)
