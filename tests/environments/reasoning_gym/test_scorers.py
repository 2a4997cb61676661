"""No text of a peer is evaluated by a scorer, or holds one up."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import json
import os
import textwrap
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT, printed_by
from cpu_time import within
from environments.tasks import task_of
from hostile import PAYLOADS, shapes

from swarm_node.environments.answers.scoring import score_choice, score_math
from swarm_node.environments.reasoning_gym import derivatives, expressions, scorers
from swarm_node.environments.reasoning_gym.environment import PRESETS, choosable, create
from swarm_node.environments.reasoning_gym.expressions import (
    ARITHMETIC,
    BadExpressionError,
    Exact,
    compute,
)
from swarm_node.errors import ConfigError

#: The package of arc_agi leaves a data file open.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: Whose functions are followed; of others a scorer may use the harmless ones.
FOLLOWED = {"reasoning_gym", "magiccube"}
HARMLESS = {
    *("builtins", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions"),
    *("functools", "itertools", "json", "math", "numpy", "random", "re", "string", "typing"),
    *("dateutil", "calendar", "_random", "_json", "_operator", "abc"),
}
#: The first looks at an environment variable for the colours of a printed cube; the second reads a
#: board from a file where it is made with a path, which a scorer does not.
HARMLESS_PLACES = {
    "magiccube.cube_print.CubePrintStr.__init__",
    "reasoning_gym.games.contrib.sokoban.src.game.Game.load_puzzle",
}
EVALUATING = ("eval", "exec", "compile", "__import__", "open", "input", "breakpoint")
EVALUATED_BY_THE_PACKAGE = {
    "binary_matrix": "eval",
    "bitwise_arithmetic": "eval",
    "countdown": "parse_expr",
    "intermediate_integration": "parse_expr",
    "n_queens": "eval",
    "number_sorting": "eval",
    "puzzle24": "parse_expr",
    "simple_integration": "parse_expr",
    "spiral_matrix": "eval",
    "string_insertion": "eval",
}


@pytest.mark.slow(reason="imports every data set")
def test_what_every_family_is_scored_by_is_known() -> None:
    families = set(choosable())
    assert len(families - {"zebra_puzzles"}) == 96  # that one is there where pycosat is
    assert families >= {*scorers.OWN, *scorers.GUARDS, *PRESETS["chat"], *PRESETS["sapo"]}
    assert not scorers.OWN.keys() & scorers.GUARDS.keys()
    for family, reason in scorers.REFUSED.items():
        with pytest.raises(ConfigError, match=reason):
            create({family: {}})


class _Walk:
    """What code is reachable from a function, by the names that it holds."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.found: list[str] = []
        self._named: set[str] = set()
        self._waiting: dict[str, list[tuple[types.FunctionType, type]]] = {}

    def function(self, function: Any, owner: Any) -> None:
        """Looks at the source of `function`; `owner` is what its `self` or `cls` is."""
        function = inspect.unwrap(getattr(function, "__func__", function))
        if id(function) in self.seen:
            return
        self.seen.add(id(function))
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        known = inspect.getclosurevars(function)
        names = {**builtins.__dict__, **function.__globals__, **known.nonlocals}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom | ast.Import):
                self._imported(node, function, names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self._name(node.attr)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                for value in self._meaning(node, names, owner):
                    self._use(value, owner, f"{function.__module__}.{function.__qualname__}")

    def _imported(
        self, node: ast.ImportFrom | ast.Import, function: Any, names: dict[str, Any]
    ) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                names[alias.asname or alias.name] = importlib.import_module(alias.name)
            else:
                package = function.__globals__["__package__"]
                module = importlib.import_module("." * node.level + (node.module or ""), package)
                names[alias.asname or alias.name] = getattr(module, alias.name)

    def _meaning(self, node: ast.expr, names: Mapping[str, Any], owner: Any) -> Iterator[Any]:
        """The objects that an expression of names and dots may be."""
        if isinstance(node, ast.Name):
            if node.id in ("self", "cls") and owner is not None:
                yield owner
            elif node.id in names:
                yield names[node.id]
        elif isinstance(node, ast.Attribute):
            for value in self._meaning(node.value, names, owner):
                with_it = inspect.getattr_static(value, node.attr, None)
                if with_it is not None:
                    yield getattr(value, node.attr, with_it)

    def _use(self, value: Any, owner: Any, where: str) -> None:
        if value is owner or (isinstance(value, type) and value.__module__ == "builtins"):
            return
        if not (callable(value) or isinstance(value, types.ModuleType)):
            return
        if isinstance(value, types.ModuleType):
            module, name = value.__name__, value.__name__
        else:
            module = getattr(value, "__module__", None) or type(value).__module__
            name = getattr(value, "__name__", type(value).__name__)
        root = module.partition(".")[0]
        if module == "builtins" and name in EVALUATING:
            self.found.append(f"{name} in {where}")
        elif root in FOLLOWED:
            if inspect.isclass(value):
                self._class(value)
            elif inspect.isroutine(value) and has_source(value):
                self.function(value, getattr(value, "__self__", None))
        elif root not in HARMLESS and where not in HARMLESS_PLACES:
            self.found.append(f"{module}.{name} in {where}")

    def _class(self, of: type) -> None:
        """Whoever holds an instance may call its methods, but only by a name that is written
        somewhere: the others wait for it."""
        if id(of) in self.seen:
            return
        self.seen.add(id(of))
        for name, member in vars(of).items():
            plain = member.fget if isinstance(member, property) else member
            plain = getattr(plain, "__func__", plain)
            # What a dataclass generates has no source, and uses no text.
            if isinstance(plain, types.FunctionType) and has_source(plain):
                self._waiting.setdefault(name, []).append((plain, of))
                if name in self._named or name.startswith("__"):
                    self._name(name)

    def _name(self, name: str) -> None:
        self._named.add(name)
        for function, owner in self._waiting.pop(name, ()):
            self.function(function, owner)


def has_source(function: Any) -> bool:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return code is not None and code.co_filename.endswith(".py")


@functools.cache
def dataset(family: str) -> Any:
    environment = create({family: {}})
    return environment._dataset(family, 5)  # type: ignore[attr-defined]


def evaluating(family: str) -> list[str]:
    walk = _Walk()
    made = dataset(family)
    walk.function(type(made).score_answer, made)
    return walk.found


# One test for all families: to name them imports all data sets, with sympy and matplotlib, and
# parameters would do so in every process that collects.
@pytest.mark.slow(reason="reads the sources of every scorer")
def test_nothing_that_evaluates_is_reachable_from_a_packages_scorer() -> None:
    families = [family for family in choosable() if family not in scorers.OWN]
    found = {family: evaluating(family) for family in families}
    assert found == {family: [] for family in families}


@pytest.mark.parametrize(("family", "by"), EVALUATED_BY_THE_PACKAGE.items())
def test_the_walk_finds_what_the_package_evaluates(family: str, by: str) -> None:
    assert family in scorers.OWN
    assert any(by in found.partition(" in ")[0] for found in evaluating(family))


@pytest.mark.parametrize("module", [scorers, expressions, derivatives])
def test_own_scorers_evaluate_nothing(module: types.ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            assert node.id not in EVALUATING
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            assert imported not in ("sympy", "pickle", "yaml", "subprocess", "os", "importlib")


CANARY = """
import json, re, subprocess, sys  # a payload looks for Popen among the classes that are loaded
from hostile import payloads
from swarm_node.environments.answers.scoring import score_math
from swarm_node.environments.reasoning_gym import scorers
from swarm_node.environments.reasoning_gym.environment import choosable, create
from swarm_node.rollout import TaskRef

armed, seen = None, []
NUMBERS = re.compile(r"(Integer|Float|Rational|Add|Mul|Pow|evaluate|False|[\\s\\d()+*/.,='-])*")
SYMPY = "from sympy import *"  # into the names that it reads with

def hook(event, args):
    global armed
    if armed is None:
        return
    where, armed = armed, None  # not for what the hook itself does
    try:
        if event == "exec":
            names = set(args[0].co_names)
            generated = args[0].co_filename.startswith("<") and "frozen" not in args[0].co_filename
            # math-verify has sympy evaluate numbers; nothing else is.
            number = all(map(NUMBERS.fullmatch, names - {"sympy"}))
            if generated and not (where[0] == "math" and number):
                seen.append([*where, event, args[0].co_filename, sorted(names)])
        elif event == "compile":
            # ast.literal_eval compiles to a tree only, from this name; math-verify's are numbers.
            source = args[0].decode() if isinstance(args[0], bytes) else args[0]
            number = source is None or source == SYMPY or NUMBERS.fullmatch(source.strip())
            if args[1] != "<unknown>" and not (where[0] == "math" and number):
                seen.append([*where, event, str(args[1]), repr(source)])
        elif event == "open":
            if isinstance(args[1], str) and set(args[1]) & set("wax+"):
                seen.append([*where, event, str(args[0])])
        elif event == "import":
            if args[0] in ("this", "os", "subprocess"):
                seen.append([*where, event, args[0]])
        elif event.partition(".")[0] in ("os", "subprocess", "socket", "shutil", "ctypes", "pty"):
            # Reading directories is what an import does.
            if event not in ("os.listdir", "os.scandir"):
                seen.append([*where, event])
    finally:
        armed = where

def watched(score, where, *args):
    global armed
    armed = where
    try:
        return score(*args)
    finally:
        armed = None

package = scorers.score
scorers.score = lambda family, data, answer, entry: watched(
    package, [family, answer], family, data, answer, entry
)
if PACKAGE:  # to see that the hook sees
    scorers.OWN = {}
sys.addaudithook(hook)
file, families = sys.argv[1], sys.argv[2].split(",")
for family in families:
    environment = create({family: {}})
    task = environment.derive(TaskRef(environment.name, environment.version, family, 7))
    hear = scorers.score
    scorers.score = package  # what a first answer imports is no answer's doing
    environment.score(task, "1")
    environment.score(task, str(task.payload["answer"]))
    scorers.score = hear
    for text in payloads(file):
        environment.score(task, text)
forms = ("{}", "${}$", "\\boxed{{{}}}", "{} = 2 + 3*4", "answer: ({})")
for text in [] if PACKAGE else payloads(file):
    for answer in (form.format(text) for form in forms):
        for right in ("42", "x^2"):
            score_math("1/3", right, ())
            watched(score_math, ["math", answer], answer, right, ())
print(json.dumps([seen, "this" in sys.modules]))
"""


def canary(tmp_path: Path, families: list[str], package: bool) -> tuple[list[Any], bool, bool]:
    """What the hook saw, whether the file is there, whether the module was imported."""
    file = tmp_path / "touched"
    tests = str(ROOT / "tests")
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    program = CANARY.replace("PACKAGE", str(package))
    printed = printed_by(program, file, ",".join(families), PYTHONPATH=path)
    seen, imported = json.loads(printed.splitlines()[-1])
    return seen, file.exists(), imported


@pytest.mark.slow(reason="scores every payload in each of 97 data sets")
def test_code_in_an_answer_is_never_run(tmp_path: Path) -> None:
    assert canary(tmp_path, choosable(), package=False) == ([], False, False)


@pytest.mark.slow(reason="starts a process that imports the package")
def test_the_canary_sings_in_the_packages_own_scorers(tmp_path: Path) -> None:
    seen, touched, imported = canary(tmp_path, ["binary_matrix", "countdown"], package=True)
    assert touched
    assert imported
    assert {"exec", "compile", "open", "os.system", "subprocess.Popen"} <= {
        each[2] for each in seen
    }


@pytest.mark.parametrize(
    "every",
    [8, pytest.param(1, marks=pytest.mark.slow(reason="scores long texts in 97 data sets"))],
)
def test_no_text_holds_a_scorer_up(every: int) -> None:
    for family in choosable()[::every]:
        environment = create({family: {}}, scoring="native")
        task = task_of(environment)
        environment.score(task, "1")
        for text in (*shapes(task.payload["answer"]), *PAYLOADS, "<answer>" * 8192, "(" * 65536):
            what = (family, text[:40])
            assert (
                0.0 <= within(2.0, functools.partial(environment.score, task, text), what) <= 1.0
            ), what


@pytest.mark.parametrize("text", ["answer" + " " * 4000 + "!", "the " + "\t" * 4000, "(" * 4096])
def test_no_text_holds_up_the_choice_of_a_letter(text: str) -> None:
    assert within(1.0, lambda: score_choice(text, "A", ("x", "y"))) == 0.0


def test_no_matrix_of_any_size_is_made() -> None:
    for text in (r"$\operatorname{zeros}(9999,9999)$", r"$\operator\!name{on es}(9999,9999)$"):
        assert within(5.0, functools.partial(score_math, text, "42", ())) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2*3", 7),
        ("-2**2", -4),
        ("2**-1", 0.5),
        ("2**3**2", 512),
        ("8/2/2 - (1 - 3)", 4),
        ("7//2*2 + 7%4", 9),
        ("0.5*4", 2),
    ],
)
def test_arithmetic_is_pythons(text: str, value: float) -> None:
    assert compute(text, ARITHMETIC, Exact()) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 +", "1 2", "(1", "1)", "x", "abs(1)", "2(3)", "007", "1e5", "9**9**9", "9**99"),
        *("1,2", "2**64*" * 30 + "1", "-" * 100 + "1", "1+" * 600 + "1", "2**(1/2)", "9" * 400),
    ],
)
def test_what_is_no_small_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(BadExpressionError):
        compute(text, ARITHMETIC, Exact())


@pytest.mark.slow(reason="draws tasks of slow families")
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("complex_arithmetic", "nan"),
        ("number_sorting", "[NaN, NaN, NaN, NaN]"),
        ("game_of_life_halting", "perhaps"),
        ("prime_factorization", "no factors"),
        ("intermediate_integration", "Integral(x, x)"),
        ("simple_integration", "sqrt(x**2)"),
    ],
)
def test_a_trick_or_a_raising_scorer_earns_nothing(family: str, text: str) -> None:
    environment = create({family: {}}, scoring="native")
    for seed in range(20):
        assert environment.score(task_of(environment, seed=seed), text) == 0.0


def test_a_right_answer_earns_all_and_as_a_list_a_tenth() -> None:
    score = scorers._as_list(lambda _, items: " ".join(map(str, items)))
    entry = {"answer": "1 2"}
    assert [score(None, text, entry) for text in (" 1 2\n", "[1, 2]", "[2, 1]")] == [1.0, 0.1, 0.0]


@pytest.mark.parametrize(
    ("moves", "kept"),
    [("U R2 F'", "U R2 F'"), ("U999999999", "U7"), ("U5 R", "U5 R"), ("U8 ?", "U4 ?"), ("", "")],
)
def test_turns_of_a_face_that_cancel_out_are_left_out(moves: str, kept: str) -> None:
    assert scorers._guard_rubiks_cube(moves) == kept
