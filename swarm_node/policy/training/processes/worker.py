"""The trainer with its checkpoints and published weights, and the program of its process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.policy.experience.batch import Batch, unpack_batch
from swarm_node.policy.memory.footprint import adapter_count
from swarm_node.policy.models.tensors import on_host
from swarm_node.policy.training.checkpoints.checkpoint import read, remove_leftovers
from swarm_node.policy.training.checkpoints.checkpoint_writer import CheckpointWriter
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.training.processes.launching import Rendezvous
from swarm_node.policy.training.processes.messages import (
    Reply,
    Request,
    StartTrainer,
    Stored,
    TrainerStarted,
    Update,
    Updated,
    UpdateResult,
)
from swarm_node.policy.training.update.ranks import ALONE, Ranks
from swarm_node.policy.training.update.settings import ADAPTERS, TrainerSettings
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.canary import text_ids
from swarm_node.policy.weights.device import DeviceBuffers, in_place
from swarm_node.policy.weights.store import WeightStore
from swarm_node.process import serve


class TrainerHost:
    """A `TrainerCore` that resumes from checkpoints and publishes every new version."""

    def __init__(
        self,
        model_dir: Path,
        checkpoints: Path,
        weights: Path,
        settings: TrainerSettings,
        *,
        digest: bytes | None = None,
        at_least: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        ranks: Ranks = ALONE,
    ) -> None:
        """Load the newest valid checkpoint, or else the base model, and publish it. All `ranks`
        make every call; only the first writes files. For `digest` see `TrainerCore`.

        Raises:
            ModelError: the base model cannot be trained here.
            CheckpointError: checkpoints exist but cannot be used.
        """
        self._checkpoints = checkpoints
        self._store = WeightStore(weights)
        self._text = text_ids(model_dir)
        self._ranks, self._leads = ranks, not ranks.index
        share = weights if settings.published == "shared" else None
        self.core = TrainerCore(model_dir, settings, clock, ranks, digest=digest, share=share)
        self._writer = CheckpointWriter(checkpoints)
        self.core.before_step = self._writer.wait_for_copy
        self._buffers: DeviceBuffers | None = None
        if settings.published == "ipc" and self._leads:
            self._buffers = DeviceBuffers(self.core.placement)
        #: The caller's values in the checkpoint.
        self.extra: dict[str, Any] = {}
        #: The generator state of the checkpoint; empty when there was none.
        self.rng = b""
        if self._leads:
            remove_leftovers(checkpoints)
        path = ranks.agree_on_path(partial(newest_valid, checkpoints), checkpoints)
        if path is not None:
            state = read(path)
            self.core.restore(state)
            self.extra, self.rng = dict(state.extra), state.rng
        # After a crash the weights are those of the checkpoint, but the version never falls: peers
        # refuse a version below one that they have seen as a replay, and staleness is a difference
        # of versions.
        self.core.version = max(self.core.version, at_least)
        self.weights_path = self._publish()

    def update(self, batch: Batch) -> UpdateResult:
        """See `TrainerCore.update`."""
        stats = self.core.update(batch)
        if stats.skipped is None:
            self.weights_path = self._publish()
        if self.core.settings.gives_back:
            torch.cuda.empty_cache()
        return UpdateResult(stats, self.weights_path, self._writer.fault())

    def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        """Store the current state and `extra`, a small map of plain values; see
        `process.Trainer.checkpoint`.

        Raises:
            CheckpointError: the disk refused, or `extra` is too large.
        """
        rng = bytes(torch.get_rng_state().numpy())
        is_single = self._ranks.count == 1
        state = self.core.state(rng, extra, in_place if is_single else on_host)
        if not self._leads:
            return self._checkpoints
        path = self._writer.begin(state, copy=is_single)
        if wait:
            self._writer.finish()
        return path

    def close(self) -> None:
        """Wait for the checkpoint that is being written."""
        self._writer.close()

    def _publish(self) -> Path:
        core, store = self.core, self._store
        canary: dict[str, str] = {}
        if core.settings.canary:
            canary = measure_canary(core.model, self._text).to_metadata()  # all ranks together
        if core.adapter is not None and core.settings.published in ADAPTERS:
            save = partial(core.adapter.save, metadata=canary)
            if not self._leads:
                return store.directory
            need = 4 * adapter_count(core.model.config, core.settings.lora_rank)
            return store.publish_adapter(core.version, need, save)
        weights = core.weights(in_place) if core.settings.published == "ipc" else core.weights()
        if not self._leads:
            return store.directory
        if self._buffers is not None:
            weights, canary = {}, canary | self._buffers.put(weights)
        return store.publish(core.version, weights, canary)


def elsewhere(request: Request, place: Rendezvous) -> Request:
    """`request` with the paths of the host of `place`, which is not the node's."""
    if not isinstance(request, StartTrainer):
        return request
    directory = Path(place.directory)
    return msgspec.structs.replace(
        request,
        model_dir=place.model_dir,
        checkpoints=str(directory / "checkpoints"),
        weights=str(directory),
    )


class TrainerWorker:
    """Answers the requests of `ProcessTrainer`."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._host: TrainerHost | None = None
        self._ranks = ranks

    def handle(self, request: Request) -> Reply:
        """The reply to one request.

        Raises:
            SwarmNodeError, ValueError: it cannot be done; the next one may be.
        """
        if isinstance(request, StartTrainer):
            return self._start(request)
        if self._host is None:
            raise ValueError("the first request must be Start")
        if isinstance(request, Update):
            result = self._host.update(unpack_batch(request.batch))
            return Updated(result.stats, str(result.weights), result.checkpoint_fault)
        return Stored(str(self._host.checkpoint(request.extra, wait=request.wait)))

    def _start(self, request: StartTrainer) -> TrainerStarted:
        settings = TrainerSettings.from_plain(request.settings)
        torch.set_num_threads(request.threads)
        torch.manual_seed(settings.seed)
        host = TrainerHost(
            Path(request.model_dir),
            Path(request.checkpoints),
            Path(request.weights),
            settings,
            digest=request.digest,
            at_least=request.at_least,
            ranks=self._ranks,
        )
        if host.rng:
            torch.set_rng_state(torch.from_numpy(np.frombuffer(host.rng, np.uint8).copy()))
        self._host = host
        return TrainerStarted(host.core.version, str(host.weights_path), host.extra)


if __name__ == "__main__":
    serve(TrainerWorker().handle, Request)
