"""Choices of rows in the forms of public sets, and which of them is right."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from swarm_node.environments.lists.choices import (
    choices_of,
    points_at,
    right_letter,
    unshown_choices,
)
from swarm_node.environments.lists.fields import answer_of

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
        ({"choice1": "x", "choice2": "y", "choice3": "z", "label": 2}, "C"),
        ({"option1": "x", "option2": "y", "option3": "z", "answer": "3"}, "C"),
        ({"answerA": "x", "answerB": "y", "answerC": "z", "label": "3"}, "C"),
        ({"answer0": "x", "answer1": "y", "answer2": "z", "label": "2"}, "C"),
        ({"opa": "x", "opb": "y", "opc": "z", "answer": 2}, "C"),
        ({"answers": XYZ, "label": 2}, "C"),
        ({"choices": XYZ, "answer": Decimal("2.0")}, "C"),
        ({"choices": ["1 : 2", "2 : 3", "3 : 4"], "answer": "3 : 4"}, "C"),
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


def test_choices_are_unshown_where_the_question_does_not_quote_them() -> None:
    for row, name in (
        ({"options": XYZ}, ""),
        ({"q": {"c": XYZ}}, "q.c"),
        ({"options": "A) x B) y"}, ""),
        ({"choice1": "x", "choice2": "y"}, ""),
    ):
        assert unshown_choices(row, name, "Which?")
        assert not unshown_choices(row, name, "Which? x, y or z?")
    for row in ({}, {"choices": None}, {"choices": []}, {"answers": XYZ}, {"option1": "x"}):
        assert not unshown_choices(row, "", "Which?")


def test_an_answer_points_at_a_choice_if_it_is_not_its_text() -> None:
    choices = choices_of({"choices": ["1", "2", "blue"]}, "")
    assert [points_at(right, right, choices) for right in ("B", "0", "1", "Blue", "7")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    apart = choices_of({"choice1": "x", "choice2": "y"}, "")
    assert all(points_at(int(index), index, apart) for index in ("0", "1"))
    assert not points_at("0", "0", apart)
