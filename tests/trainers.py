"""Trainers that tests start."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

from swarm_node.policy.training.processes.process import Trainer

_Kind = TypeVar("_Kind", bound=Trainer)


@contextlib.asynccontextmanager
async def closing(trainer: _Kind) -> AsyncGenerator[_Kind]:
    """Close `trainer` at the end, whatever happened."""
    try:
        yield trainer
    finally:
        await trainer.close()
