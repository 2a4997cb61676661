"""What tests of adapters need."""

from __future__ import annotations

import pytest
from builders import ROOT


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes that are adapted can be imported by name."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "adapted_classes")
