"""Computes expressions in an answer while it parses them. Nothing in the text is run as code.

One parser serves three kinds of values: exact numbers, truth tables, and functions of one variable
with their derivative at a point. Its cost is linear in the text, and its depth is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

#: Nesting of parentheses, signs and operators.
MAX_DEPTH = 64
MAX_TOKENS = 512
#: Bits of a numerator or denominator, also of intermediate results.
MAX_BITS = 1024
_MAX_DIGITS = 300
_MAX_EXPONENT = 64

_Value = TypeVar("_Value")


class BadExpressionError(ValueError):
    """The text is no expression of this kind, or one over the limits."""


class Algebra(Protocol[_Value]):
    """The meaning of the parts of an expression. Each method may raise an `ArithmeticError`, or a
    `BadExpressionError` for an unknown part."""

    def atom(self, text: str) -> _Value:
        """A number or a name."""
        ...

    def prefix(self, operator: str, value: _Value) -> _Value: ...

    def binary(self, operator: str, left: _Value, right: _Value) -> _Value: ...

    def call(self, name: str, value: _Value) -> _Value:
        """A function of one argument."""
        ...


@dataclass(frozen=True, slots=True)
class Grammar:
    """Operators and their precedence: a larger number binds more."""

    tokens: re.Pattern[str]
    prefix: Mapping[str, int]
    binary: Mapping[str, int]
    #: Right-associative operators.
    from_right: frozenset[str] = frozenset()


#: Python's own precedence: -2**2 is -4, and 2**-1 is 1/2.
ARITHMETIC = Grammar(
    re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+|[A-Za-z][A-Za-z0-9_]*|\*\*|//|[-+*/%()])", re.ASCII),
    prefix={"-": 3, "+": 3},
    binary={"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4},
    from_right=frozenset({"**"}),
)
_NOT, _AND, _OR = "\N{NOT SIGN}", "\N{LOGICAL AND}", "\N{LOGICAL OR}"
_IMPLIES, _SAME = "\N{RIGHTWARDS ARROW}", "\N{LEFT RIGHT ARROW}"
LOGIC = Grammar(
    re.compile(rf"\s*([A-Z{_NOT}{_AND}{_OR}{_IMPLIES}{_SAME}()])"),
    prefix={_NOT: 5},
    binary={_SAME: 1, _IMPLIES: 2, _OR: 3, _AND: 4},
)


def compute(text: str, grammar: Grammar, algebra: Algebra[_Value]) -> _Value:
    """The value of the expression `text`.

    Raises:
        BadExpressionError: it is no expression, or too large.
        ArithmeticError: it has no value.
    """
    reader = _ExpressionReader(_tokens(text, grammar.tokens), grammar, algebra)
    value = reader.expression(0, 0)
    if reader.position != len(reader.tokens):
        raise BadExpressionError("something follows the expression")
    return value


def _tokens(text: str, pattern: re.Pattern[str]) -> list[str]:
    tokens: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = pattern.match(text, position)
        if match is None or len(tokens) == MAX_TOKENS:
            raise BadExpressionError("no expression, or too long a one")
        tokens.append(match[1])
        position = match.end()
    return tokens


class _ExpressionReader(Generic[_Value]):
    """Precedence climbing: `expression` reads operators of precedence `binding` or more."""

    def __init__(self, tokens: Sequence[str], grammar: Grammar, algebra: Algebra[_Value]) -> None:
        self.tokens = tokens
        self.position = 0
        self._grammar = grammar
        self._algebra = algebra

    def expression(self, binding: int, depth: int) -> _Value:
        if depth > MAX_DEPTH:
            raise BadExpressionError("too deep")
        value = self._operand(depth)
        while True:
            operator = self._peek()
            strength = self._grammar.binary.get(operator, -1)
            if strength < max(binding, 0):
                return value
            self.position += 1
            from_right = operator in self._grammar.from_right
            # A sign may follow an operator of higher precedence: 2**-1.
            right = self.expression(strength if from_right else strength + 1, depth + 1)
            value = self._algebra.binary(operator, value, right)

    def _operand(self, depth: int) -> _Value:
        first = self._peek()
        self.position += 1
        if first in self._grammar.prefix:
            value = self.expression(self._grammar.prefix[first], depth + 1)
            return self._algebra.prefix(first, value)
        if first == "(":
            return self._read_parenthesized(depth)
        if not (first[:1].isalnum() or first[:1] == "."):
            raise BadExpressionError("a value is missing")
        if self._peek() != "(":
            return self._algebra.atom(first)
        self.position += 1
        return self._algebra.call(first, self._read_parenthesized(depth))

    def _read_parenthesized(self, depth: int) -> _Value:
        value = self.expression(0, depth + 1)
        if self._peek() != ")":
            raise BadExpressionError("a parenthesis is not closed")
        self.position += 1
        return value

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""


class Exact:
    """Exact rational numbers. No names, no functions; exponents are small integers."""

    def atom(self, text: str) -> Fraction:
        # As in Python, no integer but zero starts with a zero.
        if not (text[0].isdigit() or text[0] == ".") or len(text) > _MAX_DIGITS:
            raise BadExpressionError("not a number, or too long a one")
        if text.isdigit() and text[0] == "0" and text.strip("0"):
            raise BadExpressionError("a number starts with a zero")
        return Fraction(text)

    def prefix(self, operator: str, value: Fraction) -> Fraction:
        return -value if operator == "-" else value

    def binary(self, operator: str, left: Fraction, right: Fraction) -> Fraction:
        if operator == "**":
            return _check_bounds(self._power(left, right))
        operation: Callable[[Fraction, Fraction], Fraction | int] = _EXACT[operator]
        return _check_bounds(Fraction(operation(left, right)))

    def call(self, name: str, value: Fraction) -> Fraction:
        raise BadExpressionError("no functions here")

    def _power(self, base: Fraction, exponent: Fraction) -> Fraction:
        if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
            raise BadExpressionError("the exponent is no small whole number")
        # The base has at most MAX_BITS, so the power is bounded even before the check.
        return Fraction(base ** int(exponent))


_EXACT: Mapping[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}


def _check_bounds(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise BadExpressionError("too large a number")
    return value


@dataclass(frozen=True, slots=True)
class Truth:
    """Bit i of `table` is the truth value under assignment i. `is_variable`: a single variable."""

    table: int
    is_variable: bool = False


class TruthTables:
    """Propositions over the given variables; any other name is refused."""

    def __init__(self, variables: Sequence[str]) -> None:
        self.full_table = (1 << (1 << len(variables))) - 1
        self._variables: dict[str, Truth] = {}
        for index, name in enumerate(variables):
            # Zeros and ones in turn, 2^index of each: all divided by 2^(2^index) + 1.
            zeros_then_ones = self.full_table // ((1 << (1 << index)) + 1)
            self._variables[name] = Truth(zeros_then_ones << (1 << index), is_variable=True)

    def atom(self, text: str) -> Truth:
        if text not in self._variables:
            raise BadExpressionError("a variable that the question does not have")
        return self._variables[text]

    def prefix(self, operator: str, value: Truth) -> Truth:
        return Truth(self.full_table ^ value.table)

    def binary(self, operator: str, left: Truth, right: Truth) -> Truth:
        if operator == _AND:
            return Truth(left.table & right.table)
        if operator == _OR:
            return Truth(left.table | right.table)
        if operator == _IMPLIES:
            return Truth((self.full_table ^ left.table) | right.table)
        return Truth(self.full_table ^ left.table ^ right.table)

    def call(self, name: str, value: Truth) -> Truth:
        raise BadExpressionError("no functions here")
