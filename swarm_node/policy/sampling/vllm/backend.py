"""Loads new weights into a running vLLM engine from files in shared memory (vLLM 0.32).

vLLM's core process imports this module, and the import registers the backend. vLLM's layerwise
reload processes checkpoint tensors as at load time. Plain `load_weights` does not: on a CPU, packed
layers would refuse the tensors half-way.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

import swarm_node.policy.sampling.vllm.loader  # noqa: F401 - registers itself
from swarm_node.errors import ModelError
from swarm_node.policy.sampling.vllm.view import HeadPadding, read_padded

BACKEND = "swarm_file"


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Head sizes of the trainer's model and of the engine's."""

    own_head: int
    padded_head: int


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """A file with all weights under transformers' names, or a model's directory."""

    path: str


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):  # type: ignore[misc]
    """Reads each tensor directly onto the engine's device."""

    init_info_cls, update_info_cls = FileInit, FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        self._padding = HeadPadding(init_info.own_head, init_info.padded_head)

    def start_weight_update(self) -> None:
        self._places = places(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        self.model.load_weights(
            read_padded(Path(update_info.path), self._padding, str(self.device))
        )

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        _repack_tied_head(self.model)
        moved_weights = self._places.items() - places(self.model).items()
        if moved_weights:
            # CUDA graphs still read the old addresses. The canary runs none of them.
            raise ModelError(
                f"a reload moved weights, such as {min(moved_weights)[0]}: restart the engine"
            )
        if self.device.type == "cuda":
            # The reload held a whole embedding twice.
            torch.cuda.empty_cache()

    def shutdown(self) -> None:
        """There is nothing to release: an update leaves no state."""


def places(model: Any) -> dict[str, int]:
    """The address of every weight."""
    return {name: weight.data_ptr() for name, weight in model.named_parameters()}


def _repack_tied_head(model: Any) -> None:
    """Pack an output head that is tied to the embedding again. On a CPU it would keep a packed copy
    of the old weights, because the reload processes the embedding only."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


class WorkerExtension:
    """A mixin of vLLM's worker. Naming it makes vLLM import this module."""

    model_runner: Any

    def swarm_pid(self) -> int:
        """The process that holds the model."""
        return os.getpid()

    def swarm_base(self) -> list[int]:
        """See `EngineStarted`."""
        sizes: list[int] = getattr(self.model_runner.get_model(), "swarm_base", [0, 0])
        return sizes


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
