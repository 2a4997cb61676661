"""Gathers what a GPU machine without network needs, and prints the commands to run there.

    python benchmarks/gpu_call.py [.gpu]

The machine is that of gpu-machine.txt, and lent for minutes. The tree travels, which is what git
does not ignore, and so does this ignored folder of wheels. `COMMAND` is what runs there, and what
gpu_rehearsal.py runs on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

import gpu_wheels
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
#: The folder that gpu_proof.sh works in. It is on the machine, which keeps nothing.
WORK = "/tmp/swarm-node-gpu"
COMMAND = (
    'WHEELS={wheels} RETURN="$OUT" BUNDLE_SECONDS=540 bash benchmarks/gpu_proof.sh {work} {chosen}'
)
#: Bundles of gpu_proof.sh, one a call, and what each answers.
CALLS = {
    "first": "does `swarm-node join` work: tiny learns; Qwen2.5 1.5B by default settings in 12, 8, "
    "24, 16 GiB",
    "second": "GPU tests; CUDA graphs beside eager; flash beside cuDNN attention; training on "
    "shared prompts",
    "third": "two nodes on one GPU; 4B in nf4 in 12 GiB; 0.5B with all of the GPU",
}
MOST_CHARACTERS = 2000
MOST_BYTES = 60 << 20
#: Libraries of bitsandbytes that torch 2.11.0+cu130 can load. The wheel has fifteen, in 41 MiB.
LIBRARIES = {"libbitsandbytes_cuda130.so", "libbitsandbytes_cpu.so"}


def command(wheels: str, chosen: str) -> str:
    """The line to run in the tree's root on the machine; `chosen` is `--bundle NAME`, say."""
    line = COMMAND.format(wheels=wheels, work=WORK, chosen=chosen)
    assert len(line) < MOST_CHARACTERS, f"{len(line)} characters"
    return line


def tree(root: Path) -> list[Path]:
    """Files that travel, below `root`: tracked ones, and new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    names = {name.decode() for name in listed.stdout.split(b"\0") if name}
    listed_files = sorted(root / name for name in names)
    # Those that are deleted are listed too.
    return [file for file in listed_files if file.is_symlink() or file.is_file()]


def size_of(files: Iterable[Path]) -> int:
    return sum(file.lstat().st_size for file in files)


def size_fault(files: Iterable[Path], root: Path, limit_bytes: int = MOST_BYTES) -> str | None:
    """The sentence to end with if the files are too large together; it names the largest."""
    largest = sorted(files, key=lambda file: -file.lstat().st_size)
    total = size_of(largest)
    if total < limit_bytes:
        return None
    names = (f"  {mib(size_of([file])):>8}  {file.relative_to(root)}" for file in largest[:10])
    return "\n".join(
        [f"{mib(total)} are too much: {mib(limit_bytes)} may travel. The largest:", *names]
    )


def mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def is_foreign_library(name: str) -> bool:
    """Check that a file of the wheel is a library for another version or make of GPU."""
    file = name.rpartition("/")[2]
    return file.endswith(".so") and file not in LIBRARIES


def strip_wheel(wheel: Path, target: Path) -> None:
    """Write the wheel of bitsandbytes without libraries that the machine cannot load."""
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(target, "w") as part:
        kept_entries = [
            entry for entry in whole.infolist() if not is_foreign_library(entry.filename)
        ]
        if missing := LIBRARIES - {entry.filename.rpartition("/")[2] for entry in kept_entries}:
            raise SystemExit(f"{wheel.name} lacks {', '.join(sorted(missing))}")
        for entry in kept_entries:
            content = whole.read(entry)
            if entry.filename.endswith(".dist-info/RECORD"):
                content = strip_record(content.decode()).encode()
            part.writestr(entry, content, zipfile.ZIP_DEFLATED)


def strip_record(text: str) -> str:
    """A wheel's list of its files without those that are cut."""
    stripped_record = io.StringIO()
    rows = csv.reader(io.StringIO(text))
    csv.writer(stripped_record, lineterminator="\n").writerows(
        row for row in rows if not is_foreign_library(row[0])
    )
    return stripped_record.getvalue()


def complete(directory: Path, required_versions: dict[str, str]) -> bool:
    """Check that the folder has exactly these wheels, and that of bitsandbytes cut."""
    files = list(directory.glob("*.whl"))
    wheel_versions = [parse_wheel_filename(file.name)[:2] for file in files]
    if sorted((name, str(version)) for name, version in wheel_versions) != sorted(
        required_versions.items()
    ):
        return False
    (large,) = directory.glob("bitsandbytes-*.whl")
    with zipfile.ZipFile(large) as part:
        return not any(map(is_foreign_library, part.namelist()))


def gather(directory: Path) -> None:
    """Fill the folder with wheels, unless it has them all."""
    constraints = gpu_wheels.pins((ROOT / "constraints.txt").read_text())
    quantized = {"bitsandbytes": constraints["bitsandbytes"]}
    tests = gpu_wheels.pins((ROOT / "tests" / "requirements-library.txt").read_text())
    required_versions = gpu_wheels.wanted() | {"gguf": tests["gguf"]}
    if directory.exists() and any(file.suffix != ".whl" for file in directory.iterdir()):
        raise SystemExit(f"{directory} has more than wheels: name another folder")
    if complete(directory, required_versions | quantized):
        print(
            f"{directory.name} has its {len(required_versions) + 1} wheels: nothing to do",
            flush=True,
        )
        return
    print(f"gathering {len(required_versions) + 1} wheels: a minute or two", flush=True)
    new = directory.with_name(f"{directory.name}.new")  # beside it, where a rename is enough
    shutil.rmtree(new, ignore_errors=True)  # of one that was killed
    try:
        whole = new / "whole"
        whole.mkdir(parents=True)
        gpu_wheels.gather(required_versions, new)
        gpu_wheels.gather(quantized, whole)
        (wheel,) = whole.glob("*.whl")
        strip_wheel(wheel, new / wheel.name)
        shutil.rmtree(whole)
        shutil.rmtree(directory, ignore_errors=True)
        new.rename(directory)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def check(directory: Path) -> None:
    """Print what travels; exit if it is too much."""
    files, wheels = tree(ROOT), sorted(directory.iterdir())
    tree_size, wheels_size = size_of(files), size_of(wheels)
    print(
        f"the tree: {len(files)} files, {mib(tree_size)}; {directory.name}: {len(wheels)} wheels, "
        f"{mib(wheels_size)}; together {mib(tree_size + wheels_size)} of {mib(MOST_BYTES)}"
    )
    if fault := size_fault([*files, *wheels], ROOT):
        raise SystemExit(fault)


def wheel_directory(name: str) -> Path:
    """The folder of this name in the tree; git must ignore it, or it would travel twice."""
    directory = ROOT / name
    ignored = (
        subprocess.run(["git", "check-ignore", "--quiet", place], cwd=ROOT, check=False)
        for place in (f"{name}/", f"{name}.new/")
    )
    if directory.parent != ROOT or any(git_check.returncode for git_check in ignored):
        raise SystemExit(
            f"{name} is no folder in the tree's root that git ignores, with {name}.new"
        )
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=".gpu")
    directory = wheel_directory(parser.parse_args().directory)
    gather(directory)
    check(directory)
    print(
        f"\nThe tree and its ignored folder {directory.name} must travel. OUT must name an empty "
        "folder there:\nwhat is in it after a command comes back. Run each in the tree's root, "
        "within ten minutes. "
        "For a shorter loan set\nBUNDLE_SECONDS to 20 less than the seconds that are left."
    )
    for name, answers in CALLS.items():
        print(f"\n# {name}: {answers}\n{command(directory.name, f'--bundle {name}')}")


if __name__ == "__main__":
    main()
