"""Runs the commands of gpu_call.py on a CPU, as a GPU machine without network would run them.

    python benchmarks/gpu_rehearsal.py [--only first second third] [--machine DIR] [--kill SECONDS]

The machine is an environment of what gpu-machine.txt names. Each command gets a fresh copy of the
tree, and fresh folders OUT, HOME and TMPDIR. As root it also gets a fresh /tmp, and no network.
What came back is in build/gpu-rehearsal/NAME. Each step must reach its last line, or say that
there is no CUDA device. With --kill, each step is run alone and killed, and must leave a figure.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gpu_call
import gpu_wheels
import psutil

ROOT = gpu_call.ROOT
MACHINE = ROOT / ".venv-gpu-machine"
WHEELS = ".gpu"
KEPT = ROOT / "build" / "gpu-rehearsal"
DISK_BYTES = 8 * 10**9
LIMIT_SECONDS = 600
MOST_FILES, MOST_FILE_BYTES = 8, 16 << 20
ARCHIVES = (".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
FINISHED = ("PASS", "FAIL", "NOT RUN")
NO_DEVICE = "no CUDA device"
#: A variable by which processes of a call are found, those in sessions of their own too.
MARK = "GPU_REHEARSAL"
SPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class StepOutcome(NamedTuple):
    """A step's row of the table; `fault` is empty if it did what it should."""

    step: str
    seconds: int
    verdict: str
    fault: str = ""


def step_outcomes(results: dict[str, Any], steps: list[str]) -> list[StepOutcome]:
    """The steps of a bundle by its results.json."""
    rows = []
    for step in steps:
        if (step_result := results.get("steps", {}).get(step)) is None:
            rows.append(StepOutcome(step, 0, "", "it is not in results.json"))
            continue
        verdict, why = step_result["verdict"], step_result["why"]
        well = verdict == "PASS" or (verdict == "NOT RUN" and NO_DEVICE in why)
        rows.append(
            StepOutcome(step, step_result["seconds"], verdict, "" if well else why or verdict)
        )
    return rows


def output_faults(sizes: dict[str, int]) -> list[str]:
    """What is wrong with the files that come back, by their sizes."""
    archives = [name for name in sizes if name.endswith(ARCHIVES)]
    lacking = [f"no {name}" for name in ("results.json", "summary.txt") if name not in sizes]
    lacking += [] if archives else ["no archive"]
    others = sizes.keys() - {"results.json", "summary.txt", *archives[:1]}
    return [
        *lacking,
        *(f"{name} is one file too many" for name in sorted(others)),
        *([f"{len(sizes)} files: {MOST_FILES} come back"] if len(sizes) > MOST_FILES else []),
        *(
            f"{name} has {gpu_call.mib(size)}: {gpu_call.mib(MOST_FILE_BYTES)} come back"
            for name, size in sizes.items()
            if size > MOST_FILE_BYTES
        ),
    ]


def results_of(out: Path) -> dict[str, Any]:
    """What OUT/results.json has; nothing where it is absent or cut off."""
    try:
        results = json.loads((out / "results.json").read_text())
    except (OSError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def left_a_figure(results: dict[str, Any], step: str) -> bool:
    """Check that a killed step left a figure, or had ended."""
    step_result = results.get("steps", {}).get(step, {})
    return bool(step_result.get("figures")) or step_result.get("verdict") in FINISHED


def parse_bundles(text: str) -> dict[str, list[str]]:
    """Steps by bundle, from what `gpu_proof.sh --bundles` prints."""
    bundle_lines = (line.partition(": ") for line in text.splitlines())
    return {name: steps.split() for name, _, steps in bundle_lines}


def log_of(out: Path, step: str, lines: int = 20) -> str:
    """The end of a step's log, from the archive in OUT."""
    for file in out.iterdir():
        if not file.name.endswith(ARCHIVES):
            continue
        with suppress(tarfile.TarError, EOFError, OSError), tarfile.open(file) as archive:
            for entry in archive:
                if Path(entry.name).name == f"{step}.log" and (log := archive.extractfile(entry)):
                    text = log.read().decode(errors="replace")
                    return "\n".join(text.splitlines()[-lines:])
    return f"no {step}.log in an archive"


class CallFolders(NamedTuple):
    """Folders of one call: where they are, and where its commands see them."""

    path: Path
    mounted_at: Path
    isolated: bool

    def environment(self, machine: Path) -> dict[str, str]:
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {
            "PATH": f"{machine}/bin:{system}",
            "HOME": str(self.mounted_at / "home"),
            "TMPDIR": str(self.mounted_at / "temporary"),
            "OUT": str(self.mounted_at / "out"),
            "LANG": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": "",
            MARK: self.path.name,
        }

    def shell(self, command: str, machine: Path) -> list[str]:
        """The process that runs the command, with a network and a /tmp of its own if it may."""
        if not self.isolated:
            return ["bash", "-c", command]
        lines = ["set -e", "ip link set lo up"]
        if machine.is_relative_to("/tmp"):  # it would be hidden
            inside = self.path / machine.relative_to("/tmp")
            lines += [f"mkdir -p '{inside}'", f"mount --rbind '{machine}' '{inside}'"]
        lines += [f"mount --rbind '{self.path}' /tmp", "cd /tmp/tree"]
        # The command is no process 1, which signals end only if it catches them.
        lines += ["set +e", 'bash -c "$0"', "exit $?"]
        return [*SPACES, "bash", "-c", "\n".join(lines), command]


@contextmanager
def call_folders(files: Iterable[Path], isolated: bool) -> Iterator[CallFolders]:
    """A fresh machine's folders, with the tree and its wheels; removed afterwards."""
    real = Path(tempfile.mkdtemp(prefix=f"swarm-node-rehearsal-{secrets.token_hex(4)}-"))
    try:
        for name in ("home", "out", "temporary"):
            (real / name).mkdir()
        for file in files:
            target = real / "tree" / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)
        yield CallFolders(real, Path("/tmp") if isolated else real, isolated)
    finally:
        shutil.rmtree(real, ignore_errors=True)


@contextmanager
def fresh_machine(isolated: bool) -> Iterator[CallFolders]:
    """A place with all that travels, on a machine that has kept nothing."""
    with call_folders([*gpu_call.tree(ROOT), *(ROOT / WHEELS).iterdir()], isolated) as folders:
        if not isolated:
            shutil.rmtree(gpu_call.WORK, ignore_errors=True)
        yield folders


class CommandResult(NamedTuple):
    """A command's end: its exit status, None if it was killed."""

    code: int | None
    seconds: float
    cpu_seconds: float


def run(command: str, folders: CallFolders, machine: Path, limit: float) -> CommandResult:
    """Run a command as the machine would; afterwards no process of it is left."""
    began, before = time.monotonic(), os.times()
    with (folders.path / "output.log").open("wb") as log:
        process = subprocess.Popen(
            folders.shell(command, machine),
            cwd=folders.path / "tree",
            env=folders.environment(machine),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code: int | None = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        kill_command(process, folders.path.name)
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return CommandResult(code, time.monotonic() - began, cpu)


def kill_command(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a command's process group, and what left that group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(100):
        if not (alive := [one for one in psutil.process_iter() if has_mark(one, mark)]):
            return
        for one in alive:
            with suppress(psutil.Error):
                one.kill()
        time.sleep(0.1)


def has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return not is_zombie and process.environ().get(MARK) == mark
    except psutil.Error:
        return False


def can_isolate() -> bool:
    """Check that a process may have its own network and its own mounts: root, as a rule."""
    command = [*SPACES, "bash", "-c", "ip link set lo up && mount --bind /tmp /tmp"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def find_python() -> str:
    """Path of an interpreter of the machine's version, through pyenv where that hides it."""
    name = f"python{gpu_wheels.PYTHON}"
    tries: list[dict[str, str]] = [{}]
    if shutil.which("pyenv"):
        installed = subprocess.run(
            ["pyenv", "versions", "--bare"], capture_output=True, text=True, check=False
        ).stdout.split()
        versions = [one for one in installed if one.startswith(f"{gpu_wheels.PYTHON}.")]
        tries += [{"PYENV_VERSION": version} for version in versions]
    for variables in tries if shutil.which(name) else []:
        answer = subprocess.run(
            [name, "-c", "import sys; print(sys.executable)"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode == 0:
            return answer.stdout.strip()
    raise SystemExit(f"there is no {name} on PATH: install Python {gpu_wheels.PYTHON} with venv")


def build_machine() -> Path:
    """The environment of gpu-machine.txt, made anew if that file has changed."""
    digest = hashlib.sha256(gpu_wheels.MACHINE.read_bytes()).hexdigest()
    stamp = MACHINE / ".ready"
    if stamp.exists() and stamp.read_text() == digest:
        return MACHINE
    interpreter = find_python()
    shutil.rmtree(MACHINE, ignore_errors=True)
    if (free := shutil.disk_usage(ROOT).free) < DISK_BYTES:
        raise SystemExit(
            f"{MACHINE.name} takes 5 GB, and as much again of downloads for a while: "
            f"{free / 1e9:.1f} GB are free here, {DISK_BYTES / 1e9:.0f} GB are needed"
        )
    print(f"making {MACHINE.name}: 5 GB of disk, minutes, once", flush=True)
    install = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--requirement"]
    try:
        subprocess.run([interpreter, "-m", "venv", MACHINE], check=True)
        subprocess.run([MACHINE / "bin" / "python", *install, gpu_wheels.MACHINE], check=True)
        stamp.write_text(digest)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{MACHINE.name} was not made: {error}") from error
    finally:
        if not stamp.exists():
            shutil.rmtree(MACHINE, ignore_errors=True)
    return MACHINE


def copy_output(name: str, folders: CallFolders) -> Path:
    """Copy what comes back, and what was printed, to where it stays; that folder."""
    output_folder = KEPT / name
    shutil.rmtree(output_folder, ignore_errors=True)
    shutil.copytree(folders.path / "out", output_folder)
    shutil.copy2(folders.path / "output.log", KEPT / f"{name}.output.log")
    return output_folder


class BundleResult(NamedTuple):
    """A bundle's end: steps that did what they should, and whether nothing else was wrong."""

    steps: int
    well: bool
    result: CommandResult


def rehearse_bundle(
    name: str, steps: list[str], folders: CallFolders, machine: Path
) -> BundleResult:
    """Run a bundle, and print its table and what is wrong."""
    print(f"\n{name}: {' '.join(steps)}", flush=True)
    result = run(gpu_call.command(WHEELS, f"--bundle {name}"), folders, machine, LIMIT_SECONDS)
    out = copy_output(name, folders)
    rows = step_outcomes(results_of(out), steps)
    for row in rows:
        print(f"  {row.step:<14} {row.seconds:4d} s  {row.verdict or 'ABSENT'}")
    wrong = [row for row in rows if row.fault]
    for row in wrong:
        print(f"\n{row.step}: {row.fault}\n{log_of(out, row.step)}")
    files = [file for file in out.rglob("*") if not file.is_dir()]
    faults = output_faults({str(file.relative_to(out)): file.lstat().st_size for file in files})
    if result.code is None:
        faults.append(f"it was killed after {LIMIT_SECONDS} s")
    elif result.code:
        faults.append(f"exit {result.code}: see {KEPT.relative_to(ROOT)}/{name}.output.log")
    for fault in faults:
        print(f"{name}: {fault}")
    return BundleResult(len(rows) - len(wrong), not wrong and not faults, result)


def rehearse_all(chosen: dict[str, list[str]], machine: Path, isolated: bool) -> bool:
    """Run the bundles to their ends."""
    results = []
    for name, steps in chosen.items():
        with fresh_machine(isolated) as folders:
            results.append(rehearse_bundle(name, steps, folders, machine))
    total = sum(len(steps) for steps in chosen.values())
    seconds = sum(one.result.seconds for one in results)
    cpu = sum(one.result.cpu_seconds for one in results)
    reached = sum(one.steps for one in results)
    summary = f"{reached} of {total} steps reached their last line"
    print(f"\n{summary}, in {seconds:.0f} s ({cpu:.0f} s CPU)")
    return all(one.well for one in results)


def kill_each_step(
    chosen: dict[str, list[str]], machine: Path, isolated: bool, seconds: float
) -> bool:
    """Run each step alone, kill it, and look at what came back."""
    steps = list(dict.fromkeys(step for each in chosen.values() for step in each))
    steps_with_figure = 0
    for step in steps:
        only = " ".join(dict.fromkeys(("setup", step)))  # a bare machine has no wheels yet
        with fresh_machine(isolated) as folders:
            result = run(gpu_call.command(WHEELS, f"--only {only}"), folders, machine, seconds)
            out = copy_output(f"killed-{step}", folders)
        results = results_of(out)
        well = left_a_figure(results, step)
        steps_with_figure += well
        verdict = results.get("steps", {}).get(step, {}).get("verdict", "ABSENT")
        how = "killed" if result.code is None else f"exit {result.code}"
        print(f"  {step:<14} {result.seconds:4.0f} s  {how:<7} {verdict}", flush=True)
        if not well:
            print(f"{step}: no figure\n{log_of(out, step)}", flush=True)
    share = f"{steps_with_figure} of {len(steps)} steps"
    print(f"\n{share} leave a figure when killed after {seconds:g} s")
    return steps_with_figure == len(steps)


def chosen_bundles(names: list[str]) -> dict[str, list[str]]:
    listing = subprocess.run(
        ["bash", "benchmarks/gpu_proof.sh", "--bundles"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    bundles = parse_bundles(listing.stdout)
    if missing := [name for name in names if name not in bundles]:
        raise SystemExit(f"gpu_proof.sh has no bundle {', '.join(missing)}")
    return {name: bundles[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    calls = list(gpu_call.CALLS)
    parser.add_argument("--only", nargs="+", choices=calls, default=calls)
    parser.add_argument("--machine", type=Path, help="an environment that is there already")
    parser.add_argument("--kill", type=float, metavar="SECONDS")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = chosen_bundles(arguments.only)
    machine = arguments.machine.absolute() if arguments.machine else build_machine()
    if not (machine / "bin" / "python").exists():
        raise SystemExit(f"{machine} has no bin/python")
    gpu_call.gather(gpu_call.wheel_directory(WHEELS))
    gpu_call.check(ROOT / WHEELS)
    KEPT.mkdir(parents=True, exist_ok=True)
    isolated = can_isolate()
    print("without network" if isolated else "with the network, for want of root", flush=True)
    try:
        if arguments.kill is None:
            well = rehearse_all(chosen, machine, isolated)
        else:
            well = kill_each_step(chosen, machine, isolated, arguments.kill)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(not well)


if __name__ == "__main__":
    main()
