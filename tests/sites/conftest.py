"""Tests in a bed run where one can be built, and are loudly not run elsewhere."""

from __future__ import annotations

import pytest
from sites.bed import why_not


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("sites") and (why := why_not()):
        pytest.skip(f"NOT RUN: {why}")
