"""What all tests need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True, scope="module")
def _fresh_logging() -> Iterator[None]:
    """Commands set up logging for a process, to the stderr that pytest closes after their test."""
    yield
    structlog.reset_defaults()
