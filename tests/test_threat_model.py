"""The page of threats names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert named - there == set()


def test_every_threat_has_a_defence_a_test_and_says_what_remains() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count(" | ") == 4]
    rows = [row for row in rows if not row.startswith(("| who |", "| --- |"))]
    assert len(rows) > 25
    for row in rows:
        *_, stops, tests, remains = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert stops, row
        assert "`test_" in tests, row
        assert remains, row
