"""Figures of each release (docs/research/releases.json), and those that fell since the one before.

Each figure is a ratio to a rival, by the command that measures it, and more is better. A fall of
more than a tenth must be named in the changelog's section of that release: tests/tools runs this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "research" / "releases.json"
CHANGELOG = ROOT / "CHANGELOG.md"
_KEPT = 0.9


def unnamed_falls(kept: Mapping[str, Any], changelog: str) -> list[str]:
    """Return the figures that fell by more than a tenth between the last two releases and are not
    in the changelog's section of the last. Not measured is not fallen."""
    *_, (_, before), (version, now) = kept["releases"].items()
    section = _section(changelog, version)
    return [
        f"{name}: {before[name]} to {now[name]}"
        for name in kept["figures"]
        if name in before and name in now and now[name] < _KEPT * before[name]
        if name not in section
    ]


def _section(changelog: str, version: str) -> str:
    """The changelog's section of a version. One that has none yet is the unreleased one."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)
    titles = f"[{version}]", "[Unreleased]"
    return next((each for title in titles for each in sections if each.startswith(title)), "")
