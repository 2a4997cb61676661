# ruff: noqa: RUF001 - typographic quotes and dashes are read too
"""Finds the letter of a choice that an answer names, in the forms in which chat models write it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

_COMMAND: Final = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf|textit)\s?(?=\{)")
_MARKS: Final = re.compile(r"[*_`~\"“”‘’{}$#]|\\[()[\]]")
_SPACE: Final = re.compile(r"\s+")
_SIDES: Final = " .,;:!?'"
#: "B", "(b)", "Option B", "The correct answer is: [B]", and what follows.
_LEADING: Final = re.compile(
    r"(?:(?:so|thus|therefore|hence|i choose|i pick|it is|it's|my)[, ]{1,2})?(?:the )?"
    r"(?:(?:final|correct|right|best|only) ){0,2}(?:(?:answer|option|choice|letter)\b ?)?"
    r"(?:is\b|would be\b|must be\b|=)?[: -]{0,3}(?:(?:option|choice|letter) )?"
    r"(?P<open>[(\[<])?(?P<letter>[A-Za-z])(?![\w'])(?(open)[)\]>])(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
#: A capital that stands alone.
_CAPITAL: Final = re.compile(r"(?<![\w'’])[A-Z](?![\w'’])")
#: "A" before a word in lower case is an article, "I" before one is somebody.
_ARTICLE: Final = re.compile(r"[AI] (?!is\b|or\b|and\b|because\b|since\b|as\b|but\b)[a-z]")
_ANOTHER: Final = re.compile(r"[\s,;/&]*(?:or|and|nor)?[\s,;/&]*\(?[A-Za-z]\)?[\s.]*")
#: "B, not A" names B.
_NOT_ANOTHER: Final = re.compile(r"[,;]? ?\(?\bnot \(?[A-Z]\b\)?\)?")
_OR: Final = re.compile(r"\W*\b(?:or|and)\b")
#: What stands between a letter and its text; a minus sign is the text's.
_BEFORE_TEXT: Final = re.compile(r"^[\s.,;:!?')\]=>]*(?:[-–—](?=\s))?\s*")
_REFUSED: Final = re.compile(
    r"\b(?:is|are|can)(?: ?not|n't|'t)\b|\b(?:wrong|incorrect|false|impossible|unlikely)\b"
)
_DENIED: Final = re.compile(r"\b(?:not|n't|never|neither|nor|except|but|no)\b|n't\b", re.IGNORECASE)


def letter_of(answer: str, choices: Sequence[str]) -> str | None:
    """The letter that an answer names: by the letter, by its choice's text, or by both if they
    agree. None if it names none, or two."""
    text = _plain(answer)
    folded_choices = [_fold(choice) for choice in choices]
    choice_letters = {_letter(place) for place in range(len(choices))}
    if text in choice_letters:  # also where it is the text of another choice: letters are asked for
        return text
    if folded_choices.count(_fold(answer)) == 1:
        return _letter(folded_choices.index(_fold(answer)))
    leading = _LEADING.fullmatch(text)
    if leading and leading["letter"].upper() in choice_letters:
        # A small letter is one only where nothing but a sign or its choice's text follows.
        letter, rest = leading["letter"].upper(), leading["rest"]
        is_letter = leading["letter"].isupper() or leading["open"] or not rest[:1].isspace()
        if is_letter and not (letter in "AI" and _ARTICLE.match(leading["letter"] + rest)):
            return letter if _agrees(letter, rest, folded_choices, choice_letters) else None
    return _mentioned_letter(text, folded_choices, choice_letters)


def _letter(place: int) -> str:
    return chr(ord("A") + place)


def _plain(text: str) -> str:
    """Without emphasis, LaTeX's boxes and types, and with single spaces."""
    text = _COMMAND.sub("", unicodedata.normalize("NFKC", text))
    return _SPACE.sub(" ", _MARKS.sub(" ", text)).strip(" '")


def _fold(text: str) -> str:
    return _plain(text).casefold().strip(_SIDES)


def _agrees(
    letter: str, rest: str, folded_choices: Sequence[str], choice_letters: set[str]
) -> bool:
    """True if what follows a letter neither names another one nor is another choice's text."""
    rest = _NOT_ANOTHER.sub("", rest)
    if (rest.strip() and _ANOTHER.fullmatch(rest)) or _OR.match(rest):
        return False
    phrase = _BEFORE_TEXT.sub("", rest.casefold()).rstrip(_SIDES)
    choice = folded_choices[ord(letter) - ord("A")]
    if choice and phrase.startswith(choice):
        rest = rest[rest.casefold().find(choice) + len(choice) :]
    elif phrase and phrase in folded_choices:
        return False
    return not (_capitals(rest) & choice_letters - {letter}) and not _wrong(rest)


def _wrong(rest: str) -> bool:
    return _REFUSED.search(rest) is not None


def _capitals(text: str) -> set[str]:
    """The capitals that stand alone and are no article."""
    return {
        match[0] for match in _CAPITAL.finditer(text) if not _ARTICLE.match(text, match.start())
    }


def _mentioned_letter(
    answer: str, folded_choices: Sequence[str], choice_letters: set[str]
) -> str | None:
    """The one letter that a sentence mentions, or the letter of the one choice whose text it
    holds."""
    if _DENIED.search(answer):
        return None
    letters = _capitals(answer) & choice_letters
    remainder, texts = answer.casefold(), set()
    # The longest first, so that one within another is not found too.
    for place in sorted(range(len(folded_choices)), key=lambda place: -len(folded_choices[place])):
        text = folded_choices[place]
        if len(text) > 1 or text.isdigit():
            pattern = rf"(?<![\w.+\-−]){re.escape(text)}(?![\w%]|[.,]\d)"
            remainder, count = re.subn(pattern, " ", remainder)
            texts |= {_letter(place)} if count else set()
    candidates = letters | texts
    return candidates.pop() if len(candidates) == 1 else None
