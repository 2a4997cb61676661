"""The trainer as the node sees it: asynchronous, and in a process of its own.

Training may run out of memory, or a bad driver may kill it. In a child process that ends nothing
else, and the child starts again from its last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from swarm_node.errors import ChildError, WeightsError
from swarm_node.policy.experience.batch import Batch, pack_batch
from swarm_node.policy.training.processes.launching import (
    RANK_MODULE,
    launch_ranks,
    rank_environment,
)
from swarm_node.policy.training.processes.messages import (
    Reply,
    Request,
    StartTrainer,
    StoreCheckpoint,
    Stored,
    TrainerStarted,
    Update,
    Updated,
    UpdateResult,
)
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.weights.device import GROWING
from swarm_node.policy.weights.store import WeightStore
from swarm_node.process import Child, ReportedError

_PATIENCE = 600.0
#: For the other hosts, which themselves wait without end.
_HOSTS_PATIENCE = 120.0
_Reply = TypeVar("_Reply", bound=msgspec.Struct)


class FurtherHosts(Protocol):
    """Admission of the other hosts of a trainer that has several."""

    @property
    def complete(self) -> bool:
        """Check that no host was lost since `gather`."""
        ...

    async def gather(
        self, patience: float, on_lost: Callable[[], Awaitable[object]]
    ) -> dict[str, str]:
        """Wait until all hosts are there, and tell them to begin. `on_lost` is called when one
        goes. Returns variables for the node's own processes.

        Raises:
            ChildError: they were not there within `patience` seconds.
        """
        ...

    async def close(self) -> None:
        """Tell the hosts that the node ends."""
        ...


class Trainer(Protocol):
    """The interface between a node and its trainer."""

    @property
    def version(self) -> int:
        """The newest policy version published; it never falls."""
        ...

    @property
    def extra(self) -> Mapping[str, Any]:
        """The `extra` of the checkpoint that was resumed; empty without one."""
        ...

    async def start(self) -> tuple[Path, int]:
        """Resume from the newest valid checkpoint, or else from the base model. Returns the file
        with the weights and their version. After an error the state in memory is dropped: the
        weights fall back to the checkpoint, and the version does not.

        Raises:
            ChildError, ModelError, CheckpointError: it cannot start from either.
            WeightsError: the weights cannot be written for the sampler.
        """
        ...

    async def update(self, batch: Batch) -> UpdateResult:
        """One step on `batch`; see `TrainerCore.update`.

        Raises:
            ChildError, ModelError: it failed; call `start` before anything else.
            WeightsError: the new weights cannot be written for the sampler.
        """
        ...

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        """Store the current state with `extra`, a small map of plain values. With `wait`, the
        checkpoint is on the disk when this returns. Without, it is written while updates go on, and
        an update's result tells if that failed. One is written at a time: this first waits for the
        write before.

        Raises:
            ChildError, CheckpointError: it could not be written.
        """
        ...

    async def close(self) -> None:
        """Stop, and remove the directory of the published weights."""
        ...


class ProcessTrainer:
    """A trainer in a supervised child process; `weights` is its private directory."""

    def __init__(
        self,
        model_dir: Path,
        checkpoints: Path,
        weights: Path,
        settings: TrainerSettings,
        *,
        digest: bytes | None = None,
        threads: int = 1,
        patience: float = _PATIENCE,
        hosts: FurtherHosts | None = None,
    ) -> None:
        """`digest` is the sha256 of the model in `model_dir`; without one, the child hashes it.
        `patience` in seconds: a child that is silent for longer is killed. `hosts` are those of a
        trainer that has several."""
        self._start = StartTrainer(
            str(model_dir), str(checkpoints), str(weights), settings.plain(), threads, digest
        )
        self._weights = weights
        self._patience = patience
        self._hosts = hosts
        self._version = 0
        self._extra: dict[str, Any] = {}
        # Some of the libraries under torch read their number of threads only when they are loaded.
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        limits["HF_HUB_OFFLINE"] = "1"  # all files are here by now
        if settings.device != "cpu":
            limits |= _allocator(settings.published in ("ipc", "shared"))
        if settings.processes * settings.hosts == 1:
            self._child = Child(
                "trainer", "swarm_node.policy.training.processes.worker", Reply, env=limits
            )
        else:
            launch = partial(launch_ranks, weights, settings.processes)
            self._child = Child(
                "trainer", RANK_MODULE, Reply, env={**limits, **rank_environment()}, launch=launch
            )

    @property
    def version(self) -> int:
        return self._version

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._extra

    @property
    def pid(self) -> int | None:
        """The child's process id; None when it is not running."""
        return self._child.pid

    async def start(self) -> tuple[Path, int]:
        await self._launch()
        request = msgspec.structs.replace(self._start, at_least=self._version)
        reply = await self._ask(request, TrainerStarted)
        self._version, self._extra = reply.version, reply.extra
        return Path(reply.weights), self._version

    async def _launch(self) -> None:
        if self._hosts is None:
            await self._child.start()
            return
        end = partial(self._child.stop, grace=0.0)
        await end()
        await self._child.start(env=await self._hosts.gather(_HOSTS_PATIENCE, end))
        if not self._hosts.complete:  # one was lost before the child ran
            await end()
            raise ChildError("a trainer host went while the trainer started")

    async def update(self, batch: Batch) -> UpdateResult:
        reply = await self._ask(Update(pack_batch(batch)), Updated)
        self._version = reply.stats.version
        return UpdateResult(reply.stats, Path(reply.weights), reply.unstored)

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        return Path((await self._ask(StoreCheckpoint(dict(extra), wait), Stored)).path)

    async def _ask(self, request: Request, reply_type: type[_Reply]) -> _Reply:
        try:
            return await self._child.call(request, reply_type, patience=self._patience)
        except ReportedError as error:
            if error.kind == WeightsError.__name__:  # a restart would not help
                raise WeightsError(error.reason) from error
            raise

    async def close(self) -> None:
        await self._child.stop()
        if self._hosts is not None:
            await self._hosts.close()
        WeightStore(self._weights).close()


def _allocator(is_shared: bool) -> dict[str, str]:
    """Settings of the allocator through which the child's torch gets memory from a GPU, under both
    names that torch reads. By default segments grow, and those shared (`is_shared`) between
    processes are taken apart from them (`shareable`). An owner's settings stay as they are, because
    torch cannot change one of several; but memory that is shared never grows."""
    names = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    setting = next((os.environ[name] for name in names if name in os.environ), "")
    if is_shared and setting:
        setting += ",expandable_segments:False"  # the last counts
    return dict.fromkeys(names, setting or GROWING)
