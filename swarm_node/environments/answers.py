"""Judging a final answer against a known one: word for word, as mathematics, or by letter."""

from __future__ import annotations

import gc
import logging
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

#: Of a longer text only this end is looked at: a final answer stands at the end.
MAX_JUDGED_CHARS = 4096
#: Of an answer only this end is read as mathematics: math-verify's patterns take quadratic time.
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
#: LaTeX operators that make a matrix of any size from two numbers. sympy swallows interruptions
#: meanwhile, so that one text would cost the process its time limit.
_MATRICES = ("zeros", "ones", "eye")


def final_answer(text: str) -> str:
    """What of a text is judged: inside the last <answer></answer>, else after the last "####" (as
    GSM8K writes it), else the whole; stripped."""
    text = text[-MAX_JUDGED_CHARS:]
    tagged = last_tagged(text)
    return (text.rpartition("####")[2] if tagged is None else tagged).strip()


def last_tagged(text: str) -> str | None:
    """What the last <answer>…</answer> of a text holds, or None where there is none.

    The pairs are those that `<answer>(.*?)</answer>` finds, but in one pass: the expression starts
    over at each opening tag, which takes quadratic time where no closing one follows."""
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
    """1 for the same words; how much white space is between them does not matter."""
    return float(answer.split() == right.split())


def score_choice(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 for the letter of the right choice ("B", "(b)", "Answer: B. Paris"), or its text."""
    words = answer.split()
    if words == choices[ord(right) - ord("A")].split():
        return 1.0
    # One space at a time: the expression tries every way to share a longer run among its parts.
    letter = _LETTER.fullmatch(" ".join(words))
    return float(letter is not None and letter[1].upper() == right)


def score_math(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 where math-verify finds the answer equal to the right one, as numbers, expressions, sets
    or equations, in plain text or LaTeX. No name in the answer is looked up: sympy's evaluating
    parser gets digits and operators of plain text only, LaTeX goes through a grammar."""
    import math_verify  # noqa: F401 - takes seconds, which are not the answer's

    answer = answer[-MAX_MATH_CHARS:]
    # Spaces and the like go before the grammar sees a name, so they hide none here.
    letters = _NO_LETTERS.sub("", answer)
    if "operatorname" in letters and any(name in letters for name in _MATRICES):
        return 0.0
    return _within_time(lambda: _equal_as_math(answer, right))


def _equal_as_math(answer: str, right: str) -> float:
    from math_verify import parse, verify

    # Their own limit is an alarm signal, which would switch off the one that ends this process
    # when a computation cannot be interrupted (see worker.py).
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
    """Not an `Exception`, because those are caught in many places of sympy and math-verify."""


def _within_time(call: Callable[[], float]) -> float:
    """What `call` returns, or 0 after `MATH_SECONDS` of processor time.

    Only in a main thread: elsewhere nothing can be interrupted, and there is no limit."""
    for name in ("math_verify", "latex2sympy2_extended", "sympy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log what a text did to them
    if threading.current_thread() is not threading.main_thread():
        return call()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TooSlowError

    # What a signal raises in a collector's callback is lost, and a collection takes up to a second
    # of the time in a process that holds much: there is none meanwhile.
    collects = gc.isenabled()
    gc.disable()
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        # Again and again, should one be swallowed.
        signal.setitimer(signal.ITIMER_VIRTUAL, MATH_SECONDS, MATH_SECONDS)
        return call()
    except _TooSlowError:
        return 0.0
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        if collects:
            gc.enable()
