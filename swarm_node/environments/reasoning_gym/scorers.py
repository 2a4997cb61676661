"""Scores of answers to reasoning-gym's questions: the package's own, or ours in their place.

In some data sets reasoning-gym 0.1.25 evaluates the answer (`eval`, and sympy's `parse_expr`, which
evaluates too), and an answer comes from any peer. Other scorers run for minutes, or fill the
memory, on a short text. Here are scorers in the place of the first, guards before the second, and
the data sets that are refused.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from swarm_node.environments.answers import MAX_JUDGED_CHARS
from swarm_node.environments.reasoning_gym.derivatives import is_antiderivative
from swarm_node.environments.reasoning_gym.expressions import (
    ARITHMETIC,
    LOGIC,
    BadExpressionError,
    Exact,
    TruthTables,
    compute,
)

#: Data sets that nobody can choose, and why.
REFUSED: Mapping[str, str] = {
    "composite": "it scores with whatever data sets it is made of; name those themselves",
}

#: A list of lists needs two; Python's own reader slows down with depth.
_MAX_NESTING = 8
#: Solutions of a cube of three have about a hundred; each move takes up to 0.1 ms.
_MAX_CUBE_MOVES = 500
#: A move says at most this far on a board of six.
_MAX_SLIDE = 6
_MAX_SOKOBAN_MOVES = 2000
_MAX_BOX_MOVE_CHARS = 128
_MAX_EXPONENT_CHARS = 4
_LITERAL_TOKEN = re.compile(
    r"""(?P<opening>[\[(])|(?P<closing>[\])])|(?P<comma>,)"""
    r"""|(?P<value>-?[\d.][\w.]*|True|False|None|'[^'\\\n]*'|"[^"\\\n]*")"""
)
_NUMBER = re.compile(r"\b\d+\b")
_CUBE_MOVE = re.compile(r"(\D*)(\d*)")

Scorer = Callable[[Any, str, Mapping[str, Any]], float]
Guard = Callable[[str], str | None]


def score(family: str, dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The data set's score of `answer`. May raise on a text that is no answer at all."""
    if len(answer) > MAX_JUDGED_CHARS:
        return 0.0
    if family in OWN:
        return OWN[family](dataset, answer, entry)
    guarded = GUARDS[family](answer) if family in GUARDS else answer
    return 0.0 if guarded is None else float(dataset.score_answer(guarded, entry))


# In the place of the package's scorers that evaluate.


def _literal(answer: str) -> Any:
    """A Python list or tuple of numbers, words and lists, without running anything.

    Raises:
        ValueError: it is none, or too deep.
        SyntaxError: it is none.
    """
    depth = position = 0
    may_begin = (
        True  # no operator and no call: these make Python's tree as deep as the text is long
    )
    while position < len(answer):
        if answer[position].isspace():
            position += 1
            continue
        token = _LITERAL_TOKEN.match(answer, position)
        if token is None:
            raise ValueError("no literal")
        position = token.end()
        kind = token.lastgroup
        if kind in ("opening", "value") and not may_begin:
            raise ValueError("two values side by side")
        depth += (kind == "opening") - (kind == "closing")
        if depth > _MAX_NESTING:
            raise ValueError("too deep")
        may_begin = kind in ("opening", "comma")
    return ast.literal_eval(answer)


def _binary_matrix(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    if answer == entry["answer"]:
        return 1.0
    return 0.1 if dataset._matrix_to_str(_literal(answer)) == entry["answer"] else 0.0


def _string_insertion(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    if answer == entry["answer"]:
        return 1.0
    return 0.1 if "".join(_literal(answer)) == entry["answer"] else 0.0


def _spiral_matrix(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    right = entry["answer"].strip()
    if answer.strip() == right:
        return 1.0
    return 0.1 if " ".join(str(item) for item in _literal(answer.strip())) == right else 0.0


def _n_queens(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    solutions = entry["metadata"]["valid_answers"]
    if answer in solutions:
        return 1.0
    return 0.5 if dataset._board_to_string(_literal(answer)) in solutions else 0.0


def _countdown(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    try:
        given = float(compute(answer, ARITHMETIC, Exact()))
    except (BadExpressionError, ArithmeticError):
        return 0.01
    used = [int(number) for number in _NUMBER.findall(answer)]
    if sorted(used) != sorted(entry["metadata"]["numbers"]):
        return 0.05
    target = entry["metadata"]["target"]
    # The tolerances of numpy.isclose as the package calls it.
    return 1.0 if abs(given - target) <= 1e-6 + 1e-5 * abs(target) else 0.05


def _puzzle24(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    try:
        given = int(compute(answer, ARITHMETIC, Exact()))
    except (BadExpressionError, ArithmeticError):
        return 0.01
    used = [int(number) for number in _NUMBER.findall(answer)]
    low, high = dataset.config.min_value, dataset.config.max_value
    right = given == 24 and len(used) == 4 and all(low <= number <= high for number in used)
    return 1.0 if right else 0.01


def _integration(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    metadata = entry["metadata"]
    return float(is_antiderivative(answer, metadata["integrand"], metadata["variable"]))


def _bitwise_arithmetic(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    return float(int(answer, 0) == int(entry["answer"], 16))


def _number_sorting(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    given = _numbers(json.loads(answer.replace("'", '"')))
    wanted = _numbers(ast.literal_eval(entry["answer"]))
    descending = entry["metadata"]["direction"] != "ascending"
    if len(given) != len(wanted) or given != sorted(given, reverse=descending):
        return 0.0
    # The package allows for rounding by one.
    return float(all(abs(one - other) <= 1 for one, other in zip(given, wanted, strict=True)))


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list):
        raise ValueError("no list")
    numbers = [float(value) for value in values]
    # To the package, NaN is in order wherever it stands, and close to everything.
    if any(math.isnan(number) for number in numbers):
        raise ValueError("not a number")
    return numbers


# In the place of the package's scorers that a short text can hold up, or that take any text.


def _propositional_logic(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The package's parser is cubic in the length, and its truth table doubles with each name."""
    tables = TruthTables(sorted(entry["metadata"]["variables"]))
    try:
        conclusion = compute(answer, LOGIC, tables)
    except BadExpressionError:
        return 0.0
    premises = tables.all
    for premise in entry["metadata"]["premises"]:
        premises &= compute(premise, LOGIC, tables).table
    if premises & ~conclusion.table:
        return 0.05
    return 0.25 if conclusion.plain or conclusion.table == tables.all else 1.0


def _game_of_life_halting(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The package's compares bool(text) on both sides, so that any text is right."""
    return float(answer.strip().lower() == entry["answer"].lower())


def _spell_backward(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The package's takes a right start for the whole word at some lengths: 6 × (1/6) is not 1."""
    given, right = answer.lower(), entry["answer"].lower()
    if given == right:
        return 1.0
    same = sum(one == other for one, other in zip(given, right, strict=False))
    return 0.8 if same == len(right) else same / len(right)


OWN: Mapping[str, Scorer] = {
    "binary_matrix": _binary_matrix,
    "bitwise_arithmetic": _bitwise_arithmetic,
    "countdown": _countdown,
    "game_of_life_halting": _game_of_life_halting,
    "intermediate_integration": _integration,
    "n_queens": _n_queens,
    "number_sorting": _number_sorting,
    "propositional_logic": _propositional_logic,
    "puzzle24": _puzzle24,
    "simple_integration": _integration,
    "spell_backward": _spell_backward,
    "spiral_matrix": _spiral_matrix,
    "string_insertion": _string_insertion,
}


# Before the package's scorers: the answer as they may see it, or None for a wrong one.


def _guard_coin_flip(answer: str) -> str | None:
    """Fraction("1e999999999") computes that power."""
    exponent = answer.lower().partition("e")[2].strip()
    return answer if len(exponent) <= _MAX_EXPONENT_CHARS else None


def _guard_complex_arithmetic(answer: str) -> str | None:
    """To the package, NaN is at no distance from anything."""
    return None if "nan" in answer.lower() else answer


def _guard_rubiks_cube(answer: str) -> str | None:
    """U999999999 is expanded to as many moves; four turns are none."""
    moves = []
    total = 0
    for word in answer.split():
        match = _CUBE_MOVE.fullmatch(word)
        count = int(match[2]) if match is not None and match[2] else 1
        few = count if count <= 4 else 4 + count % 4
        total += few
        moves.append(word if match is None or few == count else f"{match[1]}{few}")
    return " ".join(moves) if total <= _MAX_CUBE_MOVES else None


def _guard_rush_hour(answer: str) -> str | None:
    """A+999999999 is tried as many times; after six a piece stands still."""
    return re.sub(r"\d+", lambda digits: str(min(int(digits[0]), _MAX_SLIDE)), answer)


def _guard_sokoban(answer: str) -> str | None:
    return answer if len(answer) <= _MAX_SOKOBAN_MOVES else None


def _guard_boxnet(answer: str) -> str | None:
    """The package searches each move for a bracket from every comma."""
    steps = json.loads(answer)
    values = [value for step in _items(steps) for value in step.values()]
    long = any(len(value) > _MAX_BOX_MOVE_CHARS for value in values)
    return None if long else answer


def _items(steps: Any) -> Sequence[dict[str, str]]:
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("no list of tables")
    return cast(Sequence[dict[str, str]], steps)


GUARDS: Mapping[str, Guard] = {
    "boxnet": _guard_boxnet,
    "coin_flip": _guard_coin_flip,
    "complex_arithmetic": _guard_complex_arithmetic,
    "rubiks_cube": _guard_rubiks_cube,
    "rush_hour": _guard_rush_hour,
    "sokoban": _guard_sokoban,
}
