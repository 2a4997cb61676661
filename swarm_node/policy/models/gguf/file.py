"""GGUF files as people see them: which names mean one, and what is told of it. Cheap to import."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Dequantising(NamedTuple):
    """A file that is being dequantised: bytes that are written of all that will be, and where."""

    file: Path
    encodings: tuple[str, ...]
    written: int
    size: int
    cache: Path

    def __str__(self) -> str:
        progress = f"{self.written / 1e6:,.0f} of " if self.written else ""
        return f"dequantising {self.file.name}: {progress}{self.size / 1e6:,.0f} MB to {self.cache}"


class WaitingForLock(NamedTuple):
    """A file that another process is dequantising."""

    file: Path

    def __str__(self) -> str:
        return f"waiting for another process, which is dequantising {self.file.name}"


class Quantised(NamedTuple):
    """What a directory's weights were before: the `file`'s name and the encodings of its matrices,
    the one with the most weights first."""

    file: str
    encodings: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"weights dequantised from {self.file} ({', '.join(self.encodings)}): scores are "
            "those of the quantised weights"
        )


def is_gguf(name: str) -> bool:
    """Check that a model's `name` means a GGUF file, whether it is there or not."""
    return name.lower().endswith(".gguf") and not Path(name).expanduser().is_dir()
