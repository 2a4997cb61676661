"""The letter of a choice, in the forms in which chat models name one."""

# ruff: noqa: RUF001 - typographic signs are read too

from __future__ import annotations

from typing import Final

import pytest

from swarm_node.environments.answers.letters import letter_of

CITIES: Final = ("Lyon", "Paris", "Nice", "Rome")
RIGHT: Final = [
    "B",
    "b",
    "(B)",
    "(b)",
    "B)",
    "B.",
    "[B]",
    "**B**",
    "**B.**",
    "*B*",
    "`B`",
    '"B"',
    "'B'",
    "$B$",
    "\\boxed{B}",
    "\\text{B}",
    "\\boxed{\\text{B}}",
    "\\boxed{(B)}",
    "$\\boxed{B}$",
    "\\mathrm{B}",
    "\\textbf{(B)}",
    "Option B",
    "option b",
    "Choice B",
    "Answer: B",
    "Answer B",
    "The answer is B",
    "The answer is B.",
    "The answer is (B)",
    "The correct answer is B",
    "The correct option is B",
    "the best answer is **B**",
    "The answer is option B",
    "Answer: B. Paris",
    "Answer: (B) Paris",
    "Answer: **B. Paris**",
    "B. Paris",
    "B) Paris",
    "B: Paris",
    "B - Paris",
    "B – Paris",
    "B, Paris",
    "(B) Paris",
    "[B] Paris",
    "B Paris",
    "Paris",
    "paris",
    "Paris.",
    "**Paris**",
    '"Paris"',
    "Paris (B)",
    "Paris, B",
    "B is correct",
    "B is the correct answer",
    "Option B is correct.",
    "Option B: Paris",
    "B because it is the capital",
    "B, because it is the capital.",
    "B\nBecause it is the capital.",
    "B.\n\nParis is the capital of France.",
    "B. Paris, because the seat of government is there",
    "I choose B",
    "I think it is B",
    "It is B.",
    "It's B",
    "So the answer is B",
    "Therefore B",
    "Final answer: B",
    "Final Answer: (B)",
    "#### B",
    "The capital is Paris",
    "Ｂ",
    "B。",
    "The letter is B",
    "My answer: B",
    "Correct answer: B",
    "B (Paris)",
    "B. paris",
    "<b>B</b>",
    "The answer is: B) Paris.",
    "**Answer:** B",
    "**Answer: B**",
    "Answer:\nB",
    "The correct choice is **B) Paris**.",
    "Hence, option (B) is right.",
    "option_b",
]
WRONG: Final = [
    "A",
    "C",
    "",
    "AB",
    "A or B",
    "B or A",
    "B and C",
    "A, B",
    "B. No, wait: A",
    "Both A and B",
    "B/C",
    "A. Rome, not B",
    "not B",
    "Rome",
    "B. Rome",
    "E",
    "Because",
    "Lyon",
    "Paris or Lyon",
    "B C",
    "Either B or D",
    "all of them",
    "A B C D",
    "none",
    "The answer is A, not B",
    "B is wrong",
    "Not Paris",
    "I don't know",
    "B is not correct",
    "A (not B)",
    "B? Or A?",
    "B, C",
    "ABCD",
    "The answer is A. B is wrong.",
    "B → no, C",
    "BC",
]


@pytest.mark.parametrize("text", RIGHT)
def test_a_letter_or_its_text_is_found(text: str) -> None:
    assert letter_of(text, CITIES) == "B"


@pytest.mark.parametrize("text", WRONG)
def test_another_letter_two_or_none_are_not_taken(text: str) -> None:
    assert letter_of(text, CITIES) != "B"


def test_numbers_as_choices() -> None:
    choices = ("5", "12", "8", "7")
    for text in ("12", "B", "B) 12", "12.", "$12$", "The answer is 12"):
        assert letter_of(text, choices) == "B", text
    for text in ("5", "A) 12", "1"):
        assert letter_of(text, choices) != "B", text


def test_signs_and_units_are_of_the_text() -> None:
    signed, speeds = ("-5", "5", "0", "1"), ("10 m/s", "10 m", "100 m/s", "1 m/s")
    assert [letter_of(text, signed) for text in ("A. -5", "B. -5", "-5", "B. 5")] == [
        "A",
        None,
        "A",
        "B",
    ]
    assert letter_of("The speed is 10 m/s", speeds) == "A"
    assert letter_of("12.5", ("5", "12", "8", "7")) is None
    assert letter_of("The answer is B, not A.", CITIES) == "B"
    assert letter_of("C", ("A", "C", "B", "D")) == "C"
