"""Scores answers to reasoning-gym's questions, with the package's scorers or with our own.

For some data sets reasoning-gym 0.1.25 evaluates the answer (`eval`, or sympy's `parse_expr`, which
evaluates too), and an answer may come from any peer. Other scorers run for minutes, or fill the
memory, on a short text. This module replaces the former, guards the latter, and names the data
sets that are refused.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from swarm_node.environments.answers.final import MAX_SCORED_CHARS
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
    "composite": "it scores with the data sets it is made of; name those instead",
}

#: A list of lists needs two; Python's own reader slows down with depth.
_MAX_NESTING = 8
#: A solution of a 3x3x3 cube has about a hundred moves; each takes up to 0.1 ms.
_MAX_CUBE_MOVES = 500
#: Longer moves are cut to this, because the board has six cells a side.
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
    """The data set's score of `answer`. May raise on a malformed answer."""
    if len(answer) > MAX_SCORED_CHARS:
        return 0.0
    if family in OWN:
        return OWN[family](dataset, answer, entry)
    safe_answer = GUARDS[family](answer) if family in GUARDS else answer
    return 0.0 if safe_answer is None else float(dataset.score_answer(safe_answer, entry))


# These replace the package's scorers that evaluate the answer.


def _literal(answer: str) -> Any:
    """A Python list or tuple of numbers, words and lists, read without evaluation.

    Raises:
        ValueError: `answer` is no literal, or too deep.
        SyntaxError: `answer` is no literal.
    """
    depth = position = 0
    # Operators and calls are refused: they would make Python's tree as deep as the text is long.
    may_begin = True
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


def _as_list(render: Callable[[Any, Any], str]) -> Scorer:
    """Make a scorer that gives a tenth for the right answer as a Python list. `render` writes a
    list in the form of a right answer."""

    def score_entry(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
        answer, right = answer.strip(), entry["answer"].strip()
        if answer == right:
            return 1.0
        return 0.1 if render(dataset, _literal(answer)) == right else 0.0

    return score_entry


def _n_queens(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    solutions = entry["metadata"]["valid_answers"]
    if answer in solutions:
        return 1.0
    return 0.5 if dataset._board_to_string(_literal(answer)) in solutions else 0.0


def _score_countdown(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    try:
        value = float(compute(answer, ARITHMETIC, Exact()))
    except (BadExpressionError, ArithmeticError):
        return 0.01
    numbers = [int(number) for number in _NUMBER.findall(answer)]
    if sorted(numbers) != sorted(entry["metadata"]["numbers"]):
        return 0.05
    target = entry["metadata"]["target"]
    # The tolerances of numpy.isclose as the package calls it.
    return 1.0 if abs(value - target) <= 1e-6 + 1e-5 * abs(target) else 0.05


def _puzzle24(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    try:
        value = int(compute(answer, ARITHMETIC, Exact()))
    except (BadExpressionError, ArithmeticError):
        return 0.01
    numbers = [int(number) for number in _NUMBER.findall(answer)]
    low, high = dataset.config.min_value, dataset.config.max_value
    right = value == 24 and len(numbers) == 4 and all(low <= number <= high for number in numbers)
    return 1.0 if right else 0.01


def _integration(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    metadata = entry["metadata"]
    return float(is_antiderivative(answer, metadata["integrand"], metadata["variable"]))


def _bitwise_arithmetic(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    return float(int(answer, 0) == int(entry["answer"], 16))


def _number_sorting(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    numbers = _numbers(json.loads(answer.replace("'", '"')))
    targets = _numbers(ast.literal_eval(entry["answer"]))
    descending = entry["metadata"]["direction"] != "ascending"
    if len(numbers) != len(targets) or numbers != sorted(numbers, reverse=descending):
        return 0.0
    # The package allows for rounding by one.
    return float(
        all(abs(number - target) <= 1 for number, target in zip(numbers, targets, strict=True))
    )


def _numbers(values: Any) -> list[float]:
    if not isinstance(values, list):
        raise ValueError("no list")
    numbers = [float(value) for value in values]
    # The package finds NaN in order at any place, and close to every number.
    if any(math.isnan(number) for number in numbers):
        raise ValueError("not a number")
    return numbers


# These replace the package's scorers that take minutes on a short text, or accept wrong texts.


def _propositional_logic(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The package's parser is cubic in the length, and its truth table doubles with each name."""
    tables = TruthTables(sorted(entry["metadata"]["variables"]))
    try:
        conclusion = compute(answer, LOGIC, tables)
    except BadExpressionError:
        return 0.0
    premises = tables.full_table
    for premise in entry["metadata"]["premises"]:
        premises &= compute(premise, LOGIC, tables).table
    if premises & ~conclusion.table:
        return 0.05
    return 0.25 if conclusion.is_variable or conclusion.table == tables.full_table else 1.0


def _game_of_life_halting(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The package's scorer compares bool(text) on both sides, so any text is right."""
    return float(answer.strip().lower() == entry["answer"].lower())


def _spell_backward(dataset: Any, answer: str, entry: Mapping[str, Any]) -> float:
    """The package's scorer accepts the right word with more after it at some lengths: it adds up
    1/n for each of n letters, and 6 × (1/6) is not 1."""
    text, right = answer.lower(), entry["answer"].lower()
    if text == right:
        return 1.0
    match_count = sum(
        letter == right_letter for letter, right_letter in zip(text, right, strict=False)
    )
    return 0.8 if match_count == len(right) else match_count / len(right)


OWN: Mapping[str, Scorer] = {
    "binary_matrix": _as_list(lambda dataset, items: str(dataset._matrix_to_str(items))),
    "bitwise_arithmetic": _bitwise_arithmetic,
    "countdown": _score_countdown,
    "game_of_life_halting": _game_of_life_halting,
    "intermediate_integration": _integration,
    "n_queens": _n_queens,
    "number_sorting": _number_sorting,
    "propositional_logic": _propositional_logic,
    "puzzle24": _puzzle24,
    "simple_integration": _integration,
    "spell_backward": _spell_backward,
    "spiral_matrix": _as_list(lambda _, items: " ".join(map(str, items))),
    "string_insertion": _as_list(lambda _, items: "".join(items)),
}


# These run before the package's scorers. They return the answer to score, or None for a wrong one.


def _guard_coin_flip(answer: str) -> str | None:
    """Fraction("1e999999999") computes that power."""
    exponent = answer.lower().partition("e")[2].strip()
    return answer if len(exponent) <= _MAX_EXPONENT_CHARS else None


def _guard_complex_arithmetic(answer: str) -> str | None:
    """The package finds NaN at no distance from any number."""
    return None if "nan" in answer.lower() else answer


def _guard_rubiks_cube(answer: str) -> str | None:
    """The package expands U999999999 to as many moves. Four turns of a face cancel out."""
    moves = []
    total = 0
    for word in answer.split():
        match = _CUBE_MOVE.fullmatch(word)
        count = int(match[2]) if match is not None and match[2] else 1
        turns = count if count <= 4 else 4 + count % 4
        total += turns
        moves.append(word if match is None or turns == count else f"{match[1]}{turns}")
    return " ".join(moves) if total <= _MAX_CUBE_MOVES else None


def _guard_rush_hour(answer: str) -> str | None:
    """The package tries A+999999999 as many times. A piece cannot move by more than six."""
    return re.sub(r"\d+", lambda digits: str(min(int(digits[0]), _MAX_SLIDE)), answer)


def _guard_sokoban(answer: str) -> str | None:
    return answer if len(answer) <= _MAX_SOKOBAN_MOVES else None


def _guard_boxnet(answer: str) -> str | None:
    """The package searches each move for a bracket from every comma: quadratic time."""
    steps = json.loads(answer)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("no list of tables")
    is_too_long = any(len(value) > _MAX_BOX_MOVE_CHARS for step in steps for value in step.values())
    return None if is_too_long else answer


GUARDS: Mapping[str, Guard] = {
    "boxnet": _guard_boxnet,
    "coin_flip": _guard_coin_flip,
    "complex_arithmetic": _guard_complex_arithmetic,
    "rubiks_cube": _guard_rubiks_cube,
    "rush_hour": _guard_rush_hour,
    "sokoban": _guard_sokoban,
}
