"""A short campaign of `clocks.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns.clocks import HOUR, YEAR, jump


@pytest.mark.nightly(reason="a campaign")
@pytest.mark.slow(reason="two nodes live for a minute of virtual time")
@pytest.mark.parametrize(
    ("seconds", "nodes"), [(10 * YEAR, (0, 1)), (-HOUR, (0,))], ids=["years ahead", "an hour back"]
)
def test_nodes_share_again_after_a_clock_was_wrong(
    tmp_path: Path, seconds: float, nodes: tuple[int, ...]
) -> None:
    for before, _, after in jump(tmp_path, seconds, nodes):
        assert after > before > 0
