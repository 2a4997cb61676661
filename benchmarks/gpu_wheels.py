"""Wheels of what `swarm-node join` and its tests need beside torch, for a machine without network.

    python benchmarks/gpu_wheels.py DIR

gpu_call.py, which fills a folder for a whole call, begins with these. Versions are those that are
installed here. A package without a wheel is built here: it must be pure Python. Packages that
gpu-machine.txt calls the other machine's own are left out.
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

#: The other machine's Python, and its packages.
PYTHON = "3.12"
MACHINE = Path(__file__).with_name("gpu-machine.txt")
#: The line that ends the packages of which no wheel travels.
DIVIDER = "# Wheels come first from here on."
_TESTS = ("pytest", "pytest-timeout", "hypothesis")
_SYSTEMS = (
    *("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17"),
    *("manylinux2014", "manylinux1"),
)
_ABSENT = re.compile(r"No matching distribution found for ([\w.-]+)==")


def pins(text: str) -> dict[str, str]:
    """Names and versions of a file of requirements of the form NAME==VERSION."""
    versions: dict[str, str] = {}
    for line in text.splitlines():
        if requirement_text := line.partition("#")[0].strip():
            requirement = Requirement(requirement_text)
            (pin,) = requirement.specifier
            versions[canonicalize_name(requirement.name)] = pin.version
    return versions


def machine_packages(text: str) -> dict[str, str]:
    """The part of gpu-machine.txt of which no wheel travels."""
    above, divider, _ = text.partition(f"\n{DIVIDER}\n")
    if not divider:
        raise ValueError(f"{MACHINE.name} lacks the line: {DIVIDER}")
    return pins(above)


def required_packages(without: set[str]) -> dict[str, str]:
    """Names and versions that `swarm-node` and its tests need, by what is installed here."""
    versions: dict[str, str] = {}
    waiting = [*(distribution("swarm-node").requires or ()), *_TESTS]
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        is_required = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not is_required or name in versions or name in without or name.startswith("nvidia-"):
            continue
        package = distribution(name)
        versions[name] = package.version
        waiting += package.requires or ()
    return versions


def wanted() -> dict[str, str]:
    """Names and versions of the wheels for the machine of gpu-machine.txt."""
    return required_packages(set(machine_packages(MACHINE.read_text())))


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def download(versions: dict[str, str], directory: Path) -> list[str]:
    """Fetch the wheels; the packages that have none."""
    systems = [word for one in _SYSTEMS for word in ("--platform", f"{one}_x86_64")]
    target = ["--python-version", PYTHON, "--implementation", "cp", *systems]
    absent: list[str] = []
    while True:
        names = [f"{name}=={version}" for name, version in versions.items() if name not in absent]
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(directory)]
        pip_process = pip("download", *options, *target, *names)
        if pip_process.returncode == 0:
            return absent
        lacking = {canonicalize_name(name) for name in _ABSENT.findall(pip_process.stderr)}
        if not lacking & versions.keys() - set(absent):
            raise SystemExit(pip_process.stderr)
        absent += lacking


def gather(versions: dict[str, str], directory: Path) -> None:
    """Put a wheel of each package into the directory, built here where there is none."""
    for name in download(versions, directory):
        source = f"{name}=={versions[name]}"
        built = pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), source)
        if built.returncode:
            raise SystemExit(built.stderr)
    stems = [file.stem for file in directory.glob("*.whl")]
    here = [stem for stem in stems if not stem.endswith(("-any", "x86_64"))]
    if here:
        raise SystemExit(f"not for another machine: {', '.join(here)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    gather(wanted(), directory)
    files = list(directory.glob("*.whl"))
    size = sum(file.stat().st_size for file in files)
    print(f"{len(files)} wheels, {size / 1e6:.1f} MB, in {directory}")


if __name__ == "__main__":
    main()
