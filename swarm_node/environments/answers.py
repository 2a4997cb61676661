"""Compares a final answer with a known one: word for word, as mathematics, or by letter."""

from __future__ import annotations

import gc
import logging
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

#: Only the last characters of a longer text are judged, because the final answer is at the end.
MAX_JUDGED_CHARS = 4096
#: Only these last characters are read as mathematics: math-verify's patterns take quadratic time.
MAX_MATH_CHARS = 1024
#: Processor seconds for one comparison as mathematics, after which the answer counts as wrong.
MATH_SECONDS = 0.5

_OPEN, _CLOSE = "<answer>", "</answer>"
_LETTER = re.compile(
    r"(?:the\s+)?(?:(?:final|correct)\s+)?(?:answer|option)?\s*(?:is)?\s*:?\s*"
    r"\(?([A-Z])\)?(?:[.:)].*)?",
    re.IGNORECASE | re.DOTALL,
)
_NO_LETTERS = re.compile(r"[^A-Za-z]+")
#: LaTeX operators that make a matrix of any size from two numbers. sympy swallows the interruption
#: meanwhile, so one such text would use up the time limit of the process.
_MATRICES = ("zeros", "ones", "eye")


def final_answer(text: str) -> str:
    """The part of a text that is judged, stripped: the content of the last <answer></answer>, else
    the text after the last "####" (GSM8K's form), else the whole text."""
    text = text[-MAX_JUDGED_CHARS:]
    tagged = last_tagged(text)
    return (text.rpartition("####")[2] if tagged is None else tagged).strip()


def only_answer(text: str) -> str | None:
    """The answer of a text that holds nothing else, stripped: the content of its one
    <answer></answer>, or the whole text without such a tag. None if text stands around the tag, or
    if the text is so long that what stands before it may have been cut off."""
    if len(text) >= MAX_JUDGED_CHARS:
        return None
    text = text.strip()
    tagged = last_tagged(text)
    if tagged is None:
        return text
    return tagged.strip() if text == f"{_OPEN}{tagged}{_CLOSE}" else None


def last_tagged(text: str) -> str | None:
    """The content of the last <answer>…</answer> of a text, or None if there is none.

    It finds the pairs that `<answer>(.*?)</answer>` finds, in one pass. The expression takes
    quadratic time if no closing tag follows, because it searches for one from each opening tag."""
    found = None
    opened = text.find(_OPEN)
    while opened >= 0:
        begins = opened + len(_OPEN)
        ends = text.find(_CLOSE, begins)
        if ends < 0:
            break
        found = text[begins:ends]
        opened = text.find(_OPEN, ends + len(_CLOSE))
    return found


def score_exact(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 for the same words, with any white space between them."""
    return float(answer.split() == right.split())


def score_choice(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 for the letter of the right choice ("B", "(b)", "Answer: B. Paris"), or its text."""
    words = answer.split()
    if words == choices[ord(right) - ord("A")].split():
        return 1.0
    # With single spaces: the expression would try every way to split a longer run of them.
    letter = _LETTER.fullmatch(" ".join(words))
    return float(letter is not None and letter[1].upper() == right)


def score_math(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 if math-verify finds the answer equal to the right one, as numbers, expressions, sets or
    equations, in plain text or LaTeX. No name in the answer is evaluated: of plain text, sympy's
    evaluating parser gets digits and operators only, and a grammar parses LaTeX."""
    import math_verify  # noqa: F401 - takes seconds, which must not count for the answer

    answer = answer[-MAX_MATH_CHARS:]
    # The grammar ignores spaces and the like within a name, so they are removed here too.
    letters = _NO_LETTERS.sub("", answer)
    if "operatorname" in letters and any(name in letters for name in _MATRICES):
        return 0.0
    return _within_time(lambda: _equal_as_math(answer, right))


def _equal_as_math(answer: str, right: str) -> float:
    from math_verify import parse, verify

    # math-verify's own time limit is an alarm of wall-clock time. `_within_time` limits processor
    # time instead, so that a busy machine makes no answer wrong.
    wanted = parse(f"${right}$", parsing_timeout=None)
    if not wanted:
        return score_exact(answer, right, ())
    given = parse(answer, parsing_timeout=None)
    return float(verify(wanted, given, timeout_seconds=None))


SCORERS: Mapping[str, Callable[[str, str, Sequence[str]], float]] = {
    "exact": score_exact,
    "math": score_math,
    "choice": score_choice,
}


class _TooSlowError(BaseException):
    """Error of the time limit. It is no `Exception`, because sympy and math-verify catch those in
    many places."""


def _within_time(call: Callable[[], float]) -> float:
    """Return the result of `call`, or 0 after `MATH_SECONDS` of processor time.

    In any other thread than the main one nothing can be interrupted, and there is no limit."""
    for name in ("math_verify", "latex2sympy2_extended", "sympy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log the errors that a text causes
    if threading.current_thread() is not threading.main_thread():
        return call()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TooSlowError

    # An exception that a signal raises in a garbage collection is lost, and in a large process a
    # collection takes up to a second. So the collector is off meanwhile.
    collects = gc.isenabled()
    gc.disable()
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        # Repeated, because sympy may swallow one.
        signal.setitimer(signal.ITIMER_VIRTUAL, MATH_SECONDS, MATH_SECONDS)
        return call()
    except _TooSlowError:
        return 0.0
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        if collects:
            gc.enable()
