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
    plain = _plain(answer)
    folded = [_folded(choice) for choice in choices]
    known = {_letter(place) for place in range(len(choices))}
    if plain in known:  # also where it is the text of another choice: letters are asked for
        return plain
    if folded.count(_folded(answer)) == 1:
        return _letter(folded.index(_folded(answer)))
    leading = _LEADING.fullmatch(plain)
    if leading and leading["letter"].upper() in known:
        # A small letter is one only where nothing but a sign or its choice's text follows.
        letter, rest = leading["letter"].upper(), leading["rest"]
        named = leading["letter"].isupper() or leading["open"] or not rest[:1].isspace()
        if named and not (letter in "AI" and _ARTICLE.match(leading["letter"] + rest)):
            return letter if _agrees(letter, rest, folded, known) else None
    return _mentioned(plain, folded, known)


def _letter(place: int) -> str:
    return chr(ord("A") + place)


def _plain(text: str) -> str:
    """Without emphasis, LaTeX's boxes and types, and with single spaces."""
    text = _COMMAND.sub("", unicodedata.normalize("NFKC", text))
    return _SPACE.sub(" ", _MARKS.sub(" ", text)).strip(" '")


def _folded(text: str) -> str:
    return _plain(text).casefold().strip(_SIDES)


def _agrees(letter: str, rest: str, folded: Sequence[str], known: set[str]) -> bool:
    """True if what follows a letter neither names another one nor is another choice's text."""
    rest = _NOT_ANOTHER.sub("", rest)
    if (rest.strip() and _ANOTHER.fullmatch(rest)) or _OR.match(rest):
        return False
    said = _BEFORE_TEXT.sub("", rest.casefold()).rstrip(_SIDES)
    own = folded[ord(letter) - ord("A")]
    if own and said.startswith(own):
        rest = rest[rest.casefold().find(own) + len(own) :]
    elif said and said in folded:
        return False
    return not (_capitals(rest) & known - {letter}) and not _wrong(rest)


def _wrong(rest: str) -> bool:
    return _REFUSED.search(rest) is not None


def _capitals(text: str) -> set[str]:
    """The capitals that stand alone and are no article."""
    return {
        found[0] for found in _CAPITAL.finditer(text) if not _ARTICLE.match(text, found.start())
    }


def _mentioned(plain: str, folded: Sequence[str], known: set[str]) -> str | None:
    """The one letter that a sentence mentions, or the letter of the one choice whose text it
    holds."""
    if _DENIED.search(plain):
        return None
    letters = _capitals(plain) & known
    said, texts = plain.casefold(), set()
    # The longest first, so that one within another is not found too.
    for place in sorted(range(len(folded)), key=lambda place: -len(folded[place])):
        text = folded[place]
        if len(text) > 1 or text.isdigit():
            alone = rf"(?<![\w.+\-−]){re.escape(text)}(?![\w%]|[.,]\d)"
            said, count = re.subn(alone, " ", said)
            texts |= {_letter(place)} if count else set()
    named = letters | texts
    return named.pop() if len(named) == 1 else None
