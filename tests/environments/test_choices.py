"""Choices of rows in the forms of public sets, and which of them is right."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from swarm_node.environments.choices import choices_of, has_choices, right_letter
from swarm_node.environments.fields import answer_of

XYZ = ["x", "y", "z"]


@pytest.mark.parametrize(
    ("row", "letter"),
    [
        ({"choices": XYZ, "answer": 2}, "C"),
        ({"choices": XYZ, "answer": "2"}, "C"),
        ({"choices": ["Unknown", "True", "False"], "answer": False}, "C"),
        ({"choices": XYZ, "answer": "c"}, "C"),
        ({"choices": XYZ, "answer": "(C)"}, "C"),
        ({"choices": XYZ, "answer": "z"}, "C"),
        ({"choices": ["B", "C", "A"], "answer": "A"}, "C"),  # its text, before a letter
        ({"choices": [5, 6, Decimal("7.0")], "answer": 7}, "C"),  # no index
        ({"choices": {"text": XYZ, "label": ["A", "B", "C"]}, "answerKey": "C"}, "C"),
        ({"choices": {"text": XYZ, "label": ["1", "2", "3"]}, "answerKey": "3"}, "C"),
        ({"choices": {"text": XYZ, "label": ["1", "2", "3"]}, "answerKey": 3}, "C"),
        ({"question": {"stem": "q", "choices": [{"label": f"{at}", "text": text}
          for at, text in zip("ABC", XYZ, strict=True)]}, "answerKey": "C"}, "C"),
        ({"options": ["A)x", "B)y", "C)z"], "correct": "C"}, "C"),
        ({"options": ["(a) x", "(b) y", "(c) z"], "correct": "c"}, "C"),
        ({"options": ["1. x", "2. y", "3. z"], "answer": "3. z"}, "C"),
        ({"options": {"A": "x", "B": "y", "C": "z"}, "answer": "z"}, "C"),
        ({"A": "x", "B": "y", "C": "z", "answer": "C"}, "C"),
        ({"ctx": "q", "endings": XYZ, "label": "2"}, "C"),
        ({"options": "A) x B) y C) z", "answer": "C"}, "C"),
        ({"options": "a ) x , b ) y , c ) z", "correct": "c"}, "C"),
        ({"options": "A. x\nB. y\nC. z", "answer": 2}, "C"),
        ({"options": "x\ny\n\nz\n", "answer": "z"}, "C"),
    ],
    ids=str,
)  # fmt: skip
def test_the_right_choice_is_found(row: dict[str, Any], letter: str) -> None:
    choices = choices_of(row, "")
    field, given = answer_of(row, "")
    assert right_letter(given, field, choices) == letter
    if choices.texts[0] == "x":
        assert choices.texts == tuple(XYZ)


def test_texts_that_only_look_labelled_stay_whole() -> None:
    for texts in (["1.5", "2.5"], ["A) x", "y"], ["B. x", "C. y"], ["a priori", "b minor"]):
        assert choices_of({"choices": texts}, "").texts == tuple(texts)
    found = choices_of({"choices": "A. a vitamin B. U. S. ships"}, "")
    assert found.texts == ("a vitamin", "U. S. ships")


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q"},
        {"choices": None},
        {"choices": ["x"]},
        {"choices": ["x"] * 27},
        {"choices": ["x", None]},
        {"choices": ["x", " "]},
        {"choices": ["x", ["y"]]},
        {"choices": ["\ud800", "y"]},
        {"choices": {"text": XYZ, "label": ["A"]}},
        {"choices": {"text": XYZ, "label": ["A", "B", "b"]}},
        {"choices": [{"label": "A", "text": "x"}, {"text": "y"}]},
        {"choices": "5, 7, 9"},
        {"choices": "A) plan B) works B) no"},
        {"choices": 5},
    ],
    ids=str,
)
def test_choices_that_cannot_be_told_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"choice"):
        choices_of(row, "")


@pytest.mark.parametrize("given", [3, -1, "D", "w", "", None, ["x", "y"], {"x": 1}, 1.5], ids=str)
def test_an_answer_that_is_no_choice_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"answer"):
        right_letter(given, "answer", choices_of({"choices": XYZ}, ""))


def test_rows_with_choices_are_told_from_others() -> None:
    assert has_choices({"options": XYZ}, "")
    assert has_choices({"q": {"c": XYZ}}, "q.c")
    assert not any(has_choices(row, "") for row in ({}, {"choices": None}, {"choices": []}))
