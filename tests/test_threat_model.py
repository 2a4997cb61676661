"""The pages of threats name tests that exist, and every entry point."""

from __future__ import annotations

import re

import pytest
from builders import ROOT

from coordinator.routes import ADMIN, PUBLIC
from swarm_node.p2p.transports.hivemind.calls import CALLS
from swarm_node.p2p.wire.protocols import PROTOCOLS

#: One worker parses the sources once.
pytestmark = pytest.mark.xdist_group("sources")

PAGE = "".join(
    (ROOT / "docs" / name).read_text() for name in ("threat-model.md", "threat-model-resources.md")
)


def test_every_test_that_the_page_names_exists() -> None:
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert named - there == set()


def test_every_entry_point_has_a_row_with_gate_price_and_test() -> None:
    section = PAGE.partition("## Entry points")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if "`test_" in line]
    assert [row for row in rows if len(row) != 4 or not all(map(str.strip, row))] == []
    ways = {f"`{protocol.name}`" for protocol in PROTOCOLS} | {f"table `{call}`" for call in CALLS}
    ways |= {f"coordinator `{route.access}`" for route in (*PUBLIC, *ADMIN)}
    assert {row[0] for row in rows} >= ways
