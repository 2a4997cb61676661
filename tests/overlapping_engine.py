"""The engine's program on a CPU with async scheduling, which vLLM switches off there.

Scheduler, pauses and version spans are then those of a GPU. The model runner, which it shares with
a GPU, has vLLM's own placeholders for CUDA's events. Without them (`BARE` in the environment) an
engine with async scheduling dies in its start.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from swarm_node.policy.sampling.vllm.messages import Reply, Request
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.process import Child, serve_concurrently

BARE = "SWARM_TEST_NO_STREAMS"
_TESTS = Path(__file__).parent


def use_this_program(sampler: VllmSampler, **environment: str) -> None:
    """Let the next engine of `sampler` be this program."""
    path = os.pathsep.join([str(_TESTS), str(_TESTS.parent)])
    sampler._child = Child(
        "vLLM", __name__, Reply, concurrent=True, env={"PYTHONPATH": path, **environment}
    )


def _keep_async_scheduling() -> None:
    from vllm.platforms import current_platform

    platform = type(current_platform)
    check = platform.check_and_update_config

    def checked(config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = wanted

    platform.check_and_update_config = staticmethod(checked)


def _take_events() -> None:
    import torch

    event = torch.cuda.Event
    import vllm.v1.worker.cpu.shm  # noqa: F401 - replaces it

    torch.cuda.Event = event  # type: ignore[misc]


if __name__ in ("__main__", "__mp_main__"):  # the front, and its core, which is spawned
    _keep_async_scheduling()
    if BARE in os.environ:
        _take_events()

if __name__ == "__main__":
    from swarm_node.policy.sampling.vllm.worker import EngineWorker

    asyncio.run(serve_concurrently(EngineWorker().handle, Request))
