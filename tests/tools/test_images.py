"""The container images that a release refers to, and how long their first start may take."""

from __future__ import annotations

import re

import pytest
from builders import ROOT
from images import unpinned, unpinned_images

from swarm_node.policy.models.hub import ALIASES
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.sampling.vllm.engine import Deadlines

DIGEST = "@sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"ARG BASE=debian:12{DIGEST}\nFROM ${{BASE}} AS one\nFROM one AS two", []),
        ("ARG BASE=debian:12\nFROM ${BASE} AS one", ["debian:12"]),
        (f"FROM debian:12{DIGEST[:-1]}", [f"debian:12{DIGEST[:-1]}"]),
        ("# syntax=docker/dockerfile:1\n", ["docker/dockerfile:1"]),
        ("    image: caddy:2\n    image: swarm-node:cpu\n", ["caddy:2"]),
    ],
)
def test_an_image_without_a_digest_is_found(text: str, expected: list[str]) -> None:
    assert list(unpinned(text)) == expected


def test_a_release_refers_to_images_by_digest() -> None:
    assert unpinned_images(ROOT) == []


def test_a_first_start_of_the_largest_named_model_is_in_time() -> None:
    """At 100 Mbit/s for two bytes a weight, and then as long as the engine may take."""
    largest = max(shape.weight_count for name in ALIASES if (shape := known_shape(name)))
    needed = largest * 2 / (100e6 / 8) + Deadlines().start + Deadlines().first_sync
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    unit = (ROOT / "docker" / "swarm-node.service").read_text()
    (container,) = re.findall(r"--start-period=(\d+)m ", dockerfile)
    (service,) = re.findall(r"^TimeoutStartSec=(\d+)min$", unit, re.MULTILINE)
    assert needed <= int(container) * 60 == int(service) * 60
