"""Kernels of the pinned CUDA wheels beside the GPUs that the pages name: `make cubins`.

    cubins.py    fetches the wheels (1.4 GB), lists their kernels (4 GB of memory), and writes
                 requirements/cubins.json and the table of docs/engines.md

NVIDIA's cuobjdump lists the cubins (machine code) and PTX (which the driver compiles) of a library.
The check of packages compares hashes, GPUs and the table with the facts file, and fetches nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT / "requirements" / "cubins.json"
PAGE = ROOT / "docs" / "engines.md"
WHEELS = ("torch", "vllm", "bitsandbytes")
PYTHONS = ("3.11", "3.12")
#: Architectures of a library's cubins (`sm`) and PTX (`ptx`).
Kernels = Mapping[str, list[str]]
#: Libraries that a node computes with, and their names in the table. bitsandbytes takes the one of
#: torch's CUDA.
LIBRARIES = {
    "torch/lib/libtorch_cuda.so": "torch",
    "vllm/_C_stable_libtorch.abi3.so": "vLLM",
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": "vLLM's FlashAttention 2",
    "bitsandbytes/libbitsandbytes_cuda130.so": "bitsandbytes",
}
#: Compute capability by what the pages call a GPU or its family (NVIDIA's list of CUDA GPUs).
GPUS: Mapping[str, str] = {
    "GTX 10xx": "6.1",
    "V100": "7.0",
    "RTX 20xx": "7.5",
    "T4": "7.5",
    "Turing": "7.5",
    "Ampere": "8.0",
    "A100": "8.0",
    "RTX 30xx": "8.6",
    "RTX 40xx": "8.9",
    "Hopper": "9.0",
    "H100": "9.0",
    "H200": "9.0",
    "RTX 50xx": "12.0",
}
_NAMED = re.compile(
    r"\b(?:[GR]TX \d{2}(?:xx|\d0)|Turing|Ampere|Hopper|Volta|Pascal|Blackwell"
    r"|[ABHLPTV]\d{1,3}0?S?)\b"
)
#: Names of this form that are no GPUs.
_NO_GPUS = re.compile(r"^(?:[BSP]\d|A\d|T[0-35-9]|L\d|H\d|V\d|B\d\d)$")
_TABLE = re.compile(r"(<!-- cubins -->\n).*?(<!-- /cubins -->)", re.DOTALL)


def way(library: Kernels, capability: str) -> str:
    """Return how a GPU gets kernels of a library: "cubin", "PTX" (which the driver compiles) or
    "none". A cubin runs on later minors of its major; PTX on all later GPUs. What is built for
    one architecture alone (90a) counts for that one, what is for a family (100f) for its major."""
    major, minor = map(int, capability.split("."))
    for arch in library["sm"]:
        digits = arch.rstrip("af")
        arch_major, arch_minor = int(digits[:-1]), int(digits[-1])
        is_specific = arch.endswith("a")
        if arch_major == major and (arch_minor == minor if is_specific else arch_minor <= minor):
            return "cubin"
    ptx_archs = (name for name in library["ptx"] if name.isdigit())
    if any((int(name[:-1]), int(name[-1])) <= (major, minor) for name in ptx_archs):
        return "PTX"
    return "none"


def card_of(name: str) -> str | None:
    """The key of `GPUS` for what a page calls a GPU: "RTX 4070" is one of "RTX 40xx"."""
    for key in (name, re.sub(r"^([GR]TX \d\d)\d0$", r"\1xx", name)):
        if key in GPUS:
            return key
    return None


def named_gpus(text: str) -> Iterator[str]:
    """Names of GPUs and of their families in a page."""
    return (name for name in _NAMED.findall(text) if not _NO_GPUS.match(name))


def table() -> list[str]:
    """Ways of all GPUs, as the page shows them."""
    libraries = _libraries()
    lines = ["| capability | GPUs | " + " | ".join(LIBRARIES.values()) + " |"]
    lines.append("|" + " --- |" * (len(LIBRARIES) + 2))
    for capability in sorted(set(GPUS.values()), key=float):
        gpus = ", ".join(name for name, version in GPUS.items() if version == capability)
        cells = " | ".join(way(libraries[path], capability) for path in LIBRARIES)
        lines.append(f"| {capability} | {gpus} | {cells} |")
    return lines


def with_table(page: str) -> str:
    """The page with its table written anew."""
    rows = "\n".join(table())
    return _TABLE.sub(lambda match: f"{match[1]}{rows}\n{match[2]}", page)


def faults(root: Path = ROOT) -> list[str]:
    """Disagreements between pins, pages, code and the file of facts, a line each."""
    return [
        *_stale(json.loads(FACTS.read_text()), (root / "requirements" / "cuda.txt").read_text()),
        *_unknown(_pages(root)),
        *(
            []
            if with_table(PAGE.read_text()) == PAGE.read_text()
            else [f"{PAGE.name}: stale: make cubins"]
        ),
        *_wrong_least((root / "swarm_node" / "policy" / "placement.py").read_text()),
    ]


def _stale(facts: Mapping[str, Any], pins: str) -> list[str]:
    fact_wheels = {(wheel["name"], wheel["sha256"]) for wheel in facts["wheels"]}
    pinned_wheels = {(name, sha) for name in WHEELS for sha in _hashes(pins, name)}
    return [
        f"make cubins: no facts of {name} {sha[:12]}"
        for name, sha in sorted(pinned_wheels - fact_wheels)
    ]


def _unknown(pages: Mapping[str, str]) -> list[str]:
    return [
        f"{page} names {name}, and cubins.py does not know its capability"
        for page, text in pages.items()
        for name in sorted(set(named_gpus(text)))
        if card_of(name) is None
    ]


def _wrong_least(placement: str) -> list[str]:
    """Compare the least capability that a node takes with that of the libraries' kernels."""
    (minimum,) = re.findall(r"^LEAST_CAPABILITY, .* = \((\d+, \d+)\), ", placement, re.MULTILINE)
    major, minor = minimum.split(", ")
    libraries = _libraries()
    core_libraries = [
        libraries[path] for path, name in LIBRARIES.items() if name in ("torch", "bitsandbytes")
    ]
    return [
        f"capability {capability}: a node {'takes' if is_supported else 'refuses'} it, and there "
        f"are {'no' if is_supported else ''} kernels for it"
        for capability in sorted(set(GPUS.values()), key=float)
        if (is_supported := float(capability) >= float(f"{major}.{minor}"))
        != all(way(library, capability) != "none" for library in core_libraries)
    ]


def _pages(root: Path) -> dict[str, str]:
    paths = (
        root / "README.md",
        *sorted((root / "docs").glob("*.md")),
        root / "docs/research/one-gpu.md",
    )
    return {str(path.relative_to(root)): path.read_text() for path in paths}


def _libraries() -> dict[str, Kernels]:
    wheels = json.loads(FACTS.read_text())["wheels"]
    return {name: kernels for wheel in wheels for name, kernels in wheel["libraries"].items()}


def _entry(pins: str, name: str) -> str:
    """Return the lines of a package in a file of pins."""
    (entry,) = re.findall(rf"^{name}==[^\n]*\n(?: [^\n]*\n)*", pins, re.MULTILINE)
    return str(entry)


def _hashes(pins: str, name: str) -> list[str]:
    return re.findall(r"sha256:([0-9a-f]{64})", _entry(pins, name))


def listed(output: str) -> dict[str, list[str]]:
    """Architectures of cubins and PTX in the output of cuobjdump, oldest first."""
    return {
        kind: sorted(
            set(re.findall(rf"\.sm_(\d+[af]?)\.{suffix}\b", output)),
            key=lambda arch: (int(arch.rstrip("af")), arch),
        )
        for kind, suffix in (("sm", "cubin"), ("ptx", "ptx"))
    }


def _inspected(wheel: Path, cached_kernels: dict[tuple[str, int], Kernels]) -> dict[str, Kernels]:
    """Kernels of the libraries of a wheel that have any. `cached_kernels` has those of equal
    bytes."""
    kernels = {}
    with (
        zipfile.ZipFile(wheel) as archive,
        tempfile.TemporaryDirectory(dir=wheel.parent) as scratch,
    ):
        for member in sorted(archive.infolist(), key=lambda info: info.filename):
            name, key = member.filename, (member.filename, member.CRC)
            if not name.endswith(".so") or (
                name.startswith("bitsandbytes/") and name not in LIBRARIES
            ):
                continue
            if key not in cached_kernels:
                library = Path(archive.extract(member, scratch))
                cached_kernels[key] = listed(_cuobjdump(library))
                library.unlink()
            if any(cached_kernels[key].values()):
                kernels[name] = cached_kernels[key]
    return kernels


def _cuobjdump(library: Path) -> str:
    (tool,) = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13/bin/cuobjdump")
    command = [tool, "--list-elf", "--list-ptx", library]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode and "does not contain device code" not in result.stdout + result.stderr:
        raise SystemExit(f"cuobjdump, {library.name}: {result.stderr}")
    return result.stdout


def _fetch(pins: str, python: str, directory: Path) -> None:
    """The pinned wheels, which pip compares with their hashes."""
    file = directory / "wheels.txt"
    file.write_text("".join(_entry(pins, name) for name in WHEELS))
    systems = [f"manylinux_2_{minor}_x86_64" for minor in (28, 24, 17)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--python-version", python, "--dest", str(directory)]
    command += [word for system in systems for word in ("--platform", system)]
    subprocess.run([*command, "--requirement", str(file)], check=True)


def main() -> None:
    pins = (ROOT / "requirements" / "cuda.txt").read_text()
    cached_kernels: dict[tuple[str, int], Kernels] = {}
    wheels = []
    with tempfile.TemporaryDirectory() as place:
        for python in PYTHONS:
            _fetch(pins, python, Path(place))
        for wheel in sorted(Path(place).glob("*.whl")):
            with wheel.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            name = wheel.name.partition("-")[0]
            libraries = _inspected(wheel, cached_kernels)
            wheels.append(
                {"name": name, "file": wheel.name, "sha256": sha256, "libraries": libraries}
            )
            print(f"{wheel.name}: {len(libraries)} libraries with kernels", flush=True)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {"read": today, "wheels": wheels}
    FACTS.write_text(
        re.sub(r"\[\s+([^][{}]*?)\s+\]", _one_line, json.dumps(facts, indent=1)) + "\n"
    )
    PAGE.write_text(with_table(PAGE.read_text()))


def _one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"


if __name__ == "__main__":
    main()
