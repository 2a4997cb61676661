"""Compares an answer with the right one: word for word, as mathematics, or by letter."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from swarm_node.environments.answers.final import EMPHASIS, FORMULA, SENTENCE, WORD, same_words
from swarm_node.environments.answers.letters import letter_of
from swarm_node.environments.mathematics.equality import equal
from swarm_node.environments.mathematics.limit import within_time
from swarm_node.environments.mathematics.structure import is_value
from swarm_node.environments.mathematics.vocabulary import CHANGING, SCALES

#: A letter anywhere in a text of so many characters is an answer, in a longer one perhaps not.
_SHORT_CHARS: Final = 200
#: Signs that join a number to what stands before or after it.
_JOINED_BEFORE: Final = re.compile(r"(?:[-+*/^<>≤≥≠≈±×÷·√π|(\[{\\_!²³½]\s?|\d:|\d,\s?|[^\W\d])$")  # noqa: RUF001
_JOINED_AFTER: Final = re.compile(r"\s?[-+*/^<>≤≥≠=±×÷·√π|)\]}\\_!²³½°:]|[^\W_]")  # noqa: RUF001
_JOINING: Final = frozenset(("and", "or", "to", "in", "out", "of", "sqrt", "ln", "log", "pi"))
_REASON: Final = re.compile(
    r"[,;.]?\s(?:because|since|as|so|which|where|due|hence|therefore|(?:and )?not)\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:[$€£¥]\s?)?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d{1,4})?"
    r"(?:\s?/\s?\d+(?:\.\d+)?)?(?:\s?\\?%)?"
)


def score_exact(answer: str, right: str, choices: Sequence[str] = ()) -> float:
    """1 for the same words (`same_words`)."""
    return float(same_words(answer, right))


def score_choice(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 for the letter of the right choice ("B", "(b)", "Answer: B. Paris"), or its text."""
    return float(letter_of(answer, choices) == right)


def score_math(answer: str, right: str, choices: Sequence[str] = ()) -> float:
    """1 if the answer is equal to the right one: as words, as numbers, expressions, sets, tuples,
    matrices or equations, in plain text or LaTeX, with or without a unit. A reason after it is left
    out ("5, because …"). No name in the answer is evaluated: a grammar parses it."""
    reason = _REASON.search(answer)
    forms = [answer, *([answer[: reason.start()]] if reason else [])]
    return float(within_time(lambda: any(equal(form, right) for form in forms)))


def unmarked_values(text: str) -> list[str]:
    """What is scored as mathematics of a text that marks no answer: all of it, and if that is
    prose, its last sentence, and its last formula or number. That is not scored alone if it is a
    part of more: of "12 sqrt(3)", "5 or 6", "at least 6"."""
    text = EMPHASIS.sub("", text)
    if is_value(text):
        return [text]
    sentence = SENTENCE.split(text.strip().rstrip(".?"))[-1].strip()
    parts = [text, *([sentence] if sentence else [])]
    last = max(
        (match for pattern in (FORMULA, _NUMBER) for match in pattern.finditer(text)),
        key=lambda match: (match.end(), len(match[0])),
        default=None,
    )
    return parts if last is None or _is_part(text, last) else [*parts, last[0]]


def _is_part(text: str, match: re.Match[str]) -> bool:
    """True if a number or formula in prose is a part of more."""
    prefix, suffix = text[: match.start()][-64:], text[match.end() :][:64]
    if _JOINED_AFTER.match(suffix) or _JOINED_BEFORE.search(prefix):
        return True
    clause = re.split(r"[.;:]\s|\n", prefix)[-1]
    words = {*WORD.findall(clause.casefold())[-3:], *WORD.findall(suffix.casefold())[:1]}
    if words & (CHANGING | SCALES.keys() | _JOINING):
        return True
    return any(word[0].isdigit() for word in words)


def unmarked_choices(text: str) -> list[str]:
    """What is scored as a choice of a text that marks no answer: all of a short one, and the last
    line."""
    last = text.strip().rpartition("\n")[2]
    return [text, last] if len(text) <= _SHORT_CHARS else [last]


Scorer = Callable[[str, str, Sequence[str]], float]
SCORERS: Mapping[str, Scorer] = {
    "exact": score_exact,
    "math": score_math,
    "choice": score_choice,
}
#: What is scored of a text without a marked answer, where that is not all of it.
UNMARKED: Mapping[str, Callable[[str], list[str]]] = {
    "math": unmarked_values,
    "choice": unmarked_choices,
}
