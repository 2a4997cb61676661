"""Where the final answer of a text is, and what it costs to compare it."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from builders import examples
from cpu_time import within
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.environments.answers.final import MAX_SCORED_CHARS, final_answer, only_answer
from swarm_node.environments.answers.scoring import (
    score_choice,
    score_exact,
    score_math,
    unmarked_values,
)
from swarm_node.environments.mathematics import limit


@pytest.mark.parametrize(
    ("text", "right", "reward"),
    [
        ("The ratio is 2:1", "1", 0),
        ("2 hours 30 minutes", "30", 0),
        ("Therefore the area is 12*sqrt(3).", "3", 0),
        ("The value is 2\\pi", "2", 0),
        ("The value is 6 1/2", "1/2", 0),
        ("The value is 6 \u00d7 10^3", "3", 0),
        ("The point is (3, 4).", "4", 0),
        ("The point is (3, 4).", "(3,4)", 1),
        ("So x > 6", "6", 0),
        ("So x = 5 or x = 6.", "6", 0),
        ("at least 6", "6", 0),
        ("The total is 3 dozen.", "3", 0),
        ("The total is 3 dozen.", "36", 1),
        ("#### Final Answer\n\n5", "5", 1),
        ("\\boxed{5}\n\n\\boxed{5}", "5", 1),
        ("$x = \\boxed{1}$ or $x = \\boxed{-2}$", "1,-2", 1),
        ("The answer is 6, not 5.", "6", 1),
        ("The answer is 6, not 5.", "5", 0),
        ("So he makes **$18** every day at the farmers' market.", "18", 1),
        ("The answer is 5.", "5", 1),
        ("So the total is 5 + 7 = 12 apples.", "12", 1),
        ("First we get 3, then 4.\nTherefore he has 7 apples left.", "7", 1),
        ("First we get 3, then 4.\nTherefore he has 7 apples left.", "4", 0),
        ("Answer: **12**", "12", 1),
        ("**Answer:** 12", "12", 1),
        ("**Final Answer:** $x = 5$", "5", 1),
        ("Final answer: 5/6", "5/6", 1),
        ("The final answer is $\\boxed{\\frac{1}{2}}$. I hope it is correct.", "0.5", 1),
        ("The roots are \\boxed{1} and \\boxed{2}.", "1,2", 1),
        ("We get \\boxed{1}. Wait, that is wrong. \\boxed{2}", "2", 1),
        ("We get \\boxed{1}. Wait, that is wrong. \\boxed{2}", "1", 0),
        ("<answer>5</answer>", "5", 1),
        ("<ANSWER> 5 </ANSWER>", "5", 1),
        ("<answer>I think 5</answer>", "5", 1),
        ("<answer>5, because 2+3=5</answer>", "5", 1),
        ("<answer>The answer is 5</answer>", "5", 1),
        ("<answer>$5$.</answer>", "5", 1),
        ("<answer>x = 5\n</answer>", "5", 1),
        ("<answer>5 or 6</answer>", "5", 0),
        ("<answer>5 or 6</answer>", "6", 0),
        ("#### 1,234", "1234", 1),
        ("#### $1,234.00", "1234", 1),
        ("#### 5 apples\nThanks", "5", 1),
        ("$2\\pi$", "2\\pi", 1),
        ("Thus the area is $2\\pi$.", "2\\pi", 1),
        ("Thus the area is $2\\pi$.", "2", 0),
        ("The answer to the question is 12", "12", 1),
        ("answer = 12", "12", 1),
        ("The answer would be 3.5 cups", "3.5", 1),
        ("The answer is Paris.", "Paris", 1),
        ("I get 12. The answer is 13. No, the answer is 14.", "14", 1),
        ("I get 12. The answer is 13. No, the answer is 14.", "13", 0),
        ("", "5", 0),
        ("no idea", "5", 0),
        ("2 + 2 = 4", "4", 1),
        ("<answer></answer>", "5", 0),
        ("<answer>", "5", 0),
        ("\\boxed{}", "5", 0),
        ("1/2", "0.5", 1),
        ("The probability is 1/2", "0.5", 1),
        ("It costs $12.50 in total", "12.5", 1),
        ("Step 1: 5\nStep 2: 6", "6", 1),
        ("the answer is:\n\n12", "12", 1),
        ("The answer is:\n$$x^2+1$$", "x^2+1", 1),
        ("The value is \\[ \\frac{3}{4} \\]", "3/4", 1),
        ("<answer>6</answer> and <answer>7</answer>", "7", 1),
    ],
)
def test_the_final_answer_is_what_a_text_says_last(text: str, right: str, reward: float) -> None:
    answer, marked = final_answer(text)
    parts = [answer] if marked else unmarked_values(answer)
    assert max(score_math(part, right) for part in parts) == reward


# The interruption may hit a callback of the garbage collector, which drops it; another follows.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_slow_or_senseless_answer_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert score_math("42", "42", ()) == 1.0  # imports what it needs
    monkeypatch.setattr(limit, "MATH_SECONDS", 0.2)
    hostile = [
        "$" + "(" * 500 + "1" + ")" * 500 + "$",
        "1" * 4000,
        "1+" * 1500 + "1",
        "$9^{9^{9^{9}}}$",
        "\x00\ud800",
    ]
    for text in hostile:
        assert within(1.5, partial(score_math, text, "42", ()), text[:20]) == 0.0
    assert score_math("42", "42", ()) == 1.0


def test_mathematics_in_another_thread() -> None:
    results: list[float] = []
    thread = threading.Thread(target=lambda: results.append(score_math("1/2", "0.5", ())))
    thread.start()
    thread.join()
    assert results == [1.0]


@examples(150)
@given(st.text(max_size=80), st.sampled_from(["42", "A"]))
def test_any_text_has_a_score(text: str, right: str) -> None:
    answer = final_answer(text).text
    choices = ("x", "y")
    assert score_exact(answer, right, choices) in (0.0, 1.0)
    if right == "A":
        assert score_choice(answer, right, choices) in (0.0, 1.0)


def test_of_a_long_text_the_end_is_judged() -> None:
    assert final_answer("x" * 60_000 + "#### 42").text == "42"
    assert final_answer("<answer>1</answer> no, <answer> 2 </answer> bye").text == "2"


@pytest.mark.parametrize("inside", [False, True])
def test_strictly_words_before_what_is_judged_make_an_answer_wrong(inside: bool) -> None:
    """Only the end of a text is judged, so white space can push words out of it."""
    space, (opened, closed) = " " * MAX_SCORED_CHARS, ("<answer>", "</answer>")
    text = f"zq {opened}{space}7{closed}" if inside else f"zq {space}{opened}7{closed}"
    for judged in (text, text[-MAX_SCORED_CHARS:]):
        assert only_answer(judged) is None
    fitting = MAX_SCORED_CHARS - len(opened) - len("7") - len(closed)
    assert only_answer(opened + " " * fitting + "7" + closed) is None  # there may be more before
    assert only_answer(opened + " " * (fitting - 1) + "7" + closed) == "7"
