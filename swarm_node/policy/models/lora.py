"""Low-rank adapters on the lean Qwen2, through peft (LoRA, Hu et al., arXiv 2106.09685).

The lean model fuses q/k/v and gate/up; transformers, peft and vLLM do not. So peft gets a tree of
linear modules under transformers' names, whose weights are views of the fused ones. There it makes,
initialises and merges the adapters. The lean layers add the adapters' outputs to their fused
products. Names, shapes and configuration are peft's, so an adapter made here loads anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from swarm_node.errors import ModelError
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.models.tensors import load_safetensors, on_host

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
_ADAPTER, _PREFIX = "default", "base_model.model."


class Adapter:
    """The adapters of one model. They freeze the model's weights, and leave their device and type
    as they are. Adapters are float32. At first they add nothing: of each, one factor is random (by
    `seed`) and the other zero."""

    def __init__(self, model: Qwen2, rank: int, *, base: str, seed: int = 0) -> None:
        """`rank` is 1 or more; an exported adapter names `base` as its base model."""
        from peft import inject_adapter_in_model  # imports transformers, hence only here

        self._model = model.requires_grad_(False)
        self._rank = rank
        self._base = base
        tree = _tree(model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(self._config(inference=False), tree, adapter_name=_ADAPTER)
        self._projections: dict[str, Any] = {
            name: tree.get_submodule(name) for name, *_ in _projections(model)
        }
        #: The trained parameters, by their names in peft's files.
        self.parameters: dict[str, nn.Parameter] = {
            _PREFIX + name.replace(f".{_ADAPTER}.", "."): parameter
            for name, parameter in tree.named_parameters()
            if parameter.requires_grad
        }
        for parameter in self.parameters.values():
            parameter.data = parameter.data.float()  # peft makes them in the base's type
        self._attach()

    def state(self) -> dict[str, Tensor]:
        """A copy of the adapters' tensors, in main memory."""
        return {name: on_host(value) for name, value in self.parameters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave.

        Raises:
            ModelError: it is of another model or another rank; nothing was changed.
        """
        shapes = {name: value.shape for name, value in state.items()}
        if shapes != {name: value.shape for name, value in self.parameters.items()}:
            raise ModelError(
                f"the adapter does not fit this model at rank {self._rank}: "
                "use the base model and the rank that it was trained with"
            )
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[name])

    @torch.no_grad()
    def merged(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """The whole model's weights with the adapters added, as `Qwen2.hf_state` gives them."""
        state: dict[str, Tensor] = {}
        for name, weight in self._model.hf_views():
            projection = self._projections.get(name.removesuffix(".weight"))
            total = weight
            if projection is not None:
                total = weight.float() + projection.get_delta_weight(_ADAPTER)
            state[name] = on_host(total, dtype or weight.dtype)
        return state

    def save(self, directory: Path, metadata: Mapping[str, str] | None = None) -> None:
        """Write adapter_model.safetensors, with `metadata` in its header, and adapter_config.json,
        as peft and vLLM load them."""
        header = {"format": "pt", **(metadata or {})}
        save_file(self.state(), directory / ADAPTER_FILE, metadata=header)
        self._config(inference=True).save_pretrained(str(directory))

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside this context the model computes its base policy."""
        for layer in self._model.blocks():
            layer.added = None
        try:
            yield
        finally:
            self._attach()

    def _attach(self) -> None:
        for index, layer in enumerate(self._model.blocks()):
            prefix = f"model.layers.{index}."
            parts = {
                site: [self._projections[prefix + path] for path in paths]
                for site, paths in _SITES.items()
            }
            layer.added = partial(_added, parts)

    def _config(self, *, inference: bool) -> Any:
        from peft import LoraConfig

        return LoraConfig(
            r=self._rank,
            lora_alpha=SCALE * self._rank,
            target_modules=list(TARGETS),
            task_type="CAUSAL_LM",
            base_model_name_or_path=self._base,
            inference_mode=inference,
        )


def read_adapter(directory: Path) -> dict[str, Tensor]:
    """The tensors that `Adapter.save` wrote.

    Raises:
        ModelError: the file is missing or not a safetensors file.
    """
    return load_safetensors(directory / ADAPTER_FILE)


@torch.no_grad()
def apply_adapter(model: Qwen2, state: Mapping[str, Tensor]) -> None:
    """Let `model` add the outputs of an adapter, whose tensors `Adapter.state` gave, in the model's
    own type. This needs no peft, and an adapter of the same rank is copied over the last one.

    Raises:
        ModelError: it is not an adapter of all projections of this model; nothing was changed.
    """
    rank = next((len(value) for name, value in state.items() if "lora_A" in name), 0)
    sizes = {path: tuple(weight.shape) for path, weight in _projections(model)}
    wanted = {
        **{f"{_PREFIX}{path}.lora_A.weight": (rank, size[1]) for path, size in sizes.items()},
        **{f"{_PREFIX}{path}.lora_B.weight": (size[0], rank) for path, size in sizes.items()},
    }
    if not rank or wanted != {name: tuple(value.shape) for name, value in state.items()}:
        raise ModelError("the adapter does not fit this model: it has other projections or sizes")
    for index, layer in enumerate(model.blocks()):
        applied = layer.added if isinstance(layer.added, _Applied) else _Applied()
        for site, paths in _SITES.items():
            names = [f"{_PREFIX}model.layers.{index}.{path}." for path in paths]
            # The projections of a site have the same input: their first factors are one product.
            first = torch.cat([state[f"{name}lora_A.weight"] for name in names])
            seconds = [SCALE * state[f"{name}lora_B.weight"] for name in names]
            applied.take(site, [first, *seconds], like=layer.out)
        layer.added = applied


class _Applied:
    """The outputs of a layer's adapter, which is not trained here."""

    def __init__(self) -> None:
        #: For each site the joined first factors, and the second factor of each projection.
        self._factors: dict[str, list[Tensor]] = {}

    def take(self, site: str, factors: list[Tensor], *, like: Tensor) -> None:
        """Copy factors in, cast to the type and the device of `like`. Where earlier ones have the
        same shapes, their memory stays, because a CUDA graph holds its addresses."""
        own = self._factors.get(site, [])
        if [part.shape for part in own] != [part.shape for part in factors]:
            own = [like.new_empty(part.shape) for part in factors]
            self._factors[site] = own
        for part, factor in zip(own, factors, strict=True):
            part.copy_(factor)

    def __call__(self, site: str, x: Tensor) -> Tensor:
        first, *seconds = self._factors[site]
        inner = F.linear(x, first).chunk(len(seconds), -1)
        outputs = [F.linear(part, factor) for part, factor in zip(inner, seconds, strict=True)]
        return torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]


def _added(parts: Mapping[str, Sequence[Any]], site: str, x: Tensor) -> Tensor:
    """The outputs for x [..., in] of the adapters whose projections are fused at `site`, joined."""
    outputs = [part.lora_B[_ADAPTER](part.lora_A[_ADAPTER](x)) for part in parts[site]]
    return SCALE * (torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0])


def _projections(model: Qwen2) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.hf_views():
        path = name.removesuffix(".weight")
        if path != name and path.endswith(TARGETS):
            yield path, weight


def _tree(model: Qwen2) -> nn.Module:
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
