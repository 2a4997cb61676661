"""Whether two answers are equal as mathematics. math-verify compares what is an expression; lists,
tuples, matrices, units and plain numbers are compared here."""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

from swarm_node.environments.mathematics.brackets import key_of, partners, strip_marks
from swarm_node.environments.mathematics.limit import quieten
from swarm_node.environments.mathematics.notation import Token, normalize_notation, tokens_of
from swarm_node.environments.mathematics.structure import (
    MAX_MATH_CHARS,
    Matrix,
    Reading,
    Relation,
    Several,
    Value,
    Words,
    readings,
)
from swarm_node.environments.mathematics.vocabulary import number_in_words

#: More tokens, or deeper brackets, are not given to the grammar, whose time grows with them.
_MAX_TOKENS: Final = 200
_MAX_DEPTH: Final = 12
#: A decimal may differ in the sixth place, as by math-verify's `float_rounding`, and by that share
#: of the larger number, so that 1e-8 and 2e-8 differ.
_PLACES: Final = Fraction(5, 10**7)
_SHARE: Final = Fraction(1, 10**6)
#: Exact expressions whose values differ by less are equal, as by math-verify's `numeric_precision`.
_PRECISION: Final = 1e-15
#: Values at one point that differ by more are of different expressions.
_PROBED: Final = 1e-6
_INTERVALS: Final = ("()", "[]", "[)", "(]", "cup")


def equal(answer: str, right: str) -> bool:
    """True if two answers are the same, as words or as mathematics."""
    if answer.split() == right.split():
        return True
    if max(len(answer), len(right)) > MAX_MATH_CHARS:
        if len(answer) > 2 * len(right):
            return False
        first, second = (
            key_of(strip_marks(tokens_of(normalize_notation(text)))) for text in (answer, right)
        )
        return first == second != ()
    targets, candidates = list(readings(right, right=True)), list(readings(answer))
    if all(_is_approximate(ways[0]) for ways in (targets, candidates)):
        return same(candidates[0], targets[0])  # not by one side of each
    return any(same(candidate, target) for candidate in candidates for target in targets)


def _is_approximate(reading: Reading) -> bool:
    return isinstance(reading, Relation) and r"\approx" in key_of(reading.tokens)


def load() -> None:
    """Import and compile what a comparison needs, which takes seconds."""
    quieten()
    equal("x + 1", "1 + x")


def same(answer: Reading, right: Reading) -> bool:
    """True if a reading of an answer is equal to one of the right answer."""
    match answer, right:
        case Words(), Words():
            return bool(right.key) and answer.key == right.key
        case Relation(), Relation():
            return _same_relations(answer, right)
        case Relation(sign="="), _ if answer.names is not None:
            return same(answer.value, right)
        case _, Relation(sign="=") if right.names:
            return not isinstance(right.value, Words) and same(answer, right.value)
        case Several(), Several():
            return _same_several(answer, right)
        case Matrix(), Matrix():
            return len(answer.rows) == len(right.rows) and all(map(_pairs, answer.rows, right.rows))
        case (Matrix() as matrix, Several() as vector) | (Several() as vector, Matrix() as matrix):
            return vector.brackets in ("()", "[]") and _pairs(_vector(matrix), vector.parts)
        case Value(), Value():
            return _same_values(answer, right)
        case (Words() as words, Value() as value) | (Value() as value, Words() as words):
            return _same_word(words, value)
    sets = (_set_tokens(answer), _set_tokens(right))
    return None not in sets and by_engine(sets[0] or (), sets[1] or ())


def _set_tokens(reading: Reading) -> tuple[Token, ...] | None:
    """The tokens of what may be a set of numbers: an interval, an inequality, a name of a set."""
    match reading:
        case Several() if reading.brackets in _INTERVALS:
            return reading.tokens
        case Value() | Relation(sign="order"):
            return reading.tokens
    return None


def _same_relations(answer: Relation, right: Relation) -> bool:
    if key_of(answer.tokens) == key_of(right.tokens):
        return True
    if answer.names == () or right.names == ():  # 1 + 1 = 2 says nothing of a name
        is_same_form = answer.names == right.names and answer.sides == right.sides == 2
        return is_same_form and same(answer.left, right.left) and same(answer.value, right.value)
    sides = {answer.sides, right.sides}
    if answer.names and answer.names == right.names and 2 in sides:
        return same(answer.value, right.value)
    if sides != {2}:  # of two chains, math-verify compares the ends only
        return False
    return by_engine(answer.tokens, right.tokens)


def _same_several(answer: Several, right: Several) -> bool:
    """(1, 2) is a pair or an interval, in order. A list without brackets is one of values in any
    order, unless the other side is in order."""
    kinds = (answer.brackets, right.brackets)
    intervals = all(kind in _INTERVALS for kind in kinds)
    if len(answer.parts) == len(right.parts):
        if set(kinds) in ({""}, {"cup"}, {"{}"}, {"", "{}"}, {"", "cup"}):  # x < 1 or x > 2
            return _in_any_order(answer.parts, right.parts)
        if "{}" in kinds:  # [1, 2, 3] is how Python writes a list; [1, 2] may be an interval
            return (
                kinds == ("[]", "{}")
                and len(answer.parts) > 2
                and _in_any_order(answer.parts, right.parts)
            )
        if kinds == ("[]", ""):
            return _in_any_order(answer.parts, right.parts)
        if "" in kinds:
            return "()" in kinds and _pairs(answer.parts, right.parts)
        if kinds[0] == kinds[1] and _pairs(answer.parts, right.parts):
            return True
    return intervals and "cup" in kinds and by_engine(answer.tokens, right.tokens)


def _pairs(answer: Sequence[Reading], right: Sequence[Reading]) -> bool:
    return len(answer) == len(right) and all(map(same, answer, right))


def _in_any_order(answer: Sequence[Reading], right: Sequence[Reading]) -> bool:
    left = list(answer)
    for target in right:
        match = next((part for part in left if same(part, target)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _vector(matrix: Matrix) -> tuple[Reading, ...]:
    """The entries of a matrix of one row or column, else none."""
    if len(matrix.rows) == 1:
        return matrix.rows[0]
    return tuple(row[0] for row in matrix.rows) if all(len(row) == 1 for row in matrix.rows) else ()


def _same_values(answer: Value, right: Value) -> bool:
    if answer.units and right.units:
        if answer.units != right.units:
            return False
    elif answer.nouns and right.nouns and not answer.nouns & right.nouns:
        return False  # apples and oranges
    if right.leading_nouns and not (
        right.nouns or right.units or answer.leading_nouns & right.leading_nouns
    ):
        return False  # Room 12 and Gate 12
    if answer.number is not None and right.number is not None:
        return _same_numbers(answer, right)
    if answer.percent != right.percent:
        return False
    return key_of(answer.tokens) == key_of(right.tokens) or by_engine(answer.tokens, right.tokens)


def _same_numbers(answer: Value, right: Value) -> bool:
    """A percent sign on one side alone is a unit, or it stands for a hundredth. In .5% it can only
    be that, because .5 is a share itself."""
    numbers = [answer.number or Fraction(0), right.number or Fraction(0)]
    decimal = answer.decimal or right.decimal
    if answer.percent != right.percent:
        place = 0 if answer.percent else 1
        may_be_unit = numbers[place].denominator == 1 or abs(numbers[place]) > 1
        if may_be_unit and _close(*numbers, decimal=decimal):
            return True
        numbers[place] /= 100
    return _close(*numbers, decimal=decimal)


def _close(first: Fraction, second: Fraction, *, decimal: bool) -> bool:
    tolerance = min(_PLACES, _SHARE * max(abs(first), abs(second)))
    return first == second or (decimal and abs(first - second) <= tolerance)


def _same_word(words: Words, value: Value) -> bool:
    """Whether words say a value: by its letter, as a number in words, or as a product."""
    if words.key == key_of(value.tokens):
        return True
    number = number_in_words(words.key)
    if number is not None:
        return value.number == number and not value.units and not value.percent
    return _is_product(words) and by_engine(_letters(words), value.tokens)


def _is_product(words: Words) -> bool:
    """True for two or three letters, which may be a product as well as a word."""
    if len(words.key) != 1 or not 2 <= len(words.key[0]) <= 3 or not words.key[0].isascii():
        return False
    return len(set(words.key[0])) == len(words.key[0])  # Tt is no square: words have no capitals


def _letters(words: Words) -> list[Token]:
    return [Token("name", letter) for letter in words.key[0]]


def by_engine(answer: Sequence[Token], right: Sequence[Token]) -> bool:
    """True if math-verify finds two expressions, relations or sets equal."""
    from math_verify import verify

    try:
        first, second = _parse_tokens(answer), _parse_tokens(right)
        if first is None or second is None:
            return False
        for compare in (_numerically, _as_equations, _as_symbols, _at_a_point):
            equal_so = compare(first, second)
            if equal_so is not None:
                return equal_so
        return bool(verify(second, first, timeout_seconds=None, allow_set_relation_comp=True))
    except Exception:  # noqa: BLE001 - a library's errors of any kind mean no
        # sympy raises errors of any kind for what is no sensible expression, and nothing else is
        # called here.
        return False


def _parse_tokens(tokens: Sequence[Token]) -> Any:
    """sympy's expression of tokens, or None if the grammar does not know them."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify.grader import should_treat_as_complex

    if not 0 < len(tokens) <= _MAX_TOKENS or _depth(tokens) > _MAX_DEPTH or _is_opaque(tokens):
        return None
    latex = latex_of(tokens)
    # The notation is in one form by now, and what is left as a unit would be left out here. R is
    # not r.
    return latex2sympy(
        latex,
        is_real=not should_treat_as_complex(latex),
        normalization_config=NormalizationConfig(units=False, boxed="none"),
        conversion_config=ConversionConfig(lowercase_symbols=False),
    )


def _is_opaque(tokens: Sequence[Token]) -> bool:
    """True for what the grammar drops or evaluates, so that it is compared sign by sign: words,
    primes, transposes, derivatives, and digits with a base."""
    for place, token in enumerate(tokens):
        lookahead = key_of(tokens[place + 1 : place + 4])
        if token.kind == "word" or token.text in ("'", r"\prime", r"\partial", r"\ldots"):
            return True
        if token.kind == "number" and lookahead[:1] == ("_",):
            return True
        if token.text == "^" and lookahead in (("{", "T", "}"), ("{", "*", "}")):
            return True
        if token.text == "}" and lookahead[:2] == ("{", "d") and lookahead[2:] != ("}",):
            return True
    return False


def _depth(tokens: Sequence[Token]) -> int:
    """How deep braces and brackets lie in each other."""
    depth = max_depth = 0
    for token in tokens:
        depth += (token.text in ("(", "{", "[")) - (token.text in (")", "}", "]"))
        max_depth = max(max_depth, depth)
    return max_depth


def latex_of(tokens: Sequence[Token]) -> str:
    """Tokens as LaTeX. A quotient by a number or bracket is a factor: 5/9(F-32) is meant as five
    ninths of the bracket, where the grammar would divide by all that follows."""
    partner = partners(tokens)
    parts: list[str] = []
    closing: set[int] = set()
    for place, token in enumerate(tokens):
        end = place + 1
        if token.text == "/" and end < len(tokens):
            end = partner.get(end, end) if tokens[end].text == "(" else end
            is_factor = tokens[place + 1].kind == "number" or end > place + 1
            if is_factor and key_of(tokens[end + 1 : end + 2]) not in (("^",), ("!",)):
                parts.append(r"\cdot \frac{1}{")
                closing.add(end)
                continue
        # A command ends before a letter or digit by a space only.
        latex = _latex(token)
        parts.append(latex + " " * (latex[0] == "\\" and latex[-1].isalpha()))
        parts.append("}" * (place in closing))
    return "".join(parts)


def _latex(token: Token) -> str:
    if token.kind == "number" and "E" in token.text:
        digits, _, exponent = token.text.partition("E")
        return rf"({digits} \cdot 10^{{{int(exponent)}}})"
    if token.text[:2] in ("b:", "e:"):
        name = "pmatrix" if token.text[2:] == "matrix" else "vmatrix"
        return rf"\{'begin' if token.text[0] == 'b' else 'end'}{{{name}}}"
    return {"*": r"\cdot", r"\cr": r"\\", "%": r"\%"}.get(token.text, token.text)


def _as_equations(first: Any, second: Any) -> bool | None:
    """Whether two equations say the same: what is zero in one is a multiple of what is zero in the
    other. None if they are no equations. math-verify finds any two without a real solution equal.
    """
    from sympy import Eq, simplify

    if not isinstance(first, Eq) or not isinstance(second, Eq):
        return None
    if not first.free_symbols or not second.free_symbols:
        sides = ((first.lhs, second.lhs), (first.rhs, second.rhs))
        return all(bool(_numerically(*pair)) for pair in sides)
    if first.free_symbols != second.free_symbols:
        return False
    ratio = (first.lhs - first.rhs) / (second.lhs - second.rhs)
    values = [_value_at(ratio, index) for index in (0, 1)]
    if None not in values and abs(values[0] - values[1]) > _PROBED * abs(values[0]):
        return False
    ratio = simplify(ratio)
    return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)


def _as_symbols(first: Any, second: Any) -> bool | None:
    """Whether two names are the same, or None if neither is one. math-verify takes M_1 for m_1, and
    abc for a product."""
    from sympy import Symbol

    if not isinstance(first, Symbol) and not isinstance(second, Symbol):
        return None
    return bool(first == second)


def _at_a_point(first: Any, second: Any) -> bool | None:
    """False if two expressions have other values where their variables have the same; else None.
    It saves the search for a form in which they are equal."""
    from sympy import Expr

    if not isinstance(first, Expr) or not isinstance(second, Expr):
        return None
    values = [_value_at(expression, 0) for expression in (first, second)]
    if None in values:
        return None
    size = max(1.0, *map(abs, values))
    return False if abs(values[0] - values[1]) > _PROBED * size else None


def _value_at(expression: Any, index: int) -> Any:
    """The value of an expression at a point that depends on the names of its variables alone, or
    None if it has none there. sympy raises errors of any kind where it is not defined."""
    from sympy import Rational

    point = {
        symbol: Rational(7 + 10 * index + sum(map(ord, symbol.name)) % 89, 23)
        for symbol in expression.free_symbols
    }
    try:
        value = complex(expression.subs(point).evalf(15))
    except Exception:  # noqa: BLE001 - a library's errors of any kind mean no value
        return None
    return value if cmath.isfinite(value) else None


def _numerically(first: Any, second: Any) -> bool | None:
    """Whether two expressions without variables have one value, or None if one has variables.

    math-verify rounds to six places and to zero what is below 1e-15, so it finds 1e-8 and 2e-8
    equal."""
    from sympy import Expr, Float

    if not all(
        isinstance(expression, Expr) and expression.is_number for expression in (first, second)
    ):
        return None
    values = [complex(expression.evalf(30)) for expression in (first, second)]
    if not all(map(cmath.isfinite, values)):
        return None
    decimal = first.has(Float) or second.has(Float)
    size = max(map(abs, values))
    tolerance = min(float(_PLACES), float(_SHARE) * size) if decimal else _PRECISION * size
    return abs(values[0] - values[1]) <= tolerance
