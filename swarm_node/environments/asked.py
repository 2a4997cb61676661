"""The right answer of a task, written in the form that its prompt asks for. Pure.

Only such a text says whether a scorer reads what a model is told to write.
"""

from __future__ import annotations


def written(answer: str, asked: str) -> str:
    """The answer in the first form that the instruction `asked` names: within <answer></answer>,
    within \\boxed{}, or after "####". "" if it names none."""
    if "<answer>" in asked:
        return tagged(answer)
    if "\\boxed" in asked:
        return f"\\boxed{{{answer}}}"
    return f"#### {answer}" if "####" in asked else ""


def tagged(answer: str) -> str:
    """The answer within the tag that every scorer of this project looks for first."""
    return f"<answer>{answer}</answer>"
