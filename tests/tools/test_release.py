"""What a release checks of the archives that it built."""

from __future__ import annotations

from release import ALSO_IN_SDIST, sdist_faults, wheel_faults

TRACKED = [
    "swarm_node/config/model.py",
    "swarm_node/policy/models/tiny/model.safetensors",
    "swarm_node/page/static/page.js",
    "tests/config/test_sources.py",
    *ALSO_IN_SDIST,
]
PACKAGE = TRACKED[:3]


def test_a_wheel_has_the_tracked_files_of_the_package_and_no_others() -> None:
    metadata = ["swarm_node-0.1.0.dist-info/RECORD"]
    assert wheel_faults([*PACKAGE, *metadata], TRACKED) == []
    assert wheel_faults([PACKAGE[0], PACKAGE[2], "tests/config/test_sources.py"], TRACKED) == [
        f"the wheel lacks {PACKAGE[1]}",
        "the wheel has tests/config/test_sources.py",
    ]
    assert wheel_faults([*PACKAGE, "swarm_node/leftover.py"], TRACKED) == [
        "the wheel has swarm_node/leftover.py"
    ]


def test_an_sdist_has_what_an_installation_needs_and_no_tests() -> None:
    made = ["PKG-INFO", "pyproject.toml", "swarm_node.egg-info/SOURCES.txt"]
    assert sdist_faults([*PACKAGE, *ALSO_IN_SDIST, *made], TRACKED) == []
    lacking = [name for name in (*PACKAGE, *ALSO_IN_SDIST) if name != "constraints.txt"]
    assert sdist_faults([*lacking, "tests/config/test_sources.py"], TRACKED) == [
        "the sdist lacks constraints.txt",
        "the sdist has tests/config/test_sources.py",
    ]
