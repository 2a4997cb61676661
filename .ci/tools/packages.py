"""Pinned sets of packages, with hashes: `make lock-packages` and `make check-packages`.

    packages.py lock     resolves each set within constraints.txt, and writes requirements/*.txt
    packages.py check    resolves what is committed again, and compares; changes nothing

A set is resolved for each Python with wheels only, by their metadata: no wheel is fetched whole
from an index that answers range requests. What has no wheel is named below. The check also compares
kernels with cards (cubins.py), and looks for images without a digest (images.py).

uv reads its own variables, such as UV_DEFAULT_INDEX. TORCH_PAGE is the page of torch's CPU wheels,
by default that of the index in docker/Dockerfile.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import cubins
from images import unpinned_images
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "requirements"
PYTHONS = ("3.11", "3.12")
#: The image is Debian 12 (glibc 2.36); Ubuntu 22.04 has 2.35.
PLATFORM = "x86_64-manylinux_2_35"
#: Extras that an image installs, by its VARIANT.
SETS: Mapping[str, tuple[str, ...]] = {
    "cpu": ("reasoning-gym",),
    "cuda": ("gpu", "vllm", "reasoning-gym"),
}
#: Packages without a wheel that are pure Python: pip makes their wheels with setuptools alone.
PURE = frozenset({"prefetch-generator", "python-baseconv", "varint", "cellpylib", "zss"})
#: Packages without a wheel that a C compiler makes, by the extra that needs them.
COMPILED = {"reasoning-gym": frozenset({"pycosat"}), "libp2p": frozenset({"fastecdsa"})}


@dataclass(frozen=True, slots=True, order=True)
class Pin:
    """A `name`, its `version`, and the hashes of its wheels for one platform, or of its source."""

    name: str
    version: str
    hashes: tuple[str, ...]
    wheel: bool


def pins_of(lock: str) -> list[Pin]:
    """The packages of a pylock.toml (PEP 751) for one platform."""
    found = []
    for package in tomllib.loads(lock)["packages"]:
        wheels = package.get("wheels", [])
        hashes = sorted(file["hashes"]["sha256"] for file in wheels or [package["sdist"]])
        name = canonicalize_name(package["name"])
        found.append(Pin(name, package["version"], tuple(hashes), bool(wheels)))
    return sorted(found)


def requirements(name: str, by_python: Mapping[str, Iterable[Pin]]) -> str:
    """The file of a set. What not all Pythons take alike has a marker."""
    versions: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for python, pins in by_python.items():
        for pin in pins:
            versions.setdefault((pin.name, pin.version), {})[python] = pin.hashes
    lines = [
        f"# The set of `{name}` for {' and '.join(by_python)} on Linux x86-64: make lock-packages",
    ]
    for (package, version), hashes in sorted(versions.items()):
        marks = [f'python_version == "{python}"' for python in hashes]
        marker = "" if len(hashes) == len(by_python) else f" ; {' or '.join(marks)}"
        each = [f"    --hash=sha256:{one}" for one in sorted(set().union(*hashes.values()))]
        lines.append(" \\\n".join((f"{package}=={version}{marker}", *each)))
    return "\n".join(lines) + "\n"


def committed(text: str) -> list[tuple[str, str, frozenset[str]]]:
    """(requirement, marker, hashes) of each package of a file that `requirements` wrote."""
    found = []
    for entry in text.replace(" \\\n", " ").splitlines():
        if not entry.startswith("#"):
            requirement, _, marker = entry.partition("--hash")[0].strip().partition(" ; ")
            hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            found.append((requirement, marker, hashes))
    return found


def versions_of(text: str) -> str:
    """Constraints without hashes: what a file of a set says of versions."""
    entries = committed(text)
    return "".join(f"{one}{f' ; {marker}' if marker else ''}\n" for one, marker, _ in entries)


def unexpected_sources(pins: Iterable[Pin], extras: Iterable[str]) -> list[str]:
    """Packages of a set without a wheel, of which nobody said that they need no compiler."""
    known = PURE.union(*(COMPILED.get(extra, frozenset()) for extra in extras))
    return sorted(pin.name for pin in pins if not pin.wheel and pin.name not in known)


def other_extras(project: str) -> list[str]:
    """Extras of the project that no set has: not all are pinned, but all must resolve."""
    named = set(tomllib.loads(project)["project"]["optional-dependencies"])
    return sorted(named.difference(*SETS.values()))


def resolve(extras: Iterable[str], python: str, *constraints: Path, cpu: bool = False) -> list[Pin]:
    """Pins of the program with `extras` for one Python, within `constraints`.

    Raises:
        SystemExit: no set of versions fits, or one lacks a wheel; uv says why.
    """
    sources = PURE.union(*(COMPILED.get(extra, frozenset()) for extra in extras))
    from_cpu = ("--find-links", _torch_page()) if cpu else ()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "pylock.toml"
        _uv(
            *("pip", "compile", ROOT / "pyproject.toml", "--format", "pylock.toml"),
            *(word for extra in extras for word in ("--extra", extra)),
            *(word for file in constraints for word in ("--constraints", file)),
            *("--python-version", python, "--python-platform", PLATFORM),
            *(
                "--only-binary",
                ":all:",
                *(w for one in sorted(sources) for w in ("--no-binary", one)),
            ),
            *("--no-header", "--no-annotate", "--quiet", "--output-file", out, *from_cpu),
        )
        return pins_of(out.read_text())


def _torch_page() -> str:
    (index,) = re.findall(
        r"^ARG TORCH_INDEX=(\S+)$", (ROOT / "docker/Dockerfile").read_text(), re.M
    )
    return os.environ.get("TORCH_PAGE") or f"{index}/torch/"


def _uv(*words: object) -> None:
    command = [str(Path(sys.executable).with_name("uv")), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:4])} … fails:\n{done.stderr}")


def _resolved(name: str, *constraints: Path) -> str:
    by_python = {}
    for python in PYTHONS:
        pins = resolve(SETS[name], python, *constraints, cpu=name == "cpu")
        if unexpected := unexpected_sources(pins, SETS[name]):
            raise SystemExit(f"{name}, {python}: no wheel of {', '.join(unexpected)}")
        by_python[python] = pins
        print(f"{name}, Python {python}: {len(pins)} packages", flush=True)
    return requirements(name, by_python)


def lock() -> None:
    for name in SETS:
        (PLACE / f"{name}.txt").write_text(_resolved(name, ROOT / "constraints.txt"))


def check() -> list[str]:
    """Differences from the committed files, a line each."""
    faults = []
    for name in SETS:
        now = (PLACE / f"{name}.txt").read_text()
        with tempfile.TemporaryDirectory() as place:
            pinned = Path(place) / "pinned.txt"
            pinned.write_text(versions_of(now))
            then = _resolved(name, ROOT / "constraints.txt", pinned)
        lines = difflib.unified_diff(
            now.splitlines(), then.splitlines(), f"{name}.txt", "resolved", n=1
        )
        faults += [line.rstrip() for line in lines]
    others = other_extras((ROOT / "pyproject.toml").read_text())
    for python in PYTHONS:
        found = unexpected_sources(resolve(others, python, ROOT / "constraints.txt"), others)
        faults += [
            f"{name} has no wheel for {python}, and nobody says what compiles it" for name in found
        ]
    print(f"wheels for {' and '.join(PYTHONS)}: {', '.join(others)}", flush=True)
    return faults


def main(command: str) -> None:
    if command == "lock":
        lock()
        return
    faults = [*check(), *cubins.faults(), *unpinned_images(ROOT)]
    for line in cubins.table():
        print(line)
    if faults:
        raise SystemExit("\n".join(faults))
    print("the committed sets are what resolves, and every card that the pages name is as they say")


if __name__ == "__main__":
    main(sys.argv[1])
