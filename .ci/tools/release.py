"""Everything of a release but the upload: `make release`.

Refuses container images without a digest. Builds wheel and sdist of the last commit, compares their
contents with what git tracks, installs the wheel into an empty environment and runs a node of it,
and writes a list of what was installed (SBOM, CycloneDX) and checksums. All of it is in dist/
afterwards.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

from images import unpinned_images

ROOT = Path(__file__).resolve().parents[2]
DIST, WORK = ROOT / "dist", ROOT / "build" / "release"
#: What the wheel installs, and what the sdist has besides.
PACKAGES = ("swarm_node/", "coordinator/")
ALSO_IN_SDIST = ("CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md", "constraints.txt")
_START_SECONDS = 300.0


def wheel_faults(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Files that a wheel with these members lacks, or should not have."""
    held = {name for name in names if ".dist-info/" not in name}
    wanted = {name for name in tracked if name.startswith(PACKAGES)}
    return [f"the wheel lacks {name}" for name in sorted(wanted - held)] + [
        f"the wheel has {name}" for name in sorted(held - wanted)
    ]


def sdist_faults(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Files that an sdist lacks, or should not have; `names` are without its top directory."""
    held = set(names)
    wanted = {*(name for name in tracked if name.startswith(PACKAGES)), *ALSO_IN_SDIST}
    return [f"the sdist lacks {name}" for name in sorted(wanted - held)] + [
        f"the sdist has {name}" for name in sorted(held) if name.startswith("tests/")
    ]


def main() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if faults := unpinned_images(ROOT):
        raise SystemExit("\n".join(faults))
    for place in (DIST, WORK):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    source = _committed()
    _run(sys.executable, "-m", "build", "--outdir", DIST, source)
    wheel, sdist = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
    tracked = _output("git", "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    with zipfile.ZipFile(wheel) as archive:
        faults = wheel_faults(archive.namelist(), tracked)
    with tarfile.open(sdist) as archive:
        members = [member.name for member in archive.getmembers() if member.isfile()]
        faults += sdist_faults((name.partition("/")[2] for name in members), tracked)
    if faults:
        raise SystemExit("\n".join(faults))
    print(f"contents: {len(members)} files in the sdist, as git tracks them", flush=True)
    installed = _installed(wheel, source / "constraints.txt")
    _smoke(installed / "swarm-node", version)
    _run(
        *(Path(sys.executable).with_name("cyclonedx-py"), "environment", "--output-reproducible"),
        *("--pyproject", source / "pyproject.toml", "--mc-type", "application"),
        *("--output-file", DIST / f"swarm_node-{version}.cdx.json", installed / "python"),
    )
    sums = {path.name: hashlib.sha256(path.read_bytes()) for path in sorted(DIST.iterdir())}
    lines = [f"{digest.hexdigest()}  {name}\n" for name, digest in sums.items()]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    print("".join(lines), end="")
    for what in _before_upload(version):
        print(f"before an upload: {what}")


def _committed() -> Path:
    """The files of the last commit, and nothing that lies beside them."""
    source = WORK / "source"
    packed = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    source.mkdir()
    subprocess.run(["tar", "--extract"], cwd=source, input=packed.stdout, check=True)
    # So that one commit gives the same wheel again.
    os.environ["SOURCE_DATE_EPOCH"] = _output("git", "log", "-1", "--format=%ct").strip()
    return source


def _installed(wheel: Path, constraints: Path) -> Path:
    """The directory of the commands of a new environment with the wheel."""
    print("installing the wheel into an empty environment: minutes", flush=True)
    venv.create(WORK / "venv", with_pip=True)
    commands = WORK / "venv" / "bin"
    _run(
        *(commands / "python", "-m", "pip", "install", "--quiet", "--only-binary", "hivemind"),
        *("--constraint", constraints, wheel),
    )
    return commands


def _smoke(command: Path, version: str) -> None:
    """A node of the installed program starts, says that it runs, and stops.

    Raises:
        SystemExit: it does not.
    """
    said = _output(command, "--version").strip()
    if said != f"swarm-node {version}":
        raise SystemExit(f"--version says {said!r}, and the version is {version}")
    _run(command, "plan", "--model", "qwen2.5-0.5b", "--vram", "8GB")
    _run(command.with_name("swarm-coordinator"), "--help")
    with tempfile.TemporaryDirectory() as home:
        log = WORK / "node.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                [command, "join", "--model", "tiny", "--home", home],
                stdout=output,
                stderr=output,
                env=_environ(),
            )
        try:
            _wait(command, home, node, log)
            _run(command, "stop", "--home", home)
            code = node.wait(60)
        finally:
            node.kill()
    if code != 0:
        raise SystemExit(f"the node ended with {code}: {log}")
    print("smoke test: a node of the wheel ran, and stopped with 0", flush=True)


def _wait(command: Path, home: str, node: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    asked = [str(command), "status", "--healthy", "--home", home]
    while subprocess.run(asked, env=_environ(), capture_output=True, check=False).returncode:
        if node.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the node does not run: {log}")
        time.sleep(1.0)


def _before_upload(version: str) -> list[str]:
    """Instructions for a person before the upload."""
    return [
        *(["commit: the files differ"] if _output("git", "status", "--porcelain") else []),
        *(
            []
            if f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
            else [f"CHANGELOG.md has no section [{version}]"]
        ),
    ]


def _environ() -> dict[str, str]:
    """The variables without what would let the installed program see this checkout."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "SWARM_NODE_")
    return {key: value for key, value in os.environ.items() if not key.startswith(left_out)}


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], cwd=WORK, env=_environ(), check=True)


def _output(*words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], cwd=ROOT, env=_environ(), stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode()


if __name__ == "__main__":
    main()
