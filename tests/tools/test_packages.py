"""What the check of packages reads and compares, without asking an index."""

from __future__ import annotations

import pytest
from builders import ROOT
from packages import (
    PURE,
    SETS,
    Pin,
    committed,
    pins_of,
    requirements,
    unexpected_sources,
    versions_of,
)

LOCK = """
lock-version = "1.0"
[[packages]]
name = "Some_Thing"
version = "2.0"
wheels = [
    { url = "https://x/b.whl", hashes = { sha256 = "b" } },
    { url = "https://x/a.whl", hashes = { sha256 = "a" } },
]
[[packages]]
name = "ancient"
version = "0.1"
sdist = { url = "https://x/ancient.tar.gz", hashes = { sha256 = "c" } }
"""


def test_wheels_count_and_a_source_only_where_there_is_none() -> None:
    assert pins_of(LOCK) == [
        Pin("ancient", "0.1", ("c",), wheel=False),
        Pin("some-thing", "2.0", ("a", "b"), wheel=True),
    ]


def test_a_file_has_one_entry_for_what_all_pythons_take_alike() -> None:
    old, new = "1" * 64, "2" * 64
    by_python = {
        "3.11": [Pin("both", "1.0", (old,), True), Pin("one", "1.0", (old,), True)],
        "3.12": [Pin("both", "1.0", (new,), True), Pin("one", "2.0", (new,), True)],
    }
    written = requirements("cpu", by_python)
    assert committed(written) == [
        ("both==1.0", "", frozenset({old, new})),
        ("one==1.0", 'python_version == "3.11"', frozenset({old})),
        ("one==2.0", 'python_version == "3.12"', frozenset({new})),
    ]
    assert versions_of(written).splitlines()[1:] == [
        'one==1.0 ; python_version == "3.11"',
        'one==2.0 ; python_version == "3.12"',
    ]


def test_a_package_that_would_be_compiled_unsaid_is_found() -> None:
    pins = [
        Pin("varint", "1", (), wheel=False),
        Pin("pycosat", "1", (), wheel=False),
        Pin("numpy", "1", (), wheel=True),
    ]
    assert unexpected_sources(pins, ["reasoning-gym"]) == []
    assert unexpected_sources(pins, ["gpu"]) == ["pycosat"]
    assert unexpected_sources([Pin("fastecdsa", "1", (), wheel=False)], []) == ["fastecdsa"]


@pytest.mark.parametrize("name", SETS)
def test_every_committed_package_has_hashes_and_the_version_of_the_constraints(name: str) -> None:
    entries = committed((ROOT / "requirements" / f"{name}.txt").read_text())
    assert all(hashes for _, _, hashes in entries)
    pins = dict(requirement.split("==") for requirement, _, _ in entries)
    assert PURE & pins.keys() == PURE  # with the extra reasoning-gym
    constraints = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    for line in constraints:
        package, _, version = line.partition("==")
        assert pins.get(package, version).partition("+")[0] == version, package


def test_the_cuda_image_has_what_the_pages_promise_and_the_other_no_cuda() -> None:
    cuda, cpu = ((ROOT / "requirements" / f"{name}.txt").read_text() for name in ("cuda", "cpu"))
    for package in ("bitsandbytes", "vllm", "nvidia-cublas"):
        assert f"\n{package}==" in cuda
        assert f"\n{package}==" not in cpu
    assert "\ntorch==2.13.0+cpu" in cpu
