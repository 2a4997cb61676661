"""A figure that falls from one release to the next is named in the changelog."""

from __future__ import annotations

import json

import pytest
from release_figures import CHANGELOG, FIGURES, unnamed_falls

KEPT = {
    "figures": {"speed": "make bench", "size": "make bench"},
    "releases": {
        "1": {"speed": 9.0, "size": 9.0},
        "2": {"speed": 2.0, "size": 1.0},
        "3": {"speed": 1.7},
    },
}


@pytest.mark.parametrize(
    ("changelog", "fell"),
    [
        ("## [3]\n- faster\n## [2]\n- speed\n", ["speed: 2.0 to 1.7"]),
        ("## [3]\n- speed fell\n## [2]\n", []),
        ("## [Unreleased]\n- speed fell\n## [2]\n", []),
        ("# Changelog\n", ["speed: 2.0 to 1.7"]),
    ],
)
def test_only_the_section_of_the_last_release_names_its_falls(
    changelog: str, fell: list[str]
) -> None:
    assert unnamed_falls(KEPT, changelog) == fell


def test_a_tenth_is_no_fall() -> None:
    releases = {"2": {"speed": 2.0}, "3": {"speed": 1.8}}
    kept = {**KEPT, "releases": releases}
    assert not unnamed_falls(kept, "")


def test_the_kept_figures_fell_nowhere_that_the_changelog_does_not_name() -> None:
    kept = json.loads(FIGURES.read_text())
    for release in kept["releases"].values():
        assert release.keys() <= kept["figures"].keys()
    assert not unnamed_falls(kept, CHANGELOG.read_text())
