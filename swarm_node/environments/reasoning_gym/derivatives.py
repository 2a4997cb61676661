"""Tells an antiderivative by its derivative, compared at a few complex points.

Forward differentiation in complex numbers has a fixed cost per token. Symbolic simplification has
no such bound, and sympy evaluates a text when it parses it.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from swarm_node.environments.reasoning_gym.expressions import (
    ARITHMETIC,
    BadExpressionError,
    compute,
)

#: In both half planes, so that sqrt(x**2) differs from x, and of different moduli.
POINTS = (0.31 + 0.22j, -0.43 + 0.37j, 0.91 - 0.58j, -1.13 - 0.29j, 0.17 - 1.21j)
#: Relative to the largest term; a float keeps about 1e-16 of each.
TOLERANCE = 1e-9
_MAX_DIGITS = 40
#: The value of any other constant. An answer whose derivative still contains it is wrong.
_CONSTANT = 0.6180339887498949 + 0.3465735902799727j
_OTHER_CONSTANTS = ("const", "constant")
#: Single letters that sympy, which parses the questions, reads as something else.
_TAKEN = "SNOQI"


@dataclass(frozen=True, slots=True)
class _Dual:
    """A value and its derivative with respect to the variable."""

    value: complex
    slope: complex = 0j


def _log_slope(value: complex) -> complex:
    return 1 / value


#: Name -> the function and its derivative. The names are sympy's.
_FUNCTIONS: Mapping[str, tuple[Callable[[complex], complex], Callable[[complex], complex]]] = {
    "sqrt": (cmath.sqrt, lambda z: 0.5 / cmath.sqrt(z)),
    "exp": (cmath.exp, cmath.exp),
    "log": (cmath.log, _log_slope),
    "ln": (cmath.log, _log_slope),
    "sin": (cmath.sin, cmath.cos),
    "cos": (cmath.cos, lambda z: -cmath.sin(z)),
    "tan": (cmath.tan, lambda z: 1 / cmath.cos(z) ** 2),
    "cot": (lambda z: 1 / cmath.tan(z), lambda z: -1 / cmath.sin(z) ** 2),
    "sec": (lambda z: 1 / cmath.cos(z), lambda z: cmath.sin(z) / cmath.cos(z) ** 2),
    "csc": (lambda z: 1 / cmath.sin(z), lambda z: -cmath.cos(z) / cmath.sin(z) ** 2),
    "asin": (cmath.asin, lambda z: 1 / cmath.sqrt(1 - z * z)),
    "acos": (cmath.acos, lambda z: -1 / cmath.sqrt(1 - z * z)),
    "atan": (cmath.atan, lambda z: 1 / (1 + z * z)),
    "sinh": (cmath.sinh, cmath.cosh),
    "cosh": (cmath.cosh, cmath.sinh),
    "tanh": (cmath.tanh, lambda z: 1 / cmath.cosh(z) ** 2),
    "asinh": (cmath.asinh, lambda z: 1 / cmath.sqrt(z * z + 1)),
    "acosh": (cmath.acosh, lambda z: 1 / (cmath.sqrt(z - 1) * cmath.sqrt(z + 1))),
    "atanh": (cmath.atanh, lambda z: 1 / (1 - z * z)),
}


def is_antiderivative(answer: str, integrand: str, variable: str) -> bool:
    """Check that the derivative of `answer` is `integrand`, up to `TOLERANCE` at every point.

    Raises:
        BadExpressionError: one of them is no expression, or too large.
        ArithmeticError: one of them has no value at a point.
    """
    for point in POINTS:
        derivative = compute(answer, ARITHMETIC, _Differentiation(variable, point)).slope
        target = compute(integrand, ARITHMETIC, _Differentiation(variable, point)).value
        # A comparison with NaN is false, so NaN does not pass as a small difference.
        if not abs(derivative - target) <= TOLERANCE * max(1.0, abs(target)):
            return False
    return True


class _Differentiation:
    """Functions of one variable at one point, with their derivatives."""

    def __init__(self, variable: str, point: complex) -> None:
        self._names = {variable: _Dual(point, 1 + 0j)}
        for name, value in (("E", cmath.e), ("pi", cmath.pi)):
            self._names.setdefault(name, _Dual(complex(value)))

    def atom(self, text: str) -> _Dual:
        if text[0].isdigit() or text[0] == ".":
            if len(text) > _MAX_DIGITS:
                raise BadExpressionError("too long a number")
            return _Dual(complex(float(text)))
        if text in self._names:
            return self._names[text]
        if text in _FUNCTIONS or not _names_a_constant(text):
            raise BadExpressionError("an unknown name")
        return _Dual(_CONSTANT)

    def prefix(self, operator: str, value: _Dual) -> _Dual:
        return _Dual(-value.value, -value.slope) if operator == "-" else value

    def binary(self, operator: str, left: _Dual, right: _Dual) -> _Dual:
        match operator:
            case "+":
                return _Dual(left.value + right.value, left.slope + right.slope)
            case "-":
                return _Dual(left.value - right.value, left.slope - right.slope)
            case "*":
                return _Dual(
                    left.value * right.value,
                    left.slope * right.value + left.value * right.slope,
                )
            case "/":
                value = left.value / right.value
                return _Dual(value, (left.slope - value * right.slope) / right.value)
            case "**":
                return _power(left, right)
        raise BadExpressionError("not differentiable")

    def call(self, name: str, value: _Dual) -> _Dual:
        if name not in _FUNCTIONS:
            raise BadExpressionError("an unknown function")
        function, derivative = _FUNCTIONS[name]
        # 0 for a constant, even if the derivative of the function has no value: sqrt(0).
        slope = derivative(value.value) * value.slope if value.slope else 0j
        return _Dual(function(value.value), slope)


def _power(base: _Dual, exponent: _Dual) -> _Dual:
    value = base.value**exponent.value
    slope = 0j
    if base.slope:
        slope += exponent.value * base.value ** (exponent.value - 1) * base.slope
    if exponent.slope:
        slope += value * cmath.log(base.value) * exponent.slope
    return _Dual(value, slope)


def _names_a_constant(name: str) -> bool:
    """Check that `name` is C, c, K, C1, C_2 or the like, which people add to an antiderivative."""
    if name in _OTHER_CONSTANTS:
        return True
    rest = name[1:].removeprefix("_")
    return name[0] not in _TAKEN and (name[1:] == "" or (rest.isdigit() and len(rest) <= 2))
