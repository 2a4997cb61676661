"""Figures of benchmarks for machines to read, and the results of a proof in one file.

    python benchmarks/figures.py OUT

`tell` adds one JSON object a line to the file that the variable FIGURES names. The command collects
those of `benchmarks/gpu_proof.sh OUT` in OUT/results.json: for each step its verdict, its seconds,
what it told and how its tests ended.
"""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

_LINE = re.compile(r"(\S+) +(\d+) s  (PASS|FAIL|NOT RUN)(.*)")
_COUNTS = ("tests", "failures", "errors", "skipped")


def tell(**figures: Any) -> None:
    """Note figures, by names that say their unit; nothing without the variable."""
    if place := os.environ.get("FIGURES"):
        with Path(place).open("a") as file:
            file.write(json.dumps(figures) + "\n")


def results(out: Path) -> dict[str, Any]:
    """The steps of the proof in `out`, in the order in which they ran."""
    steps: dict[str, Any] = {}
    for line in (out / "summary.txt").read_text().splitlines():
        if not (found := _LINE.fullmatch(line)):
            raise ValueError(f"not a line of a summary: {line}")
        step, seconds, verdict, rest = found.groups()
        told = out / f"{step}.jsonl"
        lines = told.read_text().splitlines() if told.exists() else []
        steps[step] = {
            "verdict": verdict,
            "why": rest.removeprefix(":").strip(),
            "seconds": int(seconds),
            "figures": [json.loads(one) for one in lines],
            "tests": tests(out / f"{step}.xml"),
        }
    return {"steps": steps}


def tests(file: Path) -> dict[str, int] | None:
    """Tests that ran, failed and were skipped, by pytest's own report; None without one."""
    if not file.exists():
        return None
    suites = ET.parse(file).getroot().iter("testsuite")  # written by pytest a moment ago
    counts = [{name: int(suite.get(name, 0)) for name in _COUNTS} for suite in suites]
    return {name: sum(count[name] for count in counts) for name in _COUNTS}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    (out / "results.json").write_text(json.dumps(results(out), indent=1) + "\n")
