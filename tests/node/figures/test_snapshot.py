"""The number of the form in which a node answers, for programs that read it."""

from __future__ import annotations

from builders import ROOT

from swarm_node.node.figures.snapshot import SCHEMA


def test_the_number_of_the_schema_is_the_one_that_is_promised() -> None:
    assert f'`"schema": {SCHEMA}`' in (ROOT / "docs" / "operations.md").read_text()
