"""Wheels of what `swarm-node join` and its tests need beside torch, for a machine without network.

    python benchmarks/gpu_wheels.py DIR [--python 3.12] [--without transformers grpcio …]

Versions are those that are installed here. A package without a wheel is built here: it must be pure
Python. Torch and what only it needs are the other machine's own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: Torch, what it alone needs, and what comes with it on machines that have a card.
_THERE = {"torch", "triton", "setuptools", "numpy", "scipy"}
_TESTS = ("pytest", "pytest-timeout", "hypothesis")
_SYSTEMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
_ABSENT = re.compile(r"No matching distribution found for ([\w.-]+)==")


def needed(without: set[str]) -> dict[str, str]:
    """Names and versions that `swarm-node` and its tests need, by what is installed here."""
    found: dict[str, str] = {}
    waiting = [*(distribution("swarm-node").requires or ()), *_TESTS]
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not wanted or name in found or name in without or name.startswith("nvidia-"):
            continue
        package = distribution(name)
        found[name] = package.version
        waiting += package.requires or ()
    return found


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def download(wanted: dict[str, str], directory: Path, python: str) -> list[str]:
    """Fetch the wheels; the packages that have none."""
    systems = [word for one in _SYSTEMS for word in ("--platform", f"{one}_x86_64")]
    target = ["--python-version", python, "--implementation", "cp", *systems]
    absent: list[str] = []
    while True:
        names = [f"{name}=={version}" for name, version in wanted.items() if name not in absent]
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(directory)]
        done = pip("download", *options, *target, *names)
        if done.returncode == 0:
            return absent
        lacking = {canonicalize_name(name) for name in _ABSENT.findall(done.stderr)}
        if not lacking & wanted.keys() - set(absent):
            raise SystemExit(done.stderr)
        absent += lacking


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--without", nargs="*", default=[], help="what the machine has already")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    wanted = needed(_THERE | {canonicalize_name(name) for name in arguments.without})
    for name in download(wanted, arguments.directory, arguments.python):
        source = f"{name}=={wanted[name]}"
        built = pip(
            "wheel", "--quiet", "--no-deps", "--wheel-dir", str(arguments.directory), source
        )
        if built.returncode:
            raise SystemExit(built.stderr)
    files = list(arguments.directory.glob("*.whl"))
    here = [file.name for file in files if not file.stem.endswith(("-any", "x86_64"))]
    if here:
        raise SystemExit(f"not for another machine: {', '.join(here)}")
    size = sum(file.stat().st_size for file in files)
    print(f"{len(files)} wheels, {size / 1e6:.1f} MB, in {arguments.directory}")


if __name__ == "__main__":
    main()
