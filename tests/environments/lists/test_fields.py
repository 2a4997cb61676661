"""Questions and right answers of rows, by the fields of public sets."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from swarm_node.environments.lists.fields import last_boxed, look, question_of, right_text

MESSAGE = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        ({"question": "q", "answer": "First 4.\n#### 1,234"}, "q", "1,234"),
        ({"problem": "q", "solution": r"so $\boxed{\frac{1}{2}}$."}, "q", r"\frac{1}{2}"),
        ({"problem": "q", "solution": r"so $\boxed{3}$.", "answer": "7"}, "q", "7"),
        ({"Body": "B.", "Question": "q", "Answer": Decimal("3.0"), "ID": "x"}, "B. q", "3"),
        (
            {"body": "B.", "question": "q", "answer": "9 (apples)", "formula": "7+2=9",
             "solution_type": "Addition"}, "B. q", "9",
        ),
        ({"question": "q", "answer": "9 (apples)"}, "q", "9 (apples)"),
        ({"passage": "P.", "question": "q", "answer": True}, "P. q", "Yes"),
        ({"context": "C.", "query": "q", "answer": "a"}, "C. q", "a"),
        ({"story": "S.", "question": "S. So, q", "answer": "a"}, "S. So, q", "a"),
        ({"context": "C.", "prompt": "q", "answer": "a"}, "q", "a"),
        ({"question": "q", "correct": True, "target": "t"}, "q", "t"),
        ({"question": "q", "answer": "So\n#### 5\nQED"}, "q", "5"),
        ({"question": "q", "answer": "#### Final answer\n5\nQED"}, "q", "5"),
        ({"question": "q", "solution": r"#### Step 2: go on\nthus \boxed{5}."}, "q", "5"),
        ({"question": "q", "solution": "so \\boxed{5}\n#### Conclusion\nDone."}, "q", "5"),
        ({"question": "q", "answer": "#### Answer: 5"}, "q", "Answer: 5"),
        ({"sQuestion": "q", "lSolutions": [Decimal("8.0")]}, "q", "8"),
        ({"question": "q", "answer": True}, "q", "Yes"),
        ({"question": {"stem": "q", "choices": []}, "answerKey": "B"}, "q", "B"),
        ({"prompt": [MESSAGE], "reward_model": {"ground_truth": "34"}}, "q", "34"),
        ({"question": "q", "final_answer": ["5"], "solution": ["long"]}, "q", "5"),
        ({"input": "q", "target": "(A)"}, "q", "(A)"),
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_public_sets_are_read(row: dict[str, Any], question: str, answer: str) -> None:
    assert question_of(row, "") == question
    assert right_text(row, "") == answer


def test_named_fields_may_lie_within_others() -> None:
    row = {"a": {"b": [{"c": "deep"}, 7]}, "a.b": "flat", "question": "not this", "Solution": "7 m"}
    assert question_of(row, "a.b") == "flat"
    assert question_of(row, "a.b.0.c") == "deep"
    assert right_text(row, "a.b.1") == "7"
    assert right_text(row, "solution") == "7 m"
    for name in ("a.b.2", "a.b.x", "a.c", "", "."):
        with pytest.raises(ValueError, match=r"a\.b, question, Solution"):
            right_text(row, name) if name else right_text({**row, "Solution": {}}, name)
    assert look({"Answer": 1, "answer": 2}, "answer") == 2


@pytest.mark.parametrize(
    "row",
    [
        {"question": None, "answer": "1"},
        {"question": 3, "answer": "1"},
        {"question": " ", "answer": "1"},
        {"prompt": [MESSAGE, MESSAGE], "answer": "1"},
        {"prompt": [{**MESSAGE, "role": "system"}], "answer": "1"},
        {"question": "q", "context": ["C."], "answer": "1"},
        {"question": "q", "answer": None},
        {"question": "q", "answer": ["1", "2"]},
        {"question": "q", "answer": {"value": "1"}},
        {"question": "q", "answer": "so ####"},
        {"question": "q", "correct": True},
        {"question": "q", "answer": "\ud800"},
        {"question": "q", "solution": "no mark, 5"},
        {"question": "q", "solution": r"cut \boxed{5"},
        {},
    ],
    ids=str,
)
def test_a_row_without_a_question_or_an_answer_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"'|no question|no answer"):
        question_of(row, ""), right_text(row, "")


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (r"\boxed{1}, then $\boxed{\text{a {b} c}}$.", r"\text{a {b} c}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"$\boxed 5$, and more", "5"),
        (r"\boxed{5", None),
        (r"\boxed{}", None),
        (r"\boxedness{5}", None),
        ("5", None),
        ("{" * 50_000 + r"\boxed{" + "{" * 50_000, None),
    ],
)  # fmt: skip
def test_the_last_box_of_a_solution_is_its_answer(text: str, held: str | None) -> None:
    assert last_boxed(text) == held
