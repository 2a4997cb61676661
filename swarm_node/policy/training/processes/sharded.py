"""Several processes that train one policy, each on a GPU of one or several machines: torch's FSDP2.

Every process holds a part of each parameter, of its gradient and of its moments. A layer's
parameters are gathered for its forward and backward pass (ZeRO-3, arXiv 1910.02054; FSDP, arXiv
2304.11277). Gradients are summed, not averaged, because losses divide by the size of the whole
batch. An adapter's frozen base model is whole in every process; only the adapter's gradient is
exchanged.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import msgpack
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from swarm_node.errors import CheckpointError, ModelError
from swarm_node.policy.models.decoder.causal_lm import (
    CausalLM,
    ModelConfig,
    hf_parts,
    stored_weights,
)
from swarm_node.policy.models.loading import PolicyModel
from swarm_node.policy.placement import Placement
from swarm_node.policy.training.processes.launching import Rendezvous
from swarm_node.policy.training.update.ranks import Ranks

#: A rank may wait this long for a batch. The node kills a trainer whose reply takes too long.
_PATIENCE = timedelta(days=365)
#: For the store, whose host may still import torch.
_JOINING = timedelta(minutes=10)
_CHUNK_BYTES = 1 << 26

_log = logging.getLogger(__name__)


class Group(Ranks):
    """Several processes that were launched together."""

    def __init__(self, directory: Path) -> None:
        """Join the other processes through files in `directory`, which is new and private. A store
        on a port would accept commands from anybody who can connect, and is taken between hosts
        only. The launcher of each host sets RANK and WORLD_SIZE, which count its processes."""
        self._local, local_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        #: Meeting with the other hosts; None without any.
        self.discovery = Rendezvous.from_environment()
        self._budget = directory.parent / "token-budget"
        if self.discovery is None:
            self.index, self.count = self._local, local_size
            store: Store = FileStore(str(directory / "store"), local_size)
        else:
            self.index = self.discovery.index * local_size + self._local
            self.count = self.discovery.hosts * local_size
            store = _store(self.discovery, first=self.index == 0)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=store,
            rank=self.index,
            world_size=self.count,
            timeout=_PATIENCE,
        )

    def broadcast(self, message: bytes) -> bytes:
        """Return the first process's bytes in all processes."""
        size = torch.tensor([len(message)])
        dist.broadcast(size, 0)
        data = torch.empty(int(size), dtype=torch.uint8)
        if self.index == 0 and message:
            data.copy_(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        dist.broadcast(data, 0)
        return data.numpy().tobytes()

    def close(self) -> None:
        dist.destroy_process_group()

    def agree_on(self, placement: Placement) -> None:
        device = torch.device(placement.device)
        for trait in (device.type == "cuda", placement.half):
            if self.sums([trait])[0] not in (0, self.count):
                raise ModelError(
                    "the trainer's hosts compute on unlike devices",
                    "set run.device and training.dtype to what each of them can",
                )
        if device.type == "cuda":
            torch.cuda.set_device(device)

    def load_sharded(self, directory: Path, placement: Placement) -> CausalLM:
        model = _without_memory(ModelConfig.from_directory(directory)).float()
        self._shard(model, placement)
        model.to_empty(device=torch.device(placement.device))
        self.load(model, stored_weights(directory))
        return model

    def _shard(self, model: CausalLM, placement: Placement) -> None:
        mesh = init_device_mesh(placement.device.partition(":")[0], (self.count,))
        # Gathered in bfloat16 and not cast later: autograd would keep the casts.
        half_precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        precision = (
            half_precision if placement.half else MixedPrecisionPolicy(cast_forward_inputs=False)
        )
        for layer in [*model.blocks(), model]:
            fully_shard(layer, mesh=mesh, mp_policy=precision)
            assert isinstance(layer, FSDPModule)
            layer.set_gradient_divide_factor(1.0)
            layer.set_force_sum_reduction_for_comms(True)  # gloo has no other
        register_fsdp_forward_method(model, "whole")
        # Keys and values are such views; they are for sampling, and nothing here changes them.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")

    def local(self, parameter: nn.Parameter) -> nn.Parameter:
        if not isinstance(parameter, DTensor):
            return parameter
        return nn.Parameter(parameter.to_local().detach())

    def gradient(self, parameter: nn.Parameter) -> Tensor | None:
        gradient = parameter.grad
        return gradient.to_local() if isinstance(gradient, DTensor) else gradient

    def gather(self, parameter: nn.Parameter, part: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor) or not part.ndim:  # a count of steps has no parts
            return part
        return DTensor.from_local(
            part.detach(),
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        ).full_tensor()

    def cut(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor) or not tensor.ndim:
            return tensor
        first, last = self._rows(parameter)
        return tensor[first:last].to(parameter.device)

    @torch.no_grad()
    def load(self, model: PolicyModel, weights: Mapping[str, Tensor]) -> None:
        assert isinstance(model, CausalLM), "one process trains the others"
        if not isinstance(model.embedding, DTensor):
            model.load_hf_state(weights)
            return
        shapes = _without_memory(model.config)
        shapes.load_hf_state(weights)  # refuses what does not fit; without memory it copies nothing
        for (name, meta_tensor), parameter in zip(
            shapes.named_parameters(), model.parameters(), strict=True
        ):
            first, last = self._rows(parameter)
            shard = self.local(parameter)
            end = 0
            for hf_name, part in hf_parts(model.config, name, meta_tensor):
                begin, end = end, end + len(part)
                low, high = max(first, begin), min(last, end)
                if low < high:
                    shard[low - first : high - first] = weights[hf_name][low - begin : high - begin]

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if isinstance(parameter, DTensor):
                return  # FSDP summed them in the backward pass
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)

    def norm(self, value: Tensor) -> float:
        return float(value.full_tensor() if isinstance(value, DTensor) else value)

    def sums(self, values: Sequence[float]) -> list[float]:
        totals = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(totals)
        return [float(value) for value in totals]

    def agree_on_path(self, find: Callable[[], Path | None], root: Path) -> Path | None:
        path, fault = None, ""
        if self.index == 0:
            try:
                path = find()
            except CheckpointError as error:
                fault = str(error)
        files = sorted(path.iterdir()) if path else []
        sizes = {file.name: file.stat().st_size for file in files}
        message = self.broadcast(msgpack.packb([fault, path.name if path else "", sizes]))
        fault, name, sizes = msgpack.unpackb(message)
        if fault:
            raise CheckpointError(fault)
        if name and self.discovery is not None:
            self._copy(root / name, sizes)
        return root / name if name else None

    def _copy(self, directory: Path, sizes: Mapping[str, int]) -> None:
        """Copy the files in `directory` of the first process's host to each other host."""
        writes = bool(self.discovery and self.discovery.index) and not self._local
        if writes:
            shutil.rmtree(directory.parent, ignore_errors=True)
            directory.mkdir(parents=True)
        for name, size in sizes.items():
            path = directory / name if not self.index or writes else Path(os.devnull)
            with path.open("wb" if writes else "rb") as file:
                for _ in range(-(-size // _CHUNK_BYTES)):
                    part = self.broadcast(b"" if self.index else file.read(_CHUNK_BYTES))
                    if writes:
                        file.write(part)
        self.sums([0.0])  # a barrier: the others of a host read what its first has written

    def _rows(self, parameter: Tensor) -> tuple[int, int]:
        """The first row of this process's part, and the row after its last: FSDP deals rows as
        `torch.chunk` does."""
        rows = len(parameter)
        chunk_size = -(-rows // self.count)
        first = min(rows, self.index * chunk_size)
        return first, min(rows, first + chunk_size)

    def token_budget(self, budget: int) -> int:
        local_budget = (
            min(budget, int(self._budget.read_text())) if self._budget.exists() else budget
        )
        minimum = torch.tensor(local_budget)
        dist.all_reduce(minimum, dist.ReduceOp.MIN)
        return int(minimum)

    def shrink(self, token_budget: int) -> None:
        _log.error("out of memory: micro-batches of %d tokens after a restart", token_budget)
        temp_path = self._budget.with_suffix(f".{self.index}")
        temp_path.write_text(str(token_budget))
        temp_path.replace(self._budget)


def _store(rendezvous: Rendezvous, *, first: bool) -> TCPStore:
    """The store through which the processes of all hosts meet. The `first` one holds it, on one
    address: torch by itself would listen on all. Values are bytes that nothing unpickles."""
    address = (rendezvous.address, rendezvous.port)
    return TCPStore(
        *address,
        is_master=first,
        timeout=_JOINING,
        wait_for_workers=False,
        master_listen_fd=socket.create_server(address).detach() if first else None,
    )


def _without_memory(config: ModelConfig) -> CausalLM:
    with torch.device("meta"):
        return CausalLM(config, draw=False)
