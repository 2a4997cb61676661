"""Plain numbers and times of day, in the forms in which people write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from swarm_node.environments.mathematics.notation import Token

_TIME: Final = re.compile(
    r"\s*0?(\d{1,2})(?=:|\s?[ap]\.?\s?m)(?::(\d\d))?(?::(\d\d))?\s*([ap]\.?\s?m\.?)?\s*",
    re.IGNORECASE,
)

#: Repeating decimals as a token list writes them: 0.1\\overline{6}, 0.1(6), 0.\\dot{3}.
_REPEATING: Final = re.compile(
    r"(?P<whole>\d{0,64})\.(?P<digits>\d{0,64})"
    r"(?:\\(?:overline|bar)\{(?P<bar>\d{1,64})\}|\\dot\{(?P<dot>\d)\}|\((?P<bracket>\d{1,64})\))"
)


def plain_number(tokens: Sequence[Token]) -> Fraction | None:
    """The exact value of a plain number: an integer, a decimal, a fraction, a mixed number or one
    in scientific notation."""
    sign = 1
    while tokens and tokens[0].text in ("+", "-"):
        sign *= -1 if tokens[0].text == "-" else 1
        tokens = tokens[1:]
    repeating = _REPEATING.fullmatch("".join(token.text for token in tokens))
    if repeating:
        return sign * _repeating_decimal(repeating)
    shape = "".join("0" if token.kind == "number" else token.text for token in tokens)
    if shape not in _SHAPES:
        return None
    numbers = [Fraction(token.text) for token in tokens if token.kind == "number"]
    try:
        return sign * _SHAPES[shape](*numbers)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None


def _repeating_decimal(match: re.Match[str]) -> Fraction:
    """A decimal whose last digits repeat without end."""
    digits = match["digits"] or ""
    period = next(part for part in match.group("bar", "dot", "bracket") if part)
    finite_part = Fraction(int((match["whole"] or "0") + digits), 10 ** len(digits))
    return finite_part + Fraction(int(period), 10 ** len(digits) * (10 ** len(period) - 1))


def _mixed_number(integer: Fraction, numerator: Fraction, denominator: Fraction) -> Fraction:
    if not all(part.denominator == 1 for part in (integer, numerator, denominator)):
        raise ValueError
    return integer + numerator / denominator


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base != 10 or exponent.denominator != 1 or abs(exponent) > 9999:
        raise ValueError
    return base**exponent.numerator


#: Forms of plain numbers, with 0 for digits.
_SHAPES: Final[dict[str, Callable[..., Fraction]]] = {
    "0": lambda n: n,
    "0/0": lambda n, m: n / m,
    r"\frac{0}{0}": lambda n, m: n / m,
    r"\frac{-0}{0}": lambda n, m: -n / m,
    "00/0": _mixed_number,
    r"0\frac{0}{0}": _mixed_number,
    "0^{0}": _power,
    "0^{-0}": lambda n, m: _power(n, -m),
    "0*0^{0}": lambda n, m, k: n * _power(m, k),
    "0*0^{-0}": lambda n, m, k: n * _power(m, -k),
}


def times_of(text: str, *, right: bool) -> list[tuple[str, ...]]:
    """The ways to read a text as a time of day, none if it is no time. Where one side does not say
    whether it is before noon, the other's word counts: `right` allows for that."""
    match = _TIME.fullmatch(text)
    if not match:
        return []
    hour, minute, second, day_half = (part or "" for part in match.groups())
    day_half = day_half[:1].lower()
    halves = [day_half] if not right else ["", day_half] if day_half else ["", "a", "p"]
    return [("time", hour, minute or "00", second, half) for half in halves]
