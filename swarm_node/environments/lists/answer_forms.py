"""The right answer of a task, written in the form that its prompt asks for. Pure.

Only such a text says whether a scorer reads what a model is told to write.
"""

from __future__ import annotations


def format_answer(answer: str, instruction: str) -> str:
    """The answer in the first form that `instruction` names: within <answer></answer>,
    within \\boxed{}, or after "####". "" if it names none."""
    if "<answer>" in instruction:
        return tag_answer(answer)
    if "\\boxed" in instruction:
        return f"\\boxed{{{answer}}}"
    return f"#### {answer}" if "####" in instruction else ""


def tag_answer(answer: str) -> str:
    """The answer within the tag that every scorer of this project looks for first."""
    return f"<answer>{answer}</answer>"
