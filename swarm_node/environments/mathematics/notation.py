# ruff: noqa: RUF001 - signs that look like others are what this module is for
"""Brings the spellings of mathematics to one: LaTeX with or without $, plain text and Unicode.

Everything here is pure and takes time linear in the text. Each rule names its reason or its source:
`strip_string` is that of the MATH data set's evaluation (github.com/hendrycks/math).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from swarm_node.environments.mathematics.vocabulary import SHORT_WORDS

Kind = Literal["number", "name", "word", "command", "mark"]


class Token(NamedTuple):
    """A part of a text, as LaTeX. A word of two letters or more is in lower case."""

    kind: Kind
    text: str


class Rule(NamedTuple):
    """A spelling that is replaced, and why."""

    pattern: re.Pattern[str]
    new: str
    reason: str


def _split_names(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def _rule(pattern: str, new: str, reason: str) -> Rule:
    return Rule(re.compile(pattern), new, reason)


#: Applied in this order. Repetition is bounded or of one class of characters: each is linear.
RULES: Final[Sequence[Rule]] = (
    _rule(r"\\\\(?:\s?\[[^\]]{0,8}\])?", r"\\cr ", "a row's end, before \\ and a space is one"),
    _rule(r"\^\s?\{\s?\\circ\s?\}|\\degree(?![a-z])", r"^\\circ ", "degrees: strip_string"),
    _rule(r"\\(?:left|right)(?![a-z])\s?\.?", "", "sizes say nothing: strip_string"),
    _rule(r"\\[Bb]igg?[lrm]?(?![a-z])", "", "sizes say nothing"),
    _rule(r"\\(?:display|text|script)style(?![a-z])|\\limits(?![a-z])", "", "sizes say nothing"),
    _rule(r"\\[dtc]frac(?![a-z])|\\sfrac(?![a-z])", r"\\frac", "strip_string"),
    _rule(r"\\[dt]binom(?![a-z])", r"\\binom", "as \\dfrac"),
    _rule(r"\\frac\s?(\d)\s?(\d)", r"\\frac{\1}{\2}", "\\frac12: strip_string"),
    _rule(r"\\frac\s?(\d)\s?\{", r"\\frac{\1}{", "\\frac1{72}: strip_string"),
    _rule(r"\{,\}|,\s?\\!\s?", ",", "MATH groups digits as 1,\\!000, others as 1{,}000"),
    _rule(r"\\!|&nbsp;|\\hspace\s?\{[^{}]{0,16}\}", " ", "space: strip_string"),
    _rule(r"\\(?:[,:;> ]|q?quad(?![a-z]))|~", " ", "space: strip_string"),
    _rule(r"\\(?:leq|leqslant)(?![a-z])|<=", r"\\le ", "one sign"),
    _rule(r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge ", "one sign"),
    _rule(r"\\neq(?![a-z])|!=|\\not\s?=", r"\\ne ", "one sign"),
    _rule(r"\\lt(?![a-z])", "<", "one sign"),
    _rule(r"\\gt(?![a-z])", ">", "one sign"),
    _rule(r"\\varnothing(?![a-z])", r"\\emptyset ", "one sign"),
    _rule(r"\\infin(?![a-z])", r"\\infty ", "one sign"),
    _rule(r"\+\s?\\infty(?![a-z])", r"\\infty ", "a plus sign says nothing"),
    _rule(r"\\(?:[lr]?vert|mid)(?![a-z])", "|", "one sign"),
    _rule(r"\\lbrack(?![a-z])", "[", "one sign"),
    _rule(r"\\rbrack(?![a-z])", "]", "one sign"),
    _rule(r"\\lbrace(?![a-z])", r"\\{", "one sign"),
    _rule(r"\\rbrace(?![a-z])", r"\\}", "one sign"),
    _rule(
        r"\\(?:mathbb|mathbf)\s?\{R\}|\\R(?![a-zA-Z])", r"(-\\infty,\\infty)", "all real numbers"
    ),
    _rule(r"\\(?:ast|cdot|times|cdotp)(?![a-z])", "*", "a product"),
    _rule(r"\\div(?![a-z])", "/", "a quotient"),
    _rule(r"\\(?:lor|vee)(?![a-z])", " or ", "one word"),
    _rule(r"\\[lc]?dots(?![a-z])|\.\.\.", r"\\ldots ", "one sign"),
    _rule(
        r"\{\s?([^{}\\]{1,32})\\choose\s?([^{}\\]{1,32})\}", r"\\binom{\1}{\2}", "TeX's own form"
    ),
    _rule(r"(?i)\ball real numbers\b", r"(-\\infty,\\infty)", "all real numbers"),
    _rule(r"-\s?(\\?\$)\s?(?=[\d.])", r"\1-", "-$5"),
    _rule(r"\$\s?\n\s?\$(?!\$)", ", ", "formulas on lines of their own are several"),
    _rule(r"\\(?:simeq|sim|thickapprox)(?![a-z])", r"\\approx ", "nearly equal"),
    _rule(r"\\(?:[rR]ightarrow|implies)(?![a-z])|->|=>", r"\\to ", "one arrow"),
    _rule(r"(?<=[\w)\]}])\*\*(?=[-\d(a-zA-Z])", "^", "a power as Python writes it"),
    _rule(r"\*\*|__", " ", "Markdown's emphasis"),
    _rule(r"\\[(\])[]", " ", "LaTeX's delimiters of a formula"),
    _rule(r"(?i)(?<=\d)\s?(?:per ?cent|pct)(?![a-z])", r"\\%", "percent"),
    _rule(r"(?<=\d)\s?[xX]\s?(?=10\s?\^)", "*", "6.5 x 10^-2"),
)
#: Unicode signs as LaTeX. NFKC, which follows, brings other forms of letters and digits to one.
_SIGNS: Final[Mapping[str, str]] = {
    **dict.fromkeys("−‐‑‒–—﹣－", "-"),
    **dict.fromkeys("×✕⨯⋅·∙•∗", "*"),
    **dict.fromkeys("÷∕⁄", "/"),
    **dict.fromkeys("“”„‘’`", '"'),
    **dict.fromkeys("≈≃≅∼", r"\approx "),
    **dict.fromkeys("°º", r"^\circ "),
    **dict.fromkeys("→⇒", r"\to "),
    **dict.fromkeys("∣｜", "|"),
    **dict.fromkeys("\u200b\ufeff\u2061\u2062", ""),
    **{"√": r"\sqrt ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "∞": r"\infty ", "∅": r"\emptyset "},
    **{"≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "±": r"\pm "},
    **{
        "∓": r"\mp ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∠": r"\angle ",
        "△": r"\triangle ",
    },
    **{"⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil "},
    **{"⌉": r"\rceil ", "∑": r"\sum ", "∫": r"\int ", "∂": r"\partial ", "℃": r"^\circ C"},
    **{"℉": r"^\circ F", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}"},
    **{"ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "¢": " cents "},
}
_GREEK: Final = _split_names(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa mu nu xi pi rho sigma tau upsilon "
    "phi chi psi omega"
)
_LETTERS: Final = {
    **{unicodedata.lookup(f"GREEK SMALL LETTER {name}"): rf"\{name} " for name in _GREEK},
    "λ": r"\lambda ",
    **{unicodedata.lookup(f"GREEK CAPITAL LETTER {name}"): rf"\{name.title()} "
       for name in ("gamma", "delta", "theta", "xi", "pi", "sigma", "phi", "psi", "omega")},
    "Λ": r"\Lambda ",
}  # fmt: skip
_TABLE: Final = str.maketrans({**_SIGNS, **_LETTERS})
_RAISED: Final = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ"
_LOWERED: Final = "₀₁₂₃₄₅₆₇₈₉₊₋₍₎"
_LEVEL: Final = str.maketrans(_RAISED + _LOWERED, "0123456789+-()ni0123456789+-()")
_SHIFTED: Final = re.compile(f"(?P<raised>[{_RAISED}]+)|[{_LOWERED}]+")
_FRACTIONS: Final = re.compile("[¼-¾⅐-⅞]")

_FUNCTIONS: Final = _split_names(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp sqrt"
)
#: Names in plain text, as LaTeX.
_COMMANDS: Final[Mapping[str, str]] = {
    **{name: rf"\{name}" for name in (*_FUNCTIONS, *_GREEK, "infty", "lambda")},
    **{name: r"\infty" for name in ("inf", "infinity", "Infinity", "oo")},
    **{f"a{name}": rf"\arc{name}" for name in ("sin", "cos", "tan")},
    "Pi": r"\pi",
    "PI": r"\pi",
}
#: Commands whose content is text, and those whose content is letters of another type.
_TEXT: Final = frozenset(
    rf"\{name}"
    for name in _split_names("text textbf textit textrm textnormal mathrm mbox operatorname rm")
)
_TYPE: Final = frozenset(
    rf"\{name}" for name in _split_names("mathbf mathit boldsymbol bm bf mathsf underline")
)
_MATRICES: Final = frozenset(_split_names("array matrix pmatrix bmatrix Bmatrix smallmatrix"))
_BRACKETED: Final = r"(?P<env>\\(?:begin|end)\s?\{[A-Za-z*]{1,16}\}(?:\s?\{[lcr|\s]{1,32}\})?)"
_DIGITS: Final = r"(?:\d{1,3}(?:[,\ ]\d{3})+(?![\d]|[,\ ]\d)|\d+)"
_REST: Final = r"""(?:\.\d+)?(?:[eE][+-]?\d{1,4}(?![\w.^]))?|\.\d+(?:[eE][+-]?\d{1,4}(?![\w.^]))?)
    |(?P<letters>[^\W\d_]+)|(?P<mark>\S)|\s+"""
_HEAD: Final = _BRACKETED + r"|(?P<command>\\[A-Za-z]+\*?)|(?P<escaped>\\.)|(?P<number>"
#: With and without groups of three digits.
_GROUPED: Final = re.compile(_HEAD + _DIGITS + _REST, re.VERBOSE | re.DOTALL)
_UNGROUPED: Final = re.compile(_HEAD + r"\d+" + _REST, re.VERBOSE | re.DOTALL)
_BESIDE_PRODUCTS: Final = frozenset("^_/*+-=()[]{}<>|,0123456789\\")


def normalize_notation(text: str) -> str:
    """The text in one spelling of signs, as LaTeX."""
    text = _SHIFTED.sub(_script_to_latex, text)
    text = _FRACTIONS.sub(lambda match: " " + unicodedata.normalize("NFKC", match[0]), text)
    text = unicodedata.normalize("NFKC", text.translate(_TABLE)).translate(_TABLE)
    for rule in RULES:
        text = rule.pattern.sub(rule.new, text)
    return text


def _script_to_latex(match: re.Match[str]) -> str:
    return ("^{" if match["raised"] else "_{") + match[0].translate(_LEVEL) + "}"


def tokens_of(text: str, *, group_digits: bool = True) -> list[Token]:
    """The tokens of a text in words (`normalize_notation`). `group_digits`: 1,234 and 1 234
    are one number, else several.

    Signs of a formula ($) are left out, unless there is one alone: that is a dollar."""
    dollar = text.replace(r"\$", "").count("$") == 1
    tokens: list[Token] = []
    texts: list[bool] = []  # of each open brace: whether it opened a text
    expects_text = False
    for match in (_GROUPED if group_digits else _UNGROUPED).finditer(text):
        part = match[0]
        if part.isspace():
            continue
        if part in _TEXT or part in _TYPE:
            expects_text = part in _TEXT
            tokens += [Token("mark", "type")] * (not expects_text)
        elif part == "{":
            texts.append(expects_text)
            tokens += [Token("mark", "{")] * (not expects_text)
            expects_text = False
        elif part == "}" and texts:
            tokens += [Token("mark", "}")] * (not texts.pop())
        elif part != "$" or dollar:
            expects_text = False
            tokens += _token(match, text, in_text=any(texts[-2:]))
    return _replace_sign_words(token for token in tokens if token.text != "type")


def _replace_sign_words(tokens: Iterable[Token]) -> list[Token]:
    """With a sign for "negative 5" and "minus 5"."""
    signed_tokens: list[Token] = []
    for token in tokens:
        if (
            token.kind == "number"
            and signed_tokens
            and signed_tokens[-1].text in ("negative", "minus")
        ):
            signed_tokens[-1] = Token("mark", "-")
        signed_tokens.append(token)
    return signed_tokens


def _token(match: re.Match[str], text: str, *, in_text: bool) -> Iterator[Token]:
    part = match[0]
    if match["env"]:
        # The columns' alignment says nothing, and matrices differ in their brackets only.
        name = part.split("{")[1].rstrip("}* ")
        if name in _MATRICES or name == "vmatrix":
            yield Token("mark", rf"{part[1]}:{'vmatrix' if name == 'vmatrix' else 'matrix'}")
    elif match["command"]:
        yield Token("command", part)
    elif match["escaped"]:
        yield Token("word" if part[1] == "$" else "mark", part if part[1] in "{}" else part[1])
    elif match["number"]:
        yield Token("number", re.sub(r"[, ]", "", part).upper())
    elif match["letters"]:
        yield from _letters(match, text, in_text=in_text)
    elif part in "$€£¥₹₽₩₪₺฿":
        yield Token("word", part)
    else:
        yield Token("mark", part)


def _letters(match: re.Match[str], text: str, *, in_text: bool) -> Iterator[Token]:
    run, (begin, end) = match[0], match.span()
    if in_text:
        # \mathrm{e} and \mathrm{i} are numbers.
        yield Token("name", run) if run in ("e", "i", "d") else _word(run)
    elif len(run) == 1:
        yield Token("name", run)
    elif run in _COMMANDS:
        yield Token("command", _COMMANDS[run])
    elif run[:-1] in _FUNCTIONS and run[-1] in "xyztnu":  # sinx
        yield from (Token("command", _COMMANDS[run[:-1]]), Token("name", run[-1]))
    elif len(run) > 3 or run.lower() in SHORT_WORDS or not run.isascii():
        yield _word(run)
    elif (
        _BESIDE_PRODUCTS & {text[begin - 1 : begin], text[end : end + 1]}
        or text[max(begin - 2, 0) : begin] == "{ "
        or text[end : end + 2] == " }"
    ):
        yield from (Token("name", letter) for letter in run)
    else:
        yield _word(run)


def _word(run: str) -> Token:
    return Token("word", run.casefold() if len(run) > 1 else run)
