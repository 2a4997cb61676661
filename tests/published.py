"""The published test vectors, for tests of what the program makes of them."""

from __future__ import annotations

import json
from typing import Any

from builders import ROOT

VECTORS = ROOT / "tests" / "vectors"


def load(name: str) -> dict[str, Any]:
    """The content of a file of vectors."""
    content = json.loads((VECTORS / f"{name}.json").read_text())
    assert isinstance(content, dict)
    return content
