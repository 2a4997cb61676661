"""Changes the code at places that are drawn by chance, one at a time: a test must fail.

    PYTHONPATH=tests python -m campaigns.drawn --results FILE

`campaigns.mutants` takes guards out of the rooms that turn something away. This program is for the
rooms that compute: it changes comparisons, numbers, signs, operands and truth values, and drops
statements and awaits. All would be thousands, so the first of a fixed draw are tried. A change has
its place in the draw by its name, so code that is added elsewhere does not alter the draw. Results
are lines of FILE, and a change that has one is not tried again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from campaigns.equivalent import EQUIVALENT_CHANGES
from campaigns.mutants import ROOT, Campaign, Mutant, Source, file_of, places

ROOMS = ("policy", "node", "environments", "process", "simulation")
SEED = 23
SIZE = 300
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
}
#: pytest's end where every test of a file is slow.
_NO_TESTS = "exit 5"
#: The most files of tests that only import a module.
_NEAR = 4
#: Calls that change only what a person reads.
_SAID = ("_log", "log", "print", "warnings")


def changes(module: str, source: str) -> list[Mutant]:
    """Every change of a module, the first of those with one name."""
    found: dict[str, Mutant] = {}
    text = Source(module, source)
    tree = ast.parse(source)
    passed = _passed(tree)
    for where, node in places(tree, ""):
        if node in passed:
            continue
        for part, new in _changed(node, text):
            mutant = text.mutant(where, part, new)
            found.setdefault(key(mutant), mutant)
    return list(found.values())


def key(mutant: Mutant) -> str:
    """Name of a change, the same in every version of the module that has this code."""
    return f"{mutant.name} becomes {' '.join(mutant.new.split())}"


def draw(root: Path = ROOT) -> list[Mutant]:
    """All changes of the rooms in the order of the draw."""
    found = [
        change
        for room in ROOMS
        for file in sorted((root / "swarm_node" / room).rglob("*.py"))
        for change in changes(str(file.relative_to(root / "swarm_node")), file.read_text())
    ]
    return sorted(found, key=lambda each: hashlib.sha256(f"{SEED} {key(each)}".encode()).digest())


def _passed(tree: ast.AST) -> set[ast.AST]:
    """Find the nodes that are never changed: those of types, messages and texts."""
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr() | ast.Raise():
                roots: list[ast.AST | None] = [node]
            case ast.Expr(value=ast.Call(func=func)) if _name(func) in _SAID:
                roots = [node]
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=annotation):
                roots = [annotation]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                roots = [node.returns, *node.decorator_list]
            case ast.ClassDef(decorator_list=decorators, keywords=keywords):
                roots = [*decorators, *keywords]
            case ast.Subscript(value=ast.Name(id="Literal" | "Annotated")):
                roots = [node]
            case _:
                continue
        passed.update(each for root in roots if root for each in ast.walk(root))
    return passed


def _name(function: ast.expr) -> str:
    """The first name of `a.b.c`."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""


def _changed(node: ast.AST, source: Source) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Each change of a node: the part that is replaced, and by what."""
    text = source.of
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield node, f"({text(left)}) {_COMPARED[type(op)]} ({text(right)})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            if not isinstance(left, ast.Constant) or not isinstance(left.value, str):
                yield node, f"({text(left)}) {_COMPUTED[type(op)]} ({text(right)})"
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield node, f"({text(operand)})"
        case ast.BoolOp(values=[first, *_]):
            yield node, text(first)
        case ast.IfExp(test=test):
            yield test, f"not ({text(test)})"
        case _:
            yield from _simple(node, text)


def _simple(
    node: ast.AST, text: Callable[[ast.expr | ast.stmt], str]
) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Each change of a value, a call or a statement, as in `_changed`."""
    match node:
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Constant(value=float() as value):
            yield node, str(value * 2 if value else 1.0)
        case ast.Call(func=ast.Name(id="min" | "max" as name) as func):
            yield func, "max" if name == "min" else "min"
        case ast.Await(value=value):
            yield node, text(value)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node, "pass"
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute()]):
            yield node, "pass"


def tests_of(module: str, root: Path) -> list[list[str]]:
    """The tests named as the module, then a few that import it, as paths in the tree."""
    path = Path(module)
    tests = root / "tests"
    named = sorted((tests / path.parent).glob(f"test_{path.stem}*.py"))
    dotted = "swarm_node." + ".".join(path.with_suffix("").parts)
    package = ".".join(dotted.split(".")[:-1])
    texts = {file: file.read_text() for file in sorted(tests.rglob("test_*.py"))}
    near = [
        file
        for file, text in texts.items()
        if file not in named
        and "campaigns" not in file.parts
        and (f"{dotted} import" in text or f"from {package} import {path.stem}" in text)
    ]
    if not named and not near:
        near = sorted((tests / path.parent).glob("test_*.py"))
    near.sort(key=lambda file: -len(os.path.commonpath([file, tests / path])))
    return [
        [str(file.relative_to(root)) for file in group] for group in (named, near[:_NEAR]) if group
    ]


def fate(campaign: Campaign, mutant: Mutant, *, wide: bool) -> str:
    """The test that fails with a change and passes without it, or "survives"."""
    rooms = tests_of(mutant.module, campaign.copy)
    if not rooms:
        return "survives: no test names this module"
    file = file_of(mutant.module, campaign.copy)
    source = file.read_text()
    for tests in rooms if wide else rooms[:1]:
        file.write_text(mutant.apply(source))
        try:
            failed = campaign.run(tests)
        finally:
            file.write_text(source)
        if failed in (None, _NO_TESTS):
            continue
        # Parameters may hold what pytest splits at. A test that is too slow ends the whole run.
        same = [failed.partition("[")[0]] if "::" in failed else tests
        if campaign.run(same) is not None:
            return f"unclear: {failed} without the change, too"
        campaign.found[:] = [failed, *(each for each in campaign.found if each != failed)][:20]
        return failed
    return "survives"


def _share(campaign: Campaign) -> None:
    """Import what the last run imported, so that the next forks need not."""
    loaded = campaign.folder / "loaded"
    for name in loaded.read_text().splitlines() if loaded.exists() else ():
        with contextlib.suppress(Exception):  # a fork that needs it says what is wrong
            importlib.import_module(name)


def run(chosen: Sequence[tuple[int, Mutant]], results: Path, *, wide: bool, slow: bool) -> int:
    """Try changes that have no result yet. The number that survives."""
    lines = results.read_text().splitlines() if results.exists() else []
    known = {entry["change"]: entry["fate"] for entry in map(json.loads, lines)}
    left = sum(known.get(key(each), "").startswith("survives") for _, each in chosen)
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), slow=slow)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(campaign.copy), str(campaign.copy / "tests")]
        for number, mutant in chosen:
            if key(mutant) in known or key(mutant) in EQUIVALENT_CHANGES:
                continue
            end = fate(campaign, mutant, wide=wide)
            left += end.startswith("survives")
            entry = {"number": number, "change": key(mutant), "line": mutant.line, "fate": end}
            with results.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(f"{number} {mutant}: {end}", flush=True)
            _share(campaign)
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="a file outside the tree")
    parser.add_argument("--size", type=int, default=SIZE, help="how many of the draw")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the changes' names")
    parser.add_argument("--wide", action="store_true", help="also tests that import the module")
    parser.add_argument("--slow", action="store_true", help="also slow tests, as `make test`")
    options = parser.parse_args()
    drawn = enumerate(draw()[: options.size], 1)
    chosen = [pair for pair in drawn if any(part in key(pair[1]) for part in options.only)]
    left = run(chosen, options.results, wide=options.wide, slow=options.slow)
    print(f"{len(chosen)} changes of the draw, {left} survive")
    return min(1, left)


if __name__ == "__main__":
    sys.exit(main())
