"""Where the time of a whole test run goes, as tables in CONTRIBUTING.md: `make test-times`.

    python .ci/tools/test_times.py JUNIT_XML...

reads the reports of a whole run. Each test has a property `loop` there, the smallest of the
three loops that runs it (tests/conftest.py).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
LOOPS = "test-fast", "test", "test-all"
_BEGIN, _END = "<!-- written by make test-times -->\n", "<!-- end -->"
_ROWS = 15


class Times(NamedTuple):
    """Seconds that one worker was busy, by file and test, each with the loop."""

    files: Counter[tuple[str, str]]
    tests: Counter[tuple[str, str]]
    #: Number of tests by loop, without skipped ones.
    counts: Counter[str]


def read(*reports: Path) -> Times:
    """Read the JUnit reports of this project's own runs, which have different tests."""
    files: Counter[tuple[str, str]] = Counter()
    tests: Counter[tuple[str, str]] = Counter()
    counts: Counter[str] = Counter()
    for case in (case for report in reports for case in ElementTree.parse(report).iter("testcase")):
        loop = next(
            each.attrib["value"] for each in case.iter("property") if each.attrib["name"] == "loop"
        )
        file = case.attrib["classname"].removeprefix("tests.")
        seconds = float(case.attrib["time"])
        files[file, loop] += seconds
        tests[f"{file}::{case.attrib['name']}", loop] += seconds
        counts[loop] += case.find("skipped") is None
    return Times(files, tests, counts)


def tables(times: Times) -> str:
    """The tables: each loop contains the ones before it."""
    lines = ["| | `make test-fast` | `make test` | `make test-all` |", "| --- | --- | --- | --- |"]
    lines.append(_row("tests", times.counts))
    lines.append(_row("seconds of one worker", _by_loop(times.files)))
    totals: Counter[str] = Counter()
    for (file, _), seconds in times.files.items():
        totals[file] += seconds
    for file, _ in totals.most_common(_ROWS):
        lines.append(_row(f"`{file}`", _by_loop(times.files, file)))
    lines += ["", "| slowest tests | seconds | loop |", "| --- | --- | --- |"]
    for (name, loop), seconds in times.tests.most_common(_ROWS):
        lines.append(f"| `{name.replace('|', '/')}` | {seconds:.0f} | `{loop}` |")
    return "\n".join(lines) + "\n"


def _by_loop(seconds: Counter[tuple[str, str]], name: str | None = None) -> Counter[str]:
    sums: Counter[str] = Counter()
    for (each, loop), value in seconds.items():
        if name in (None, each):
            sums[loop] += value
    return sums


def _row(name: str, by_loop: Counter[str]) -> str:
    sums = accumulate(by_loop[loop] for loop in LOOPS)
    return f"| {name} | {' | '.join(f'{value:,.0f}' for value in sums)} |"


def main() -> None:
    page = PAGE.read_text()
    written = f"{_BEGIN}\n{tables(read(*map(Path, sys.argv[1:])))}\n{_END}"
    changed, found = re.subn(
        f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: written, page, flags=re.DOTALL
    )
    if not found:
        sys.exit(f"{PAGE} has no place for the tables")
    PAGE.write_text(changed)


if __name__ == "__main__":
    main()
