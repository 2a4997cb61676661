"""Words and units that stand beside numbers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final


def _split_names(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Short words of English and units, which are no products of letters.
SHORT_WORDS: Final = _split_names(
    "am an and are as at but by do for had has he her his if in is it its men no not of on or our "
    "per she so the to too two was we yes you day red one six ten new odd all pm cm mm km kg mg ml "
    "ft lb lbs oz yd mi mph hr hrs min sec mol cal deg rad usd eur gbp sq cup box bag can pen bus "
    "car cat dog cow egg hen pie toy boy"
)
#: Words that change the value beside them: with one of these no number is read from prose.
CHANGING: Final = _split_names(
    "not no never isn aren wasn doesn less more fewer greater than least most over under above "
    "below between except without half halves third thirds quarter quarters fourth fourths fifth "
    "twice double triple times plus minus times divided squared cubed wrong incorrect either "
    "neither nor unless if power root hundredths tenths eighths sixths sevenths ninths twelfths "
    "thousandths factorial reciprocal opposite multiple divisible exceeding upward cannot isn but "
    "except different base almost nearly up"
)
SCALES: Final = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9,
    "trillion": 10**12, "dozen": 12, "dozens": 12, "hundreds": 10**2, "thousands": 10**3,
    "millions": 10**6, "billions": 10**9,
}  # fmt: skip
#: Units that are told apart, by their spellings. Of other words one must be the same.
UNITS: Final = {
    spelling: unit
    for unit, spellings in {
        "$": "$ dollar dollars usd", "cent": "cent cents", "€": "€ euro euros eur",
        "£": "£ gbp", "¥": "¥ yen", "₹": "₹ rupee rupees",
        "mm": "mm millimeter millimeters millimetre millimetres",
        "cm": "cm centimeter centimeters centimetre centimetres",
        "m": "m meter meters metre metres", "km": "km kilometer kilometers kilometre kilometres",
        "inch": "inch inches", "foot": "ft foot feet", "yard": "yd yard yards",
        "mile": "mi mile miles", "mg": "mg milligram milligrams", "g": "g gram grams",
        "kg": "kg kilogram kilograms", "lb": "lb lbs pound pounds", "oz": "oz ounce ounces",
        "ton": "ton tons tonne tonnes", "ml": "ml milliliter milliliters millilitre millilitres",
        "liter": "L l liter liters litre litres", "gallon": "gallon gallons",
        "second": "s sec secs second seconds", "minute": "min mins minute minutes",
        "hour": "h hr hrs hour hours", "day": "day days", "week": "week weeks",
        "month": "month months", "year": "year years", "mile hour": "mph",
        "degree": "degree degrees deg", "joule": "J joule joules", "newton": "N newton newtons",
        "volt": "V volt volts", "watt": "W watt watts",
        "kelvin": "K kelvin kelvins",
        "kj": "kj kilojoule kilojoules",
        "kw": "kw kilowatt kilowatts", "radian": "rad radian radians",
    }.items()
    for spelling in spellings.split()
}  # fmt: skip
#: Words after a number that name no thing.
NO_NOUNS: Final = _split_names(
    "the and are was were been will would have has had that this they them she his her its for "
    "from with total altogether left remaining each all unit units way ways time times per square "
    "cubic answer final correct result there here long tall wide high deep old away now still"
)
SQUARED: Final = {"square": "^2", "sq": "^2", "cubic": "^3"}
#: With "of", a computation: the sum of 5.
COMPUTATIONS: Final = _split_names(
    "sum cube square inverse factor product difference quotient multiple reciprocal opposite root"
)
#: What a sentence begins with before a comma.
LEADS: Final = _split_names(
    "therefore thus so hence then finally overall consequently well okay ok"
)
_UNITS_DIGITS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBERS: Final = {
    **{word: value for value, word in enumerate(_UNITS_DIGITS.split())},
    **{word: 20 + 10 * value for value, word in enumerate(_TENS.split())},
    "hundred": 100,
    "half": Fraction(1, 2),
}


def number_in_words(words: Sequence[str]) -> Fraction | int | None:
    """The number that words such as "forty-two" or "one half" say, or None for others."""
    values = [NUMBERS.get(word) for word in words if word != "-"]
    match values:
        case [int() | Fraction() as value]:
            return value
        case [int() as tens, int() as units] if (
            tens % 10 == 0 and 20 <= tens < 100 and 0 < units < 10
        ):
            return tens + units
        case [1, Fraction() as value]:
            return value
    return None
