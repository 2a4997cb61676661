"""Makes vLLM's model of the trainer's memory: the frozen base of adapters, held once (vLLM 0.32).

The model is made without memory for its matrices. Then each weight is loaded as vLLM loads it, into
memory of its own. If the result has the trainer's bytes in the trainer's layout, the parameter
becomes a view of the trainer's memory, and its own is freed before the next weight is loaded.
Layers for adapters and CUDA graphs are made later, from the parameters as they are then. vLLM has a
loader of another process's memory too (model_loader/weight_cache/ipc_loader.py), which wants its
daemon.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.names import hf_parts
from swarm_node.policy.models.tensors import without_memory
from swarm_node.policy.sampling.vllm.engine import LOAD_FORMAT
from swarm_node.policy.weights.base import map_base


@register_model_loader(LOAD_FORMAT)
class BaseLoader(BaseModelLoader):  # type: ignore[misc]
    """Takes the base that the trainer shares in `directory`, an extra argument of vLLM's. The model
    gets `swarm_base`: bytes that are the trainer's, and bytes of own copies beside them."""

    def download_model(self, model_config: Any) -> None:
        """There is nothing to download."""

    def create_model(self, *args: Any, **kwargs: Any) -> Any:
        """The model, whose matrices have a shape and no memory."""
        with without_memory():
            return super().create_model(*args, **kwargs)

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """
        Raises:
            ModelError: the trainer's memory cannot be mapped, or is of another model.
        """
        directory = Path(self.load_config.model_loader_extra_config["directory"])
        # The engine sees the trainer's GPU as its first.
        base, _ = map_base(directory, ModelConfig.from_directory(Path(model_config.model)), gpu=0)
        self._place = _place(base.norm)
        self._sizes = dict(_adopt(model, base))

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """See `BaseModelLoader.load_model`."""
        model = super().load_model(*args, **kwargs)
        # Not before: vLLM may put something else in a weight's place after it is loaded.
        shared_names = {
            name for name, parameter in model.named_parameters() if _place(parameter) == self._place
        }
        shared_bytes = sum(size for name, size in self._sizes.items() if name in shared_names)
        model.swarm_base = [shared_bytes, sum(self._sizes.values()) - shared_bytes]
        return model


def _adopt(model: Any, base: CausalLM) -> Iterator[tuple[str, int]]:
    """vLLM's name and the bytes of every parameter, once it has its values: in the memory of `base`
    where that is laid out as vLLM wants it."""
    fused_names = {
        part: fused_name for fused_name, of in model.packed_modules_mapping.items() for part in of
    }
    parameters = dict(model.named_parameters())
    for own_name, weight in base.named_parameters():
        parts = dict(hf_parts(base.config, own_name, weight))
        name = ".".join(fused_names.get(word, word) for word in next(iter(parts)).split("."))
        parameter = parameters.pop(name, None)
        if parameter is None:
            raise ModelError(f"vLLM has no {name}", "take `--sampler torch`")
        parameter.data = torch.zeros(parameter.shape, dtype=parameter.dtype, device=weight.device)
        model.load_weights(parts.items())
        yield name, parameter.nbytes
        is_compatible = parameter.dtype == weight.dtype and parameter.shape == weight.shape
        if is_compatible and torch.equal(parameter, weight):
            parameter.data = weight.data
            if weight.device.type == "cpu":
                _multiply_unpacked(model, parameter)
    if parameters:
        raise ModelError(f"the trainer has no {min(parameters)}", "take `--sampler torch`")


def _multiply_unpacked(model: Any, parameter: Tensor) -> None:
    """Keep vLLM from packing the matrix. On a CPU it would pack a copy for oneDNN, and compute with
    that."""
    for module in model.modules():
        if getattr(module, "weight", None) is parameter and hasattr(module, "quant_method"):
            module.quant_method.process_weights_after_loading = _as_it_is


def _as_it_is(layer: Any) -> None:
    layer.cpu_linear = F.linear


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
