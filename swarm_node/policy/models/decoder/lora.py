"""Low-rank adapters on the lean CausalLM, through peft (LoRA, Hu et al., arXiv 2106.09685).

The lean model fuses q/k/v and gate/up; transformers, peft and vLLM do not. So peft gets a tree of
linear modules under transformers' names, whose weights are views of the fused ones. There it makes,
initialises and merges the adapters. The lean layers add the adapters' outputs to their fused
products. Names, shapes and configuration are peft's, so an adapter made here loads anywhere.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from swarm_node.errors import ModelError
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.nf4 import without_kernels
from swarm_node.policy.models.hub import HubModel
from swarm_node.policy.models.tensors import on_host

#: The projections of every layer, by the fused product that computes them.
_SITES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
TARGETS = tuple(path.rpartition(".")[2] for paths in _SITES.values() for path in paths)
#: α/r, the factor of the adapters' outputs; the same at every rank.
SCALE = 2
#: peft's name for the file with an adapter's tensors.
ADAPTER_FILE = "adapter_model.safetensors"
#: peft's name for the only adapter, and the prefix of every name in its files.
ADAPTER, PREFIX = "default", "base_model.model."


class TrainedAdapter(ABC):
    """The adapters of one model. They freeze the model's weights, and leave their device and type
    as they are. Adapters are float32. At first they add nothing: one factor of each is random (by
    `seed`) and the other zero."""

    def __init__(
        self,
        weights: Callable[[], Iterator[tuple[str, Tensor]]],
        module: nn.Module,
        targets: Sequence[str],
        rank: int,
        *,
        base: HubModel | None,
        seed: int,
    ) -> None:
        """Put adapters on the linear layers of a frozen `module` that have the last names
        `targets`. `rank` is 1 or more. `weights` gives the model's, under transformers' names. A
        saved adapter names `base` as its base model, or none."""
        self._weights, self._targets, self._rank, self._base = weights, targets, rank, base
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            _peft().inject_adapter_in_model(
                self._config(inference=False), module, adapter_name=ADAPTER
            )
        #: The trained parameters, by their names in peft's files.
        self.parameters = {
            PREFIX + name.replace(f".{ADAPTER}.", "."): parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        for parameter in self.parameters.values():
            parameter.data = parameter.data.float()  # peft makes them in the base's type
        self._layers: dict[str, Any] = {
            name: layer for name, layer in module.named_modules() if hasattr(layer, "lora_A")
        }

    def state(self) -> dict[str, Tensor]:
        """A copy of the adapters' tensors, in main memory."""
        return {name: on_host(value) for name, value in self.parameters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned.

        Raises:
            ModelError: it is of another model or another rank; nothing was changed.
        """
        if {name: value.shape for name, value in state.items()} != {
            name: value.shape for name, value in self.parameters.items()
        }:
            raise ModelError(
                f"the adapter does not fit this model at rank {self._rank}",
                "use the base model and the rank that it was trained with",
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[name])

    @torch.no_grad()
    def merged_weights(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The whole model's weights with the adapters added, under transformers' names."""
        state: dict[str, Tensor] = {}
        for name, weight in self._weights():
            layer, total = self._layers.get(name.removesuffix(".weight")), weight.detach()
            if layer is not None:
                total = weight.float() + layer.get_delta_weight(ADAPTER)
            state[name] = on_host(total, dtype or weight.dtype)
        return state

    def save(self, directory: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write adapter_model.safetensors, with `metadata` in its header, and adapter_config.json,
        as peft and vLLM load them."""
        header = {"format": "pt", **(metadata or {})}
        save_file(self.state(), directory / ADAPTER_FILE, metadata=header)
        self._config(inference=True).save_pretrained(str(directory))

    @abstractmethod
    def disable(self) -> AbstractContextManager[None]:
        """Inside this context the model computes its base policy."""

    def _config(self, *, inference: bool) -> Any:
        return _peft().LoraConfig(
            r=self._rank,
            lora_alpha=SCALE * self._rank,
            target_modules=list(self._targets),
            task_type="CAUSAL_LM",
            base_model_name_or_path=self._base and self._base.repo,
            revision=self._base and self._base.revision,
            inference_mode=inference,
        )


class Adapter(TrainedAdapter):
    """The adapters of a lean model."""

    def __init__(
        self, model: CausalLM, rank: int, *, base: HubModel | None = None, seed: int = 0
    ) -> None:
        self._model = model.requires_grad_(False)
        super().__init__(model.hf_weights, _tree(model), TARGETS, rank, base=base, seed=seed)
        self._attach()

    @contextmanager
    def disable(self) -> Iterator[None]:
        for layer in self._model.blocks():
            layer.adapter = None
        try:
            yield
        finally:
            self._attach()

    def _attach(self) -> None:
        for index, layer in enumerate(self._model.blocks()):
            prefix = f"model.layers.{index}."
            parts = {
                site: [self._layers[prefix + path] for path in paths]
                for site, paths in _SITES.items()
            }
            layer.adapter = partial(_adapter_outputs, parts)


def _peft() -> Any:
    """The library, which imports transformers, hence only where it is needed, and bitsandbytes
    where that is installed, which warns on a CPU of a faster kernel."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    with without_kernels():
        return import_module("peft")


class PublishedAdapter:
    """An adapter that a trainer published, on a model that only samples. The model's weights stay
    as they are, so the next version is a copy of some small matrices, in place. Unlike `Adapter` it
    does without peft, which imports transformers."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._factors: list[dict[str, tuple[Tensor, Tensor]]] = []

    def load(self, state: Mapping[str, Tensor]) -> bool:
        """Take over the tensors of an adapter_model.safetensors. Returns True if the model computes
        with other tensors than before, False if only their values changed.

        Raises:
            ModelError: it is not an adapter of this model; nothing was changed.
        """
        model, embedding = self._model, self._model.embedding
        rank = next((len(value) for name, value in state.items() if "lora_A" in name), 0)
        shapes = {
            f"{PREFIX}{path}.lora_{factor}.weight": size
            for path, weight in _projections(model)
            for factor, size in (("A", (rank, weight.shape[1])), ("B", (weight.shape[0], rank)))
        }
        if not rank or shapes != {name: tuple(value.shape) for name, value in state.items()}:
            raise ModelError(
                "the adapter does not fit this model: it has other projections or sizes"
            )
        new = [
            {site: _fuse_factors(state, index, paths, embedding) for site, paths in _SITES.items()}
            for index in range(model.config.num_hidden_layers)
        ]
        if _shapes(new) == _shapes(self._factors):
            for old, factors in zip(self._factors, new, strict=True):
                for site, pair in factors.items():
                    for place, value in zip(old[site], pair, strict=True):
                        place.copy_(value)
            return False
        self._factors = new
        for layer, factors in zip(model.blocks(), new, strict=True):
            layer.adapter = partial(_added_at_once, factors)
        return True

    def remove(self) -> bool:
        """Let the model compute without it. Returns True if it computed with it before."""
        for layer in self._model.blocks():
            layer.adapter = None
        was_active, self._factors = bool(self._factors), []
        return was_active


def _fuse_factors(
    state: Mapping[str, Tensor], index: int, paths: Sequence[str], prototype: Tensor
) -> tuple[Tensor, Tensor]:
    """The factors of the projections `paths` of one layer, joined for their fused product, in the
    type and on the device of `prototype`: [Σr, in] and [out, Σr]."""
    parts = [f"{PREFIX}model.layers.{index}.{path}" for path in paths]
    down = torch.cat([state[f"{part}.lora_A.weight"] for part in parts])
    ups = [state[f"{part}.lora_B.weight"] for part in parts]
    up = SCALE * torch.block_diag(*ups)  # type: ignore[no-untyped-call]
    return down.to(prototype), up.to(prototype)


def _shapes(factors: Sequence[Mapping[str, tuple[Tensor, Tensor]]]) -> list[list[torch.Size]]:
    return [[part.shape for pair in layer.values() for part in pair] for layer in factors]


def _added_at_once(factors: Mapping[str, tuple[Tensor, Tensor]], site: str, x: Tensor) -> Tensor:
    """The result of `_adapter_outputs`, by two products."""
    down, up = factors[site]
    return F.linear(F.linear(x, down), up)


def _adapter_outputs(parts: Mapping[str, Sequence[Any]], site: str, x: Tensor) -> Tensor:
    """The outputs for x [..., in] of the adapters whose projections are fused at `site`, joined."""
    # The factor goes to the products between, which are narrow.
    outputs = [part.lora_B[ADAPTER](SCALE * part.lora_A[ADAPTER](x)) for part in parts[site]]
    return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]


def _projections(model: CausalLM) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.hf_views():
        path = name.removesuffix(".weight")
        if path != name and path.endswith(TARGETS):
            yield path, weight


def _tree(model: CausalLM) -> nn.Module:
    """Linear modules under transformers' names that share the memory of the fused weights."""
    root = nn.Module()
    for path, weight in _projections(model):
        *parents, leaf = path.split(".")
        place = root
        for name in parents:
            if not hasattr(place, name):
                place.add_module(name, nn.Module())
            place = place.get_submodule(name)
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
        place.add_module(leaf, linear)
    return root
