"""Figures of benchmarks for machines to read, and the results of a proof in one file.

    python benchmarks/figures.py OUT [--into FOLDER [--watch]]

`tell` adds one JSON object a line to the file that the variable FIGURES names; as pytest's plugin
(`-p figures`) this module tells how each test ended. The command collects what was told in
`benchmarks/gpu_proof.sh OUT` in OUT/results.json: for each step its verdict, its seconds, its
figures and how its tests ended, also for the step that is running. With FOLDER, that gets
results.json, summary.txt and proof.tgz, an archive of OUT. With --watch they are renewed within
seconds of each figure until the command is killed, so that a proof that is killed leaves all that
was told.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import tarfile
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path
from typing import Any

_LINE = re.compile(r"(\S+) +(\d+) s  (PASS|FAIL|NOT RUN)(.*)")
_COUNTS = ("tests", "failures", "errors", "skipped")
#: The file in OUT that names the running step.
RUNNING = "running"
ARCHIVE = "proof.tgz"
_WATCH_SECONDS = 2.0
#: The archive has so much of each file, from its end.
_MOST_BYTES = 1 << 20


def tell(**figures: Any) -> None:
    """Note figures, by names that say their unit; nothing without the variable. JSON has no NaN:
    such a figure is null."""
    if place := os.environ.get("FIGURES"):
        json_figures = {name: None if _is_nan(value) else value for name, value in figures.items()}
        with Path(place).open("a") as file:
            file.write(json.dumps(json_figures) + "\n")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def step_file(name: str) -> Path | None:
    """Path of another file of the step, FIGURES with the suffix `.name`; None without the
    variable."""
    place = os.environ.get("FIGURES")
    return Path(place).with_suffix(f".{name}") if place else None


def pytest_runtest_logreport(report: Any) -> None:
    """Tell how a test ended: pytest calls this for its set-up, call and teardown."""
    if report.when == "call" or report.outcome != "passed":
        seconds = round(report.duration, 1)
        tell(test=report.nodeid, when=report.when, outcome=report.outcome, seconds=seconds)


def results(out: Path) -> dict[str, Any]:
    """The steps of the proof in `out`, in the order in which they ran."""
    steps: dict[str, Any] = {}
    summary, running = out / "summary.txt", out / RUNNING
    for line in summary.read_text().splitlines() if summary.exists() else ():
        if not (line_match := _LINE.fullmatch(line)):
            raise ValueError(f"not a line of a summary: {line}")
        step, seconds, verdict, rest = line_match.groups()
        why = rest.removeprefix(":").strip()
        steps[step] = result(out, step, verdict, why, int(seconds))
    if running.exists():
        step, since = running.read_text().strip(), time.time() - running.stat().st_mtime
        steps.setdefault(step, result(out, step, "RUNNING", "", int(since)))
    return {"steps": steps}


def result(out: Path, step: str, verdict: str, why: str, seconds: int) -> dict[str, Any]:
    """One step; a line that is being written is left out."""
    figures_file = out / f"{step}.jsonl"
    whole = figures_file.read_text().rpartition("\n")[0] if figures_file.exists() else ""
    return {
        "verdict": verdict,
        "why": why,
        "seconds": seconds,
        "figures": [json.loads(line) for line in whole.splitlines()],
        "tests": tests(out / f"{step}.xml"),
    }


def tests(file: Path) -> dict[str, int] | None:
    """Tests that ran, failed and were skipped, by pytest's own report; None without a whole one."""
    if not file.exists():
        return None
    try:
        suites = [*ET.parse(file).getroot().iter("testsuite")]  # written by pytest a moment ago
    except ET.ParseError:  # pytest is writing it, or was killed meanwhile
        return None
    counts = [{name: int(suite.get(name, 0)) for name in _COUNTS} for suite in suites]
    return {name: sum(count[name] for count in counts) for name in _COUNTS}


def collect(out: Path, folder: Path | None) -> None:
    """Renew OUT/results.json, and the files in `folder`. Each is whole at any moment."""
    partial = out / f".{os.getpid()}"  # the watching process may be at the same
    partial.write_text(json.dumps(results(out), indent=1) + "\n")
    partial.rename(out / "results.json")
    if folder is None:
        return
    with tarfile.open(partial, "w:gz") as archive:
        for file in sorted(out.iterdir()):
            if file.is_file() and not file.name.startswith("."):
                _add_end(archive, file)
    _replace(folder / ARCHIVE, partial)
    partial.unlink()
    for name in ("summary.txt", "results.json"):
        if (out / name).exists():
            _replace(folder / name, out / name)


def _replace(target: Path, source: Path) -> None:
    """Copy from another file system, perhaps, such that `target` is whole at any moment."""
    partial = target.with_name(f".{target.name}-{os.getpid()}")
    shutil.copyfile(source, partial)
    partial.rename(target)


def _add_end(archive: tarfile.TarFile, file: Path) -> None:
    with file.open("rb") as data:
        size = file.stat().st_size
        data.seek(max(0, size - _MOST_BYTES))
        info = tarfile.TarInfo(file.name)
        info.size, info.mtime = min(size, _MOST_BYTES), int(file.stat().st_mtime)
        archive.addfile(info, data)


def watch(out: Path, folder: Path) -> None:
    """Renew the files in `folder` whenever one in OUT changed."""
    before: object = None
    while True:
        with suppress(FileNotFoundError):  # a step that begins removes what an earlier one left
            files = [
                file
                for file in out.iterdir()
                if file.name[0] != "." and file.name != "results.json"
            ]
            now = [(file.name, file.stat().st_size) for file in files]
            if now != before:
                collect(out, folder)
                before = now
        time.sleep(_WATCH_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--into", type=Path, metavar="FOLDER")
    parser.add_argument("--watch", action="store_true")
    arguments = parser.parse_args()
    if arguments.watch:
        watch(arguments.out, arguments.into)
    collect(arguments.out, arguments.into)


if __name__ == "__main__":
    main()
