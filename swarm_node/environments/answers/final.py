"""Finds the final answer of a text, and compares words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from swarm_node.environments.mathematics.vocabulary import SCALES

#: Only the last characters of a longer text are scored, because the final answer is at the end.
MAX_SCORED_CHARS = 4096

_TAG: Final = re.compile(r"< ?(/?) ?answer ?>", re.IGNORECASE | re.ASCII)
_BARE_BOX: Final = re.compile(r"\\boxed\s+([^\s{}$]{1,32})")
_BRACES: Final = re.compile(r"\\(?:boxed|fbox)\s?\{|\\.|[{}]", re.DOTALL)
#: What may stand between the boxes of one answer.
_BETWEEN: Final = re.compile(
    r"[\s$,;]*(?:\\text\{)?\s?(?:and|or)?\s?\}?[\s$]*(?:[a-zA-Z](?:_\d)?\s?=)?[\s$]*"
)
_PHRASE: Final = re.compile(
    r"\b(?:answer|option|choice)\b(?: (?:to|for|of) [^\n.:=]{0,60})?[*_ ]{0,4}"
    r"(?:\bis\b|\bare\b|\bwould be\b|\bmust be\b|=|:|-(?=\s))[*_ ]{0,4}(?:that\b|:)?",
    re.IGNORECASE,
)
EMPHASIS: Final = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)")
WORD: Final = re.compile(r"[^\W_]+")
#: Not at the point of U.S., Dr. and the like.
SENTENCE: Final = re.compile(
    r"(?<!\\)(?<!\b[A-Z])(?<!\b(?:Dr|St|in))(?<!approx)(?<!\bi\.e)[.!?][*_]{0,2}(?=\s|$)|\n"
)
#: A heading of Markdown, which is no mark of GSM8K.
_HEADING: Final = re.compile(
    r"(?:the )?(?:final )?(?:answer|result|conclusion|solution|summary|step)\b[ \d:.*]{0,8}",
    re.IGNORECASE,
)
_CLAUSE: Final = re.compile(r",\s[^\W\d]")
_STARTS_WITH_NUMBER: Final = re.compile(r"[^\w\n]{0,3}\d")
FORMULA: Final = re.compile(r"\$\$?[^$]{1,512}\$\$?|\\\([^\n\\]{1,512}\\\)|\\\[[^$\]]{1,512}\\\]")
#: A whole number in words: its sign, its digits, perhaps with commas, and zeros after a point.
_INTEGER: Final = re.compile(
    r"(?<![\w.])(?P<sign>[-\u2212]?)(?:[$€£]\s?)?(?P<digits>\d{1,3}(?:,\d{3})+|\d+)"
    r"(?P<rest>\.\d+)?(?![\d_^\xb2\xb3])"
)
#: Signs that make a number beside them a part of an expression. A dash that begins a line is none.
#: So is a colon between numbers, and not one after a word. A star that nothing follows is emphasis.
_OPERATED_BEFORE: Final = re.compile(
    r"[\w)}]\s?(?:[-\u2212+*/^\xd7\xf7\xb7]|\\(?:times|div|cdot))\s?$|\d(?:\s:\s?|:)$"
)
_OPERATED_AFTER: Final = re.compile(
    r"\s?(?:[+/^\xd7\xf7\xb7]|\*{1,2}\s?[\w(\\$]|[-\u2212]\s?\d|\\(?:times|div|cdot)|:\d)"
)
#: Marks of thousands other than a comma: LaTeX's, and spaces that break no line.
_THOUSANDS: Final = re.compile(r"(?<=\d)(?:\{,\}|\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
#: A number after it is one that is not the answer.
_DENIED: Final = re.compile(r"\bnot [$\u20ac\xa3]?$", re.IGNORECASE)
#: What stands between the numbers of a list.
_LISTED: Final = re.compile(r"(?:[ \t,;/|&]|\bor\b|\band\b)*", re.IGNORECASE)


class FinalAnswer(NamedTuple):
    """The scored part of a text. `is_marked`: something in the text says that this is the
    answer."""

    text: str
    is_marked: bool


def final_answer(text: str) -> FinalAnswer:
    """The part of a text that is scored, stripped.

    It is in the last <answer></answer>, else in the whole text; and of that the content of the last
    \\boxed{}, else the rest of the line after the last "####" (GSM8K's form), else what follows the
    last phrase such as "the answer is", else all."""
    text = text[-MAX_SCORED_CHARS:]
    content = last_tagged(text)
    scored_text = _BARE_BOX.sub(r"\\boxed{\1}", text if content is None else content)
    for answer in (
        _boxed_answer(scored_text),
        _hash_line_answer(scored_text),
        _stated_answer(scored_text),
    ):
        if answer:
            return FinalAnswer(answer, is_marked=True)
    return FinalAnswer(scored_text.strip(), is_marked=content is not None)


def only_answer(text: str) -> str | None:
    """The answer of a text that holds nothing else, stripped: the content of its one
    <answer></answer>, or the whole text without such a tag. None if text stands around the tag, or
    if the text is so long that what stands before it may have been cut off."""
    if len(text) >= MAX_SCORED_CHARS:
        return None
    text = text.strip()
    tags = list(_TAG.finditer(text))
    if last_tagged(text) is None:
        return text
    spans_text = len(tags) == 2 and tags[0].start() == 0 and tags[1].end() == len(text)
    return text[tags[0].end() : tags[1].start()].strip() if spans_text else None


def last_tagged(text: str) -> str | None:
    """The content of the last <answer>…</answer> of a text, in any case of letters, or None if
    there is none. A tag in a tag is text. It takes linear time."""
    content, start = None, None
    for tag in _TAG.finditer(text):
        if tag[1] and start is not None:
            content, start = text[start : tag.start()], None
        elif not tag[1] and start is None:
            start = tag.end()
    return content


def _boxed_answer(text: str) -> str | None:
    """The content of the last \\boxed{}, or of those at the end that only commas, "and" or "or"
    separate, with commas between them."""
    boxes: list[str] = []
    last_end = 0
    for begin, end in _outer_boxes(text):
        if not _BETWEEN.fullmatch(text, last_end, text.rindex("\\", 0, begin)):
            boxes = []
        boxes.append(text[begin:end].strip())
        last_end = end + 1
    return ", ".join(dict.fromkeys(boxes)) if boxes else None


def _outer_boxes(text: str) -> Iterator[tuple[int, int]]:
    """Where the contents of boxes that are in no other box begin and end, in one pass."""
    open_braces: list[int | None] = []  # where a box's content begins; None for another brace
    boxes: list[tuple[int, int]] = []
    for part in _BRACES.finditer(text):
        if part[0] == "}" and open_braces:
            begin = open_braces.pop()
            if begin is not None:
                while boxes and boxes[-1][0] > begin:
                    boxes.pop()
                boxes.append((begin, part.start()))
        elif part[0][-1] == "{" and part[0] != r"\{":
            open_braces.append(part.end() if len(part[0]) > 1 else None)
    yield from boxes


def _hash_line_answer(text: str) -> str | None:
    """The rest of the line after the last "####"; of "1234 euros, paid in 2 parts" the first part,
    because GSM8K's own evaluation takes the number that follows the mark."""
    mark = text.rfind("####")
    if mark < 0:
        return None
    line, _, rest = text[mark + 4 :].strip().partition("\n")
    if _HEADING.fullmatch(line.strip()):
        return _stated_answer(rest) or rest.strip() or None
    line = line.strip()
    clause = _CLAUSE.search(line) if _STARTS_WITH_NUMBER.match(line) else None
    return line[: clause.start()] if clause else line


def _stated_answer(text: str) -> str | None:
    """What follows the last phrase such as "the answer is", to the end of its sentence or line."""
    phrases = list(_PHRASE.finditer(text))
    if not phrases:
        return None
    rest = text[phrases[-1].end() :].strip()
    displayed = FORMULA.match(rest)
    if displayed and rest[:2] in ("$$", r"\["):
        return displayed[0]
    sentence = SENTENCE.search(rest)
    return (rest[: sentence.start()] if sentence else rest).strip("*_` \n")


def number_of(answer: FinalAnswer) -> str | None:
    """The integer that an answer gives, as plain digits: the last number in it, with any words or
    a unit around it, and not one that is denied ("25, not 24"). None if that is a fraction, a part
    of an expression ("12 + 13"), scaled ("25 dozen"), or the last of a list of different numbers
    ("24, 25"), which leaves open which is meant."""
    text = _THOUSANDS.sub(",", EMPHASIS.sub("", answer.text))
    numbers = (
        match
        for match in _INTEGER.finditer(text)
        if not _DENIED.search(text, max(0, match.start() - 6), match.start())
    )
    *head, last = [None, None, *numbers][-3:]
    if last is None:
        return None
    prefix, suffix = text[: last.start()], text[last.end() :]
    word = WORD.match(suffix.lstrip()[:16])
    operated = _OPERATED_BEFORE.search(prefix[-16:]) or _OPERATED_AFTER.match(suffix[:16])
    if operated or (word and word[0].casefold() in SCALES):
        return None
    value, previous = _integer(last), head[-1]
    is_list = previous is not None and _LISTED.fullmatch(text, previous.end(), last.start())
    return None if previous is not None and is_list and _integer(previous) != value else value


def _integer(match: re.Match[str]) -> str | None:
    if match["rest"] and match["rest"].strip(".0"):
        return None
    digits = match["digits"].replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if match["sign"] and digits != "0" else digits


def same_words(text: str, other_text: str) -> bool:
    """Check that both have the same words in Unicode's canonical form, with any white space between
    them."""
    words, other_words = (
        unicodedata.normalize("NFC", string).split() for string in (text, other_text)
    )
    return words == other_words
