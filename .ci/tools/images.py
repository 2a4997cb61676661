"""Container images that files of this project refer to without a digest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_REFERRED = re.compile(r"^(?:ARG BASE=|FROM |# syntax=|\s*image: *)([^\s#]+)", re.MULTILINE)
_STAGE = re.compile(r"^FROM \S+ AS (\S+)", re.MULTILINE)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def unpinned_images(root: Path) -> list[str]:
    """A line for each image without a digest below docker/, with the command that gives it."""
    return [
        f"docker/{path.name}: {image} has no digest: docker buildx imagetools inspect {image}"
        for path in sorted((root / "docker").iterdir())
        if path.name == "Dockerfile" or path.suffix == ".yaml"
        for image in unpinned(path.read_text())
    ]


def unpinned(text: str) -> Iterator[str]:
    """Images of a Dockerfile or a Compose file that a registry may answer differently tomorrow."""
    own = {"${BASE}", *_STAGE.findall(text)}
    for image in _REFERRED.findall(text):
        if image not in own and not image.startswith("swarm-node:") and not _DIGEST.search(image):
            yield image
