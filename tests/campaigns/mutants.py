"""Takes every guard out of the code, one at a time, and runs the tests: one must fail.

    PYTHONPATH=tests python -m campaigns.mutants

A guard is an `if` that ends in a refusal, an operand of what a function returns, a bound of a
field, or a call that lets a request in. The guards are found in the source, so a new one is tried
without a list of them. Each is taken out of a copy of the tree; a survivor is a guard without a
test.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_P2P = ["tests/p2p"]
_EXCHANGE = ["tests/integration/test_exchange.py"]
#: Modules that turn something away, and tests of theirs that are not named as they are.
MODULES: dict[str, list[str]] = {
    "p2p/envelope.py": ["tests/p2p/test_vectors.py"],
    "p2p/gates.py": ["tests/p2p/test_size_gate.py"],
    "p2p/hivemind/records.py": [],
    "p2p/frames.py": [],
    "p2p/members.py": ["tests/p2p/test_statements.py"],
    "p2p/membership.py": ["tests/p2p/test_vectors.py"],
    "p2p/credentials.py": [],
    "p2p/statements.py": ["tests/p2p/test_vectors.py"],
    "p2p/ticket.py": [],
    "p2p/wire.py": [],
    "p2p/serving.py": _EXCHANGE,
    "p2p/verify.py": _EXCHANGE,
}
_LET_IN = ("_allow", "_admit", "check_size")
_SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """`module` with `old`, which begins at offset `start`, replaced by `new`."""

    module: str
    line: int
    start: int
    old: str
    new: str

    def __str__(self) -> str:
        shown = " ".join(self.old.split())
        return f"{self.module}:{self.line}: {shown[:70]!r} becomes {self.new!r}"

    def apply(self, source: str) -> str:
        assert source[self.start :].startswith(self.old)
        return source[: self.start] + self.new + source[self.start + len(self.old) :]


def mutants(module: str, source: str) -> list[Mutant]:
    """Every guard of a module."""
    lines = source.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))

    def of(node: ast.expr, new: str) -> Mutant:
        old = ast.get_source_segment(source, node)
        assert old is not None
        # Columns count bytes of UTF-8.
        before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
        return Mutant(module, node.lineno, offsets[node.lineno - 1] + len(before), old, new)

    return sorted(
        {of(node, new) for node, new in _guards(ast.parse(source))}, key=lambda each: each.start
    )


def _guards(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test, body=[*_, last]) if _refuses(last):
                yield test, "False"
                if isinstance(test, ast.BoolOp):
                    for operand in test.values:
                        yield operand, "False" if isinstance(test.op, ast.Or) else "True"
            case ast.Return(value=ast.BoolOp(op=op, values=operands)):
                for operand in operands:
                    yield operand, "None" if isinstance(op, ast.Or) else "True"
            case ast.Call(func=ast.Name(id="Meta"), keywords=keywords):
                for keyword in keywords:
                    if keyword.arg in _FREE:
                        yield keyword.value, _FREE[keyword.arg]
            case ast.Expr(value=ast.Call(func=function) as call):
                name = function.attr if isinstance(function, ast.Attribute) else ""
                if name in _LET_IN or getattr(function, "id", "") in _LET_IN:
                    yield call, "None"


#: A bound that bounds nothing that fits a message.
_FREE = {
    "ge": "-(1 << 63)",
    "le": "(1 << 63) - 1",
    "lt": "(1 << 63) - 1",
    "min_length": "0",
    "max_length": "1 << 30",
    "pattern": "''",
}


def _refuses(statement: ast.stmt) -> bool:
    """Whether an `if` that ends so turns something away."""
    if isinstance(statement, ast.Raise | ast.Continue):
        return True
    if not isinstance(statement, ast.Return):
        return False
    value = statement.value
    if value is None or (isinstance(value, ast.Constant) and value.value in (False, None)):
        return True
    if isinstance(value, ast.Name):
        return value.id in ("refused", "opened", "body", "unpacked", "issuer", "member", "repeated")
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Rejected"


def own_tests(module: str, copy: Path) -> list[str]:
    """The tests of one module, as paths in the copy."""
    name = Path(module)
    found = (copy / "tests" / name.parent).glob(f"test_{name.stem}*.py")
    return sorted({*(str(path.relative_to(copy)) for path in found), *MODULES[module]})


def survives(mutant: Mutant, copy: Path, quick: bool) -> bool:
    """Whether all tests of the module's room pass without the guard; `quick` runs the first."""
    file = copy / "swarm_node" / mutant.module
    source = file.read_text()
    file.write_text(mutant.apply(source))
    try:
        rooms = [own_tests(mutant.module, copy), *([] if quick else (_P2P, _EXCHANGE))]
        return all(_passes(room, copy) for room in rooms)
    finally:
        file.write_text(source)


def _passes(tests: list[str], copy: Path) -> bool:
    """Run tests in a fork, which has what they import already, save the package."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.chdir(copy)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import pytest

        code = 1
        try:
            flags = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
            loaded = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            code = pytest.main([*flags, *loaded, *tests])
        finally:
            os._exit(code)
    ends = time.monotonic() + _SECONDS
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)  # a test that hangs has noticed
    os.waitpid(child, 0)
    return False


def run(only: str, first: int, most: int, quick: bool = False) -> tuple[int, list[Mutant]]:
    """(mutants tried, survivors)."""
    tried, left = 0, []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "benchmarks")
        shutil.copytree(ROOT, copy, ignore=skipped)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(copy), str(copy / "tests")]
        import aiohttp  # noqa: F401 - forks share what is loaded here
        import hypothesis.stateful  # noqa: F401

        if not quick:
            import torch  # noqa: F401

        for module in MODULES:
            if only not in module:
                continue
            file = copy / "swarm_node" / module
            assert _passes(own_tests(module, copy), copy), "the tests fail before anything is gone"
            for mutant in mutants(module, file.read_text())[first : first + most]:
                tried += 1
                if survives(mutant, copy, quick):
                    left.append(mutant)
                    print(f"  SURVIVES {mutant}", flush=True)
            print(f"{tried} tried, {len(left)} survive, up to {module}", flush=True)
    return tried, left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of a module's name")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="only the module's own tests")
    options = parser.parse_args()
    tried, left = run(options.only, options.first, options.most, options.quick)
    print(f"{tried} guards taken out, {len(left)} survive")
    return min(1, len(left))


if __name__ == "__main__":
    sys.exit(main())
