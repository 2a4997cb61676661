"""What tests of several rooms of the environments need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """`importable(name, source)`: a module that this process and its children can import."""

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text(source)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return write
