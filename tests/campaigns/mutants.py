"""Takes every guard out of the code, one at a time, and runs the tests: one must fail.

    PYTHONPATH=tests python -m campaigns.mutants

A guard is an `if` that ends in a refusal, an operand of what a function returns, a condition of a
comprehension, a bound of a field, or a call that lets a request in. The guards are found in the
source, so a new one is tried without a list of them. Each is taken out of a copy of the tree: first
the tests of its module are run, and only if all pass, those of the rooms around it. A survivor is a
guard without a test. `EQUIVALENT` names those that no test can miss, and why.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from campaigns.equivalent import EQUIVALENT

ROOT = Path(__file__).resolve().parents[2]
_P2P = ["tests/p2p"]
_EXCHANGE = ["tests/integration/exchange"]
#: The published bounds and the order of reasons.
_LIMITS = ["tests/p2p/test_published_limits.py"]
_NETWORKS = [
    "tests/integration/test_hivemind_members.py",
    "tests/integration/test_transport_conformance.py",
]
#: Modules that turn something away, and tests of theirs that are not named as they are.
MODULES: dict[str, list[str]] = {
    "p2p/wire/envelope.py": ["tests/p2p/test_vectors.py", *_LIMITS],
    "p2p/limits/gates.py": ["tests/p2p/limits/test_size_gate.py"],
    "p2p/transports/hivemind/records.py": [],
    "p2p/wire/frames.py": _LIMITS,
    "p2p/membership/members.py": ["tests/p2p/membership/test_statements.py"],
    "p2p/membership/membership.py": ["tests/p2p/test_vectors.py", *_LIMITS],
    "p2p/membership/credentials.py": [],
    "p2p/membership/statements.py": ["tests/p2p/test_vectors.py"],
    "p2p/membership/delegates.py": [
        "tests/p2p/exchange/test_membership_sync.py",
        "tests/node/members/test_delegation.py",
        "tests/node/loops/test_expelling.py",
    ],
    "p2p/membership/ticket.py": ["tests/p2p/coordinator/test_coordination.py", *_LIMITS],
    "p2p/wire/wire.py": _LIMITS,
    "p2p/wire/groups.py": _LIMITS,
    "p2p/limits/budgets.py": [],
    "p2p/peers/standing.py": [],
    "p2p/peers/addressbook.py": [],
    "p2p/addresses/addresses.py": ["tests/p2p/coordinator/test_coordination.py"],
    "p2p/exchange/membership_sync.py": [],
    "p2p/coordinator/coordination.py": ["tests/coordinator/test_reports.py", *_LIMITS],
    "p2p/transports/dialing.py": [],
    "p2p/addresses/internet.py": ["tests/p2p/transports/test_dialing.py", "tests/p2p/reach"],
    "p2p/peers/peers.py": [],
    "p2p/limits/admission.py": [],
    "p2p/exchange/serving.py": _EXCHANGE,
    "p2p/exchange/verify.py": _EXCHANGE,
    "p2p/exchange/requests.py": [],
    "p2p/exchange/pulling.py": _EXCHANGE,
    "p2p/exchange/discovery.py": _EXCHANGE,
    "p2p/addresses/circuit.py": [],
    "p2p/reach/relay_links.py": ["tests/p2p/reach/test_transport.py"],
    "p2p/reach/address_check.py": [],
    "p2p/reach/lan.py": [],
    "p2p/reach/probe.py": [],
    "p2p/reach/punch.py": [],
    "p2p/reach/relayed.py": ["tests/p2p/test_vectors.py", *_LIMITS],
    "p2p/reach/relaying.py": [],
    "p2p/reach/transport.py": [],
    "p2p/reach/reachability.py": [],
    "node/control/control.py": ["tests/page/test_entrance.py"],
    "page/entrance.py": ["tests/coordinator/test_page.py"],
    "page/listening.py": ["tests/coordinator/test_web.py", "tests/node/control/test_control.py"],
    "coordinator/introductions.py": [],
    "coordinator/redemptions.py": [],
    "coordinator/reputation.py": [],
    "coordinator/service.py": [
        "tests/coordinator/test_server.py",
        "tests/coordinator/test_reports.py",
    ],
    "coordinator/store.py": [
        "tests/coordinator/test_reports.py",
        "tests/coordinator/test_redemptions.py",
    ],
    "coordinator/web.py": ["tests/coordinator/test_server.py", "tests/coordinator/test_page.py"],
}
_LET_IN = ("_allow", "_admit", "check_size")
#: A test that takes as long hangs. Few of `make test` take over 30 s on an idle machine.
_TEST_SECONDS = 90
_RUN_SECONDS = 3600


@dataclass(frozen=True)
class Mutant:
    """`module` with `old`, which begins at offset `start` in `where`, replaced by `new`."""

    module: str
    where: str
    line: int
    start: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Name of the guard, the same in every version of the module that has it."""
        return f"{self.module} {self.where}: {' '.join(self.old.split())}"

    def __str__(self) -> str:
        return f"{self.name} (line {self.line}) becomes {self.new}"

    def apply(self, source: str) -> str:
        assert source[self.start :].startswith(self.old)
        return source[: self.start] + self.new + source[self.start + len(self.old) :]


def file_of(module: str, root: Path = ROOT) -> Path:
    """Path of a module in a tree."""
    return root / ("" if module.startswith("coordinator/") else "swarm_node") / module


def mutants(module: str, source: str) -> list[Mutant]:
    """Every guard of a module."""
    text = Source(module, source)
    found = {
        text.mutant(where, guard, new)
        for where, node in places(ast.parse(source), "")
        for guard, new in _guards(node)
    }
    return sorted(found, key=lambda each: (each.start, each.old))


class Source:
    """The text of a module, and the positions of its nodes."""

    def __init__(self, module: str, text: str) -> None:
        self.module = module
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._offsets = list(accumulate(map(len, self._lines), initial=0))

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._offset(node.lineno, node.col_offset)
        return self.text[start : self._offset(node.end_lineno, node.end_col_offset)]

    def mutant(self, where: str, node: ast.expr | ast.stmt, new: str) -> Mutant:
        """The module with `new` in place of a node, which stands in `where`."""
        start = self._offset(node.lineno, node.col_offset)
        return Mutant(self.module, where, node.lineno, start, self.of(node), new)

    def _offset(self, line: int, column: int) -> int:
        """Columns count bytes of UTF-8."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._offsets[line - 1] + len(before)


def places(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the dotted name of the function, class or field that it stands in."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            where = f"{where}.{name}".strip(".")
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            where = f"{where}.{name}".strip(".")
    yield where, node
    for child in ast.iter_child_nodes(node):
        yield from places(child, where)


def _guards(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.If(test=test, body=[*_, last]) if _refuses(test, last):
            yield test, "False"
            yield from _operands(test, "False")
        case ast.Return(value=ast.BoolOp() as value):
            yield from _operands(value, "None")
        case ast.comprehension(ifs=[ast.BoolOp(op=ast.And()) as condition]):
            yield from _operands(condition, "None")
        case ast.comprehension(ifs=[condition]):
            yield condition, "True"
        case ast.Call(func=ast.Name(id="Meta"), keywords=keywords):
            for keyword in keywords:
                if keyword.arg in _FREE:
                    yield keyword.value, _FREE[keyword.arg]
        case ast.Expr(value=ast.Call(func=function) as call):
            name = function.attr if isinstance(function, ast.Attribute) else ""
            if name in _LET_IN or getattr(function, "id", "") in _LET_IN:
                yield call, "None"


def _operands(test: ast.expr, nothing: str) -> Iterator[tuple[ast.expr, str]]:
    """Each operand of `and` or `or`; `nothing` takes the place of one of `or`."""
    if isinstance(test, ast.BoolOp):
        for operand in test.values:
            yield operand, nothing if isinstance(test.op, ast.Or) else "True"


#: A bound that bounds nothing that fits a message.
_FREE = {
    "ge": "-(1 << 63)",
    "le": "(1 << 63) - 1",
    "lt": "(1 << 63) - 1",
    "min_length": "0",
    "max_length": "1 << 30",
    "pattern": "''",
}


def _refuses(test: ast.expr, statement: ast.stmt) -> bool:
    """Check that an `if` of this `test` that ends so turns something away."""
    match statement:
        case ast.Raise() | ast.Continue() | ast.Return(value=None):
            return True
        case ast.Return(value=ast.Constant(value=value)):
            return value in (False, None)
        case ast.Return(value=ast.Name(id=name)):
            return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(test))
        case ast.Return(value=ast.Call(func=ast.Name(id="Rejected"))):
            return True
    return False


@dataclass(eq=False)
class _Watch:
    """A plugin of pytest: the tests that found the last mutants first, and what failed."""

    first: Sequence[str]
    failed: Path

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: item.nodeid not in self.first)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


@dataclass
class Campaign:
    """A copy of the tree below `folder`, and the tests that found guards missing. Those that are
    marked slow run only if it is `slow`."""

    folder: Path
    root: Path = ROOT
    slow: bool = False
    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.copy = self.folder / "tree"
        # `build` may hold a Debian whose /dev/full, read as a file, fills the disk.
        skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "benchmarks", "build")
        shutil.copytree(self.root, self.copy, ignore=skipped)

    def wanted(self, only: Sequence[str]) -> dict[str, list[Mutant]]:
        """The guards of each module, those whose names contain one of `only`."""
        wanted = {}
        for module in MODULES:
            file = file_of(module, self.copy)
            found = mutants(module, file.read_text()) if file.exists() else []
            wanted[module] = [each for each in found if any(part in each.name for part in only)]
        return {module: found for module, found in wanted.items() if found}

    def rooms(self, module: str, quick: bool) -> dict[str, list[str]]:
        """The tests to run, as paths in the copy, the nearest first."""
        path = Path(module)
        named = (self.copy / "tests" / path.parent).glob(f"test_{path.stem}*.py")
        own = {*(str(p.relative_to(self.copy)) for p in named), *MODULES.get(module, [])}
        rooms = {"its own": sorted(own)}
        if not quick:
            rooms |= {"p2p": _P2P, "exchange": _EXCHANGE}
            if "hivemind" in module:
                rooms["real networks"] = _NETWORKS
        return rooms

    def killer(self, mutant: Mutant, rooms: dict[str, list[str]]) -> str | None:
        """The room whose tests fail without the guard, None if all pass."""
        file = file_of(mutant.module, self.copy)
        source = file.read_text()
        file.write_text(mutant.apply(source))
        try:
            for room, tests in rooms.items():
                failed = self.run(tests)
                if failed is not None and "::" in failed:
                    again = failed.partition("[")[0]  # parameters may hold what pytest splits at
                    failed = self.run([again]) or self.run(tests)  # not by chance
                if failed is not None:
                    self.found[:] = [failed, *(t for t in self.found if t != failed)][:20]
                    return room
            return None
        finally:
            file.write_text(source)

    def run(self, tests: Sequence[str]) -> str | None:
        """The first test that fails, None if all pass. They run in a fork of this process."""
        failed = self.folder / "failed"
        failed.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._child(tests, failed)
        ends = time.monotonic() + _RUN_SECONDS
        while time.monotonic() < ends:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                return failed.read_text() if failed.exists() else f"exit {code}" if code else None
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "no end"

    def _child(self, tests: Sequence[str], failed: Path) -> None:
        os.setpgid(0, 0)
        os.chdir(self.copy)
        sink = os.open(self.folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        import pytest

        code: int = 1
        try:
            flags = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
            flags += ["-m", "not nightly" if self.slow else "not nightly and not slow"]
            # Hypothesis would repeat a test that a signal ended; a thread ends the process.
            ends = ["-o", f"timeout={_TEST_SECONDS}", "-o", "timeout_method=thread"]
            fixed = ["--hypothesis-seed=0", *ends]
            loaded = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            watch = _Watch(self.found, failed)
            code = pytest.main([*flags, *fixed, *loaded, *tests], plugins=[watch])
            (self.folder / "loaded").write_text("\n".join(_loaded()))
        finally:
            os._exit(code)

    def must_pass(self, rooms: Sequence[Sequence[str]]) -> None:
        """Raise if tests fail in the whole copy: they would find every guard missing."""
        for tests in rooms:
            failed = self.run(tests)
            if failed is not None:
                output = (self.folder / "output").read_text(errors="replace")[-4000:]
                raise AssertionError(f"{failed} fails before anything is gone:\n{output}")
            for name in (self.folder / "loaded").read_text().splitlines():
                with contextlib.suppress(Exception):  # a fork that needs it says what is wrong
                    importlib.import_module(name)


def _loaded() -> list[str]:
    """The installed packages in this process, which its forks may share."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    tops = {name for name, file in files.items() if "." not in name and "packages" in str(file)}
    return sorted(name for name in tops if not name.startswith(("_", "campaigns", "swarm_node")))


def run(only: Sequence[str], quick: bool = False, root: Path = ROOT) -> tuple[int, list[Mutant]]:
    """(guards taken out, survivors) of the guards whose names contain one of `only`."""
    tried, left = 0, []
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), root, slow=not quick)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(campaign.copy), str(campaign.copy / "tests")]
        checked: list[list[str]] = []
        for module, found in campaign.wanted(only).items():
            rooms, began = campaign.rooms(module, quick), time.monotonic()
            campaign.must_pass([tests for tests in rooms.values() if tests not in checked])
            checked += rooms.values()
            counts: Counter[str] = Counter()
            for mutant in found:
                if mutant.name in EQUIVALENT:
                    counts["nobody: equivalent"] += 1
                    continue
                tried += 1
                killer = campaign.killer(mutant, rooms)
                if killer is None:
                    left.append(mutant)
                    print(f"  SURVIVES {mutant}", flush=True)
                else:
                    counts[killer] += 1
                    print(f"  {mutant}: {campaign.found[0]}", flush=True)
            by = ", ".join(f"{count} by {name}" for name, count in sorted(counts.items()))
            spent = time.monotonic() - began
            print(f"{module}: {len(found)} guards, found missing {by}; {spent:.0f} s", flush=True)
    return tried, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help='parts of guards\' names: "p2p/membership/ticket.py _decode"',
    )
    parser.add_argument(
        "--quick", action="store_true", help="only the module's own tests, without slow ones"
    )
    options = parser.parse_args()
    tried, left = run(options.only, options.quick)
    print(f"{tried} guards taken out, {len(left)} survive")
    return min(1, len(left))


if __name__ == "__main__":
    sys.exit(main())
