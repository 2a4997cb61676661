"""Numbers of rows: their canonical text, and the ways of writing one."""

from __future__ import annotations

from decimal import Decimal

import pytest
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.environments.lists.rows import number_of, number_text, same_number


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("1e+22", "10000000000000000000000"),
        ("1.1e22", "11000000000000000000000"),
        ("18.0", "18"),
        ("-0.50", "-0.5"),
        ("6.5e-2", "0.065"),
        ("0e999", "0"),
        ("-0.0", "0"),
        ("9007199254740993", "9007199254740993"),
        ("123456789.000000000000000001", "123456789.000000000000000001"),
        ("1200", "1200"),
        ("1e30", "1" + "0" * 30),
        ("1e31", "1e31"),
        ("12e40", "1.2e41"),
        ("-1e-31", "-0." + "0" * 30 + "1"),
        ("1e-32", "1e-32"),
        ("6.62e-34", "6.62e-34"),
    ],
)
def test_a_number_is_written_as_people_write_it(written: str, text: str) -> None:
    assert number_text(Decimal(written)) == text
    assert number_of(text) == Decimal(written)
    assert same_number(written, text)


@examples(200)
@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(
        lambda value: abs(value.adjusted()) < 900
    )
)
def test_the_canonical_text_keeps_the_value(value: Decimal) -> None:
    text = number_text(value)
    assert Decimal(text) == value
    assert number_text(Decimal(text)) == text


@pytest.mark.parametrize(
    ("answer", "right", "same"),
    [
        ("10000000000000000000000", "10000000000000000000000", True),
        ("1e22", "10000000000000000000000", True),
        ("1E+22", "10000000000000000000000", True),
        ("18.00", "18", True),
        ("+18", "18", True),
        ("\N{MINUS SIGN}5", "-5", True),
        ("1234", "1,234", True),
        ("1,234.0", "1234", True),
        (".5", "0.5", True),
        ("9007199254740992", "9007199254740993", False),
        ("7", "007", False),  # a word
        ("18.0", "18.0", False),  # as well: the row has it as a text
        ("12,34", "1234", False),
        ("18 apples", "18", False),
        ("", "0", False),
        (".", "0", False),
        ("e5", "0", False),
        ("nan", "0", False),
        ("1" * 1001, "1" * 1001, False),
        ("1e9999", "1", False),
    ],
)  # fmt: skip
def test_two_texts_are_the_same_number(answer: str, right: str, same: bool) -> None:
    assert same_number(answer, right) is same
