"""A temporary home, for a node or a member of one program."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class TemporaryHome:
    """A directory that is deleted by `cleanup`, or when the process that made it ends. A fork of
    that process deletes nothing: `tempfile.TemporaryDirectory` would, below a node that runs."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="swarm-node-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def cleanup(self) -> None:
        self._finalizer()


def _remove(path: Path, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)
