"""Which cards the kernels of the pinned wheels are for."""

from __future__ import annotations

import json
from pathlib import Path

import cubins
import pytest
from builders import ROOT

LIBRARY = {"sm": ["75", "80", "90a", "100f"], "ptx": ["80"]}


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("6.1", "none"),
        ("7.0", "none"),
        ("7.5", "cubin"),
        ("8.0", "cubin"),
        ("8.9", "cubin"),  # a later minor of 8.0
        ("9.0", "cubin"),  # exactly 90a
        ("10.3", "cubin"),  # the family 100f
        ("12.0", "PTX"),
    ],
)
def test_how_a_card_gets_its_kernels(capability: str, expected: str) -> None:
    assert cubins.way(LIBRARY, capability) == expected


def test_what_is_for_one_architecture_serves_no_other() -> None:
    assert cubins.way({"sm": ["100a"], "ptx": ["90a"]}, "10.3") == "none"


def test_gpus_are_found_in_a_page_and_other_words_are_not() -> None:
    page = "An RTX 4070, a GTX 10xx, T4 and H200, on Turing; B1 to B8, S11, A4 paper, L40S."
    assert list(cubins.named_gpus(page)) == [
        "RTX 4070",
        "GTX 10xx",
        "T4",
        "H200",
        "Turing",
        "L40S",
    ]
    assert cubins.card_of("RTX 4070") == "RTX 40xx"
    assert cubins.card_of("L40S") is None


def test_the_output_of_cuobjdump_is_read() -> None:
    elf = "ELF file    1: x.1.sm_75.cubin\nELF file    2: x.2.sm_100a.cubin\n"
    said = f"{elf}PTX file    1: x.1.sm_80.ptx\n"
    assert cubins.listed(said) == {"sm": ["75", "100a"], "ptx": ["80"]}


def test_pins_pages_code_and_facts_agree() -> None:
    assert cubins.faults() == []


def copied(place: Path, name: str, old: str, new: str) -> None:
    """A tree with the files that the check reads, one of them changed."""
    for each in (
        "requirements/cuda.txt",
        "swarm_node/policy/placement.py",
        "README.md",
        "docs/research/one-gpu.md",
    ):
        target = place / each
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / each).read_text()
        assert each != name or old in text
        target.write_text(text.replace(old, new) if each == name else text)


def test_another_wheel_asks_for_new_facts(tmp_path: Path) -> None:
    facts = json.loads(cubins.FACTS.read_text())
    sha256 = next(wheel["sha256"] for wheel in facts["wheels"] if wheel["name"] == "vllm")
    copied(tmp_path, "requirements/cuda.txt", sha256, "0" * 64)
    assert ["000000000000" in fault for fault in cubins.faults(tmp_path)] == [True]


def test_a_card_that_nobody_knows_and_one_that_is_taken_without_kernels_are_named(
    tmp_path: Path,
) -> None:
    copied(tmp_path, "README.md", "# swarm-node", "# swarm-node on an L40S")
    assert ["L40S" in fault for fault in cubins.faults(tmp_path)] == [True]
    copied(tmp_path, "swarm_node/policy/placement.py", "= (7, 5), (8, 0)", "= (7, 0), (8, 0)")
    assert ["capability 7.0" in fault for fault in cubins.faults(tmp_path)] == [True]
