"""Writes checkpoints while training goes on.

Weights and moments change only in the optimizer's step. So a thread copies them during the forward
and backward pass of the next update, and the step waits for the end of the copy. Then the thread
writes the copy while updates go on (DataStates-LLM, arXiv 2406.10707).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

from swarm_node.errors import CheckpointError
from swarm_node.policy.memory.free import available_memory
from swarm_node.policy.training.checkpoints.checkpoint import TrainingState, save

_log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes one checkpoint at a time under `root`. A process that ends waits for its writer."""

    def __init__(self, root: Path, free: Callable[[], int] = available_memory) -> None:
        """`free` gives the bytes of main memory that a copy may be made in."""
        self._root = root
        self._free = free
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[Path] | None = None
        self._copy_event = Event()
        self._copy_event.set()
        self._fault: str | None = None
        self._has_warned = False

    def begin(self, state: TrainingState, *, copy: bool) -> Path:
        """Begin to write `state`, and return where it will be. With `copy`, its tensors are the
        trainer's own: it may change them after `wait_for_copy`. The earlier write is waited for.

        A copy may take half of the free memory, for the update beside it needs some too. Where that
        is too little, the state is written before this returns.

        Raises:
            CheckpointError: it was written at once, and that failed.
        """
        self._fault = self._settle() or self._fault
        if copy and 2 * state.bytes > self._free():
            if not self._has_warned:
                _log.warning(
                    "training waits while a checkpoint is written: its copy of %.1f GB needs twice "
                    "as much free memory, and %.1f GB are free",
                    state.bytes / 1e9,
                    self._free() / 1e9,
                )
            self._has_warned = True
            return save(self._root, state)
        if copy:
            self._copy_event.clear()
        self._writing = self._thread.submit(self._write, state, copy)
        return self._root / state.name

    def wait_for_copy(self) -> None:
        """Wait until no write reads the trainer's own tensors."""
        self._copy_event.wait()

    def fault(self) -> str | None:
        """Return the reason why a finished write failed; each failure is returned once."""
        if self._writing is not None and self._writing.done():
            self._fault = self._settle() or self._fault
        fault, self._fault = self._fault, None
        return fault

    def finish(self) -> None:
        """Wait for the write that was begun last.

        Raises:
            CheckpointError: it failed.
        """
        fault = self._settle()
        if fault is not None:
            raise CheckpointError(fault)

    def close(self) -> None:
        """Wait for the write, and end the thread."""
        self._thread.shutdown()

    def _write(self, state: TrainingState, copy: bool) -> Path:
        try:
            snapshot = state.copy_to_host() if copy else state
        except (MemoryError, RuntimeError) as error:  # torch's own, if memory is short after all
            raise CheckpointError(f"a checkpoint cannot be copied: {error}") from error
        finally:
            self._copy_event.set()
        return save(self._root, snapshot)

    def _settle(self) -> str | None:
        """Wait for the write that runs, if any, and return the reason of its failure. An error
        other than `CheckpointError` is a bug, and is raised here."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except CheckpointError as error:
            return str(error)
        return None
