"""The engine's program on a CPU with async scheduling, which vLLM switches off there.

Scheduler, pauses and version spans are then those of a GPU. The model runner, which it shares with
a GPU, asks CUDA for streams and events that put copies in order; copies of a CPU are in order.
Without them (`BARE` in the environment) the engine's core dies in its start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
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


class _InOrder:
    """A stream or an event of a device that does one thing after the other."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def wait_stream(self, _: Any) -> None: ...


@contextmanager
def _on(_: Any) -> Iterator[None]:
    yield


def _keep_async_scheduling() -> None:
    from vllm.platforms import current_platform

    platform = type(current_platform)
    check = platform.check_and_update_config

    def checked(config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = wanted

    platform.check_and_update_config = staticmethod(checked)


def _give_streams() -> None:
    import torch

    torch.cuda.Event = torch.cuda.Stream = _InOrder  # type: ignore[assignment, misc]
    torch.cuda.current_stream = _InOrder  # type: ignore[assignment]
    torch.cuda.stream = _on  # type: ignore[assignment]


if __name__ in ("__main__", "__mp_main__"):  # the front, and its core, which is spawned
    _keep_async_scheduling()
    if BARE not in os.environ:
        _give_streams()

if __name__ == "__main__":
    from swarm_node.policy.sampling.vllm.worker import EngineWorker

    asyncio.run(serve_concurrently(EngineWorker().handle, Request))
