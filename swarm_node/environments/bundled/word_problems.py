"""Word problems in everyday language, with one step at level 1 and five or more at level 5. Pure.

A template is a text with slots, the numbers that it needs, and the expression of its answer.
People, things and numbers are drawn. Every number of a text is at least 2, so that plurals are
right, and every result on the way to the answer is a positive integer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from swarm_node.environments.splits.hashed_random import Draws, Exercise


class Template(NamedTuple):
    """A text with slots in braces. `numbers` are drawn in their order: "a=2..9" within two bounds,
    and "t=a*b" by the numbers before. Bounds are expressions too."""

    text: str
    numbers: str
    answer: str


_SHE: Final = (
    "Ada", "Alice", "Amina", "Ana", "Bella", "Carla", "Clara", "Daisy", "Elena", "Emma", "Fatima",
    "Grace", "Hana", "Ines", "Ivy", "Julia", "Kate", "Lena", "Lily", "Lucy", "Maria", "Maya",
    "Mia", "Nina", "Nora", "Olga", "Priya", "Rosa", "Ruth", "Sara", "Sofia", "Tara", "Yuki", "Zoe",
)  # fmt: skip
_HE: Final = (
    "Adam", "Ahmed", "Alex", "Ben", "Carlos", "Chen", "Daniel", "David", "Emil", "Felix", "Finn",
    "George", "Hugo", "Ivan", "Jack", "Jonas", "Karim", "Leo", "Liam", "Lucas", "Marco", "Max",
    "Noah", "Omar", "Oscar", "Paul", "Pedro", "Raj", "Sam", "Simon", "Theo", "Tom", "Victor",
    "Yusuf",
)  # fmt: skip
_PEOPLE: Final = (*_SHE, *_HE)
#: Things by what can be done with them: a singular and its plural.
_THINGS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "toy": (
        ("marble", "marbles"), ("sticker", "stickers"), ("seashell", "seashells"),
        ("stamp", "stamps"), ("coin", "coins"), ("button", "buttons"), ("bead", "beads"),
        ("postcard", "postcards"), ("crayon", "crayons"), ("pebble", "pebbles"),
        ("toy car", "toy cars"), ("trading card", "trading cards"),
    ),
    "snack": (
        ("cookie", "cookies"), ("grape", "grapes"), ("cherry", "cherries"), ("plum", "plums"),
        ("strawberry", "strawberries"), ("cracker", "crackers"), ("walnut", "walnuts"),
        ("date", "dates"), ("almond", "almonds"), ("candy", "candies"),
    ),
    "fruit": (
        ("apple", "apples"), ("pear", "pears"), ("peach", "peaches"), ("orange", "oranges"),
        ("lemon", "lemons"), ("mango", "mangoes"), ("apricot", "apricots"), ("fig", "figs"),
    ),
    "bake": (
        ("muffin", "muffins"), ("bun", "buns"), ("scone", "scones"), ("cupcake", "cupcakes"),
        ("tart", "tarts"), ("pretzel", "pretzels"), ("bread roll", "bread rolls"),
    ),
    "good": (
        ("notebook", "notebooks"), ("candle", "candles"), ("mug", "mugs"), ("scarf", "scarves"),
        ("puzzle", "puzzles"), ("brush", "brushes"), ("poster", "posters"), ("plate", "plates"),
        ("comic", "comics"), ("ball", "balls"), ("box of paints", "boxes of paints"),
    ),
    "meal": (
        ("sandwich", "sandwiches"), ("salad", "salads"), ("pizza", "pizzas"), ("soup", "soups"),
        ("pancake", "pancakes"), ("taco", "tacos"), ("bagel", "bagels"),
    ),
    "bird": (
        ("sparrow", "sparrows"), ("pigeon", "pigeons"), ("crow", "crows"), ("robin", "robins"),
        ("finch", "finches"), ("starling", "starlings"), ("blackbird", "blackbirds"),
    ),
    "plant": (
        ("tomato plant", "tomato plants"), ("rose", "roses"), ("tulip", "tulips"),
        ("cabbage", "cabbages"), ("sunflower", "sunflowers"), ("pepper plant", "pepper plants"),
    ),
}  # fmt: skip
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_ONE_STEP: Final = (
    Template(
        "{name} has {a} {toys}. {friend} gives {them} {b} more. "
        "How many {toys} does {name} have now?",
        "a=2..12 b=2..9",
        "a + b",
    ),
    Template(
        "{name} has {a} {toys} and gives {b} of them to {friend}. "
        "How many {toys} does {name} have left?",
        "a=6..20 b=2..a-3",
        "a - b",
    ),
    Template(
        "There are {a} {snacks} in a bowl. {name} eats {b} of them. How many {snacks} are left?",
        "a=6..18 b=2..5",
        "a - b",
    ),
    Template(
        "{name} buys {a} bags of {fruits}. There are {b} {fruits} in each bag. "
        "How many {fruits} does {they} buy?",
        "a=2..6 b=2..9",
        "a * b",
    ),
    Template(
        "{name} shares {t} {snacks} equally among {a} friends. "
        "How many {snacks} does each friend get?",
        "a=2..6 q=2..12 t=a*q",
        "t / a",
    ),
    Template(
        "One {good} costs {a} dollars. {name} buys {b} {goods}. How many dollars does {they} pay?",
        "a=2..9 b=2..6",
        "a * b",
    ),
    Template(
        "{name} read {a} pages of a book on {day} and {b} pages on {tomorrow}. "
        "How many pages did {they} read in those two days?",
        "a=4..20 b=4..20",
        "a + b",
    ),
    Template(
        "{a} {birds} are sitting in a tree in {name}'s garden, and {b} more fly in. "
        "How many {birds} are in the tree now?",
        "a=3..15 b=2..9",
        "a + b",
    ),
    Template(
        "{name} drives a bus with {a} passengers. At the next stop {b} of them get off. "
        "How many passengers are still on the bus?",
        "a=8..30 b=2..a-4",
        "a - b",
    ),
    Template(
        "{name} is {a} years old. {friend} is {b} years older. How old is {friend}?",
        "a=4..15 b=2..9",
        "a + b",
    ),
)
_TWO_STEPS: Final = (
    Template(
        "{name} has {a} {toys}. {They} finds {b} more and then gives {c} to {friend}. "
        "How many {toys} does {name} have now?",
        "a=5..30 b=3..20 c=2..a-2",
        "a + b - c",
    ),
    Template(
        "{name} buys {a} {goods} for {b} dollars each and pays with {t} dollars. "
        "How many dollars does {they} get back?",
        "a=2..6 b=2..9 q=2..15 t=a*b+q",
        "t - a * b",
    ),
    Template(
        "{name} bakes {a} trays of {bakes}, with {b} {bakes} on each tray. {They} sells {c} of "
        "them. How many {bakes} are left?",
        "a=2..6 b=6..12 c=3..a*b-2",
        "a * b - c",
    ),
    Template(
        "{name} has {a} {toys}. {friend} has {b} times as many. "
        "How many {toys} do they have together?",
        "a=3..15 b=2..5",
        "a + a * b",
    ),
    Template(
        "{name} picks {a} {fruits} and {friend} picks {b}. They put the same number of {fruits} "
        "into each of {k} baskets. How many {fruits} are in each basket?",
        "k=2..6 q=3..12 a=2..k*q-2 b=k*q-a",
        "(a + b) / k",
    ),
    Template(
        "{name} saves {a} dollars every week. After {b} weeks {they} spends {c} dollars on a "
        "present for {friend}. How many dollars does {they} have left?",
        "a=3..15 b=3..9 c=4..a*b-2",
        "a * b - c",
    ),
    Template(
        "{name} cuts a ribbon of {t} centimeters into {k} equal pieces. Then {they} cuts {c} "
        "centimeters off one of them. How many centimeters long is that piece now?",
        "k=2..8 q=8..25 t=k*q c=2..q-3",
        "t / k - c",
    ),
    Template(
        "{name} takes a train that has {a} cars with {b} seats each. Today {c} seats are taken. "
        "How many seats are free?",
        "a=3..8 b=10..30 c=10..a*b-4",
        "a * b - c",
    ),
    Template(
        "{name} is {a} years old. {friend} is {b} years older than {name}, and {third} is twice "
        "as old as {friend}. How old is {third}?",
        "a=4..20 b=2..12",
        "(a + b) * 2",
    ),
    Template(
        "The walk to school takes {name} {a} minutes, and the walk home takes {them} {b} minutes. "
        "How many minutes does {they} walk in {c} school days?",
        "a=6..20 b=6..20 c=2..9",
        "(a + b) * c",
    ),
)
_THREE_STEPS: Final = (
    Template(
        "{name} buys {a} {goods} at {b} dollars each and {c} {meals} at {d} dollars each. {They} "
        "pays with {t} dollars. How many dollars does {they} get back?",
        "a=2..6 b=3..12 c=2..5 d=3..9 q=2..20 t=a*b+c*d+q",
        "t - a * b - c * d",
    ),
    Template(
        "{name} has {a} boxes with {b} {toys} in each. {They} gives {c} {toys} to {friend} and "
        "shares the rest equally among {k} cousins. How many {toys} does each cousin get?",
        "a=3..8 b=6..12 k=2..5 q=2..(a*b-2)//k c=a*b-k*q",
        "(a * b - c) / k",
    ),
    Template(
        "{name} looks after a small library with {a} shelves of {b} books each. On {day} {c} new "
        "books arrive and {d} books are borrowed. How many books are in the library now?",
        "a=4..12 b=15..40 c=3..30 d=5..50",
        "a * b + c - d",
    ),
    Template(
        "{name} runs {a} kilometers on each of the days from Monday to Friday, and {b} kilometers "
        "on Saturday. How many kilometers does {they} run in {c} weeks?",
        "a=2..9 b=4..20 c=2..8",
        "(5 * a + b) * c",
    ),
    Template(
        "{name} has {a} hens, and each of them lays {b} eggs a week. {They} keeps {c} of the eggs "
        "and sells the rest in boxes of {k}. How many boxes does {they} sell in a week?",
        "a=6..15 b=3..6 k=4..6 q=2..(a*b-2)//k c=a*b-k*q",
        "(a * b - c) / k",
    ),
    Template(
        "{name} earns {a} dollars an hour. {They} works {b} hours on {day} and {c} hours on "
        "{tomorrow}, and then spends {d} dollars. How many dollars of this pay are left?",
        "a=8..25 b=2..8 c=2..8 d=5..a*b",
        "a * (b + c) - d",
    ),
    Template(
        "At the zoo {name} pays {a} dollars for an adult and {b} dollars for a child. {Their} "
        "group has {c} adults and {d} children, and a voucher takes {e} dollars off. "
        "How many dollars does {they} pay for the group?",
        "a=8..20 b=3..a-2 c=2..5 d=2..12 e=2..10",
        "a * c + b * d - e",
    ),
    Template(
        "{name} is reading a book of {t} pages. {They} reads {a} pages a day for {b} days, and "
        "then the rest in {k} days, with the same number of pages each day. "
        "How many pages a day does {they} read in these {k} days?",
        "a=8..30 b=3..8 k=2..6 q=10..40 t=a*b+k*q",
        "(t - a * b) / k",
    ),
    Template(
        "{name} drives a bus with {a} passengers. At the library {b} get off and {c} get on. "
        "At the station {d} get off. How many passengers are on the bus now?",
        "a=15..45 b=3..a-6 c=3..20 d=2..a-b+c-2",
        "a - b + c - d",
    ),
)
_FOUR_STEPS: Final = (
    Template(
        "{name} plans a trip for {a} classes of {b} pupils each. {c} pupils are ill and stay at "
        "home, and {d} adults come along. They fill a number of buses with {k} seats each to the "
        "last seat. How many buses do they fill?",
        "a=3..6 b=18..28 c=2..9 q=2..9 k=a*b//q+1 d=k*q-a*b+c",
        "(a * b - c + d) / k",
    ),
    Template(
        "{name} and {friend} sell lemonade at {a} dollars a cup and cake at {b} dollars a piece. "
        "On {day} they sell {c} cups and {d} pieces. Lemons, flour and sugar cost them {e} "
        "dollars, and they share the rest equally. How many dollars does each of them get?",
        "a=2..4 b=2..6 c=6..30 d=6..30 q=6..(a*c+b*d-4)//2 e=a*c+b*d-2*q",
        "(a * c + b * d - e) / 2",
    ),
    Template(
        "In {their} garden {name} has {a} rows of {b} {plants} and {c} rows of {d} bushes. A storm "
        "destroys {e} of all these plants, and {they} puts {f} new ones in. "
        "How many plants are in the garden now?",
        "a=3..9 b=5..15 c=2..8 d=4..12 e=4..20 f=2..25",
        "a * b + c * d - e + f",
    ),
    Template(
        "{name} fills an empty tank. A pump brings {a} liters a minute for {b} minutes. Then a "
        "second pump that brings {c} liters a minute helps, and both run for {d} minutes. After "
        "that {name} takes {e} liters out. How many liters are in the tank?",
        "a=4..25 b=3..12 c=4..25 d=2..10 e=5..a*b+c",
        "a * b + (a + c) * d - e",
    ),
    Template(
        "{name} has {a} {toys}. {friend} has {b} times as many as {name}, and {third} has {c} "
        "fewer than {friend}. How many {toys} do the three have together?",
        "a=6..30 b=2..6 c=2..a*b-2",
        "a + a * b + (a * b - c)",
    ),
    Template(
        "{name} has {a} dollars and saves {b} dollars a week for {c} weeks. Then {they} buys {d} "
        "{goods} at {e} dollars each. How many dollars does {they} have left?",
        "a=10..60 b=4..20 c=3..10 d=2..6 e=3..(a+b*c-2)//d",
        "a + b * c - d * e",
    ),
    Template(
        "A cinema shows {b} films one after the other. Each lasts {a} minutes, and after every "
        "film but the last there is a break of {c} minutes. {name} comes {d} minutes before the "
        "first film and stays to the end of the last. How many minutes is {they} there?",
        "a=80..140 b=3..5 c=8..30 d=5..25",
        "a * b + c * (b - 1) + d",
    ),
)
_FIVE_STEPS: Final = (
    Template(
        "Every morning {name} bakes {a} trays of {b} {bakes}. Each day {they} sells {c} of them, "
        "gives {d} to the neighbors and freezes the rest. After {k} days {they} packs all that "
        "are frozen into bags of {m}. How many bags does {they} fill?",
        "a=5..12 b=12..24 d=2..9 k=3..7 m=3..8 q=2..(a*b-d-6)//m c=a*b-d-m*q",
        "(a * b - c - d) * k / m",
    ),
    Template(
        "A fence has {t} posts. {name} paints {a} posts an hour and {friend} paints {b}. They "
        "work together for {c} hours, then {friend} goes home and {name} works alone for {d} "
        "hours. {third} paints the other posts in {k} hours, with the same number each hour. "
        "How many posts does {third} paint in an hour?",
        "a=4..15 b=4..15 c=2..6 d=2..6 k=2..6 q=3..14 t=(a+b)*c+a*d+k*q",
        "(t - (a + b) * c - a * d) / k",
    ),
    Template(
        "{name} has {a} crates of {b} apples and {c} crates of {d} pears. {e} apples and {f} "
        "pears are bad. {They} packs all the good fruit into bags of {m} and sells each bag for "
        "{p} dollars. How many dollars does {they} take?",
        "a=4..12 b=20..40 c=3..9 d=15..30 e=3..20 m=4..9 p=2..6 q=(a*b-e+c*d-2)//m f=a*b-e+c*d-m*q",
        "(a * b - e + c * d - f) / m * p",
    ),
    Template(
        "{name} sets out on a journey of {t} kilometers. {They} drives {b} hours at {a} kilometers "
        "an hour and {d} hours at {c} kilometers an hour. Then a detour makes the journey {e} "
        "kilometers longer, and {they} drives the rest in {k} days, the same distance each day. "
        "How many kilometers does {they} drive on each of these days?",
        "a=50..110 b=2..6 c=40..90 d=2..6 e=6..40 k=2..5 q=60..250 t=a*b+c*d+k*q-e",
        "(t + e - a * b - c * d) / k",
    ),
    Template(
        "{name}'s class sells {a} {bakes} at {b} dollars each and {c} cups of tea at {d} dollars "
        "each. The school doubles what they take. The class then pays {e} dollars for the hall "
        "and shares the rest equally among {k} clubs. How many dollars does each club get?",
        "a=12..60 b=2..5 c=10..50 d=2..4 k=3..8 q=((a*b+c*d)*2-10)//k e=(a*b+c*d)*2-k*q",
        "((a * b + c * d) * 2 - e) / k",
    ),
    Template(
        "{name} pays {a} dollars a month for {their} phone, with {b} free minutes. Every further "
        "minute costs {c} cents. In May {they} talks for {d} minutes, and in June for {e} minutes. "
        "How many cents do these two months cost {them}?",
        "a=5..30 b=60..200 c=2..9 d=b+5..b+90 e=b+5..b+90",
        "2 * a * 100 + (d - b + e - b) * c",
    ),
)
#: Templates by level, from 1 on.
LEVELS: Final = (_ONE_STEP, _TWO_STEPS, _THREE_STEPS, _FOUR_STEPS, _FIVE_STEPS)


def word_problem(draws: Draws, level: int) -> Exercise:
    """A problem of a level, 1 to 5."""
    return fill_template(draws, draws.one_of(LEVELS[level - 1]))


def fill_template(draws: Draws, template: Template) -> Exercise:
    """A template with people, things and numbers."""
    numbers: dict[str, int] = {}
    for definition in template.numbers.split():
        name, _, rule = definition.partition("=")
        low_text, _, high_text = rule.partition("..")
        low = value(low_text, numbers)
        numbers[name] = draws.within(low, value(high_text, numbers)) if high_text else low
    words = {**_words(draws), **{name: f"{number:,}" for name, number in numbers.items()}}
    question = re.sub(r"\{(\w+)\}", lambda slot: words[slot[1]], template.text)
    expression = re.sub(r"[a-z]", lambda name: str(numbers[name[0]]), template.answer)
    return Exercise(question, str(value(template.answer, numbers)), expression)


def _words(draws: Draws) -> dict[str, str]:
    """What stands for each slot that is no number."""
    name, friend, third = draws.some_of(_PEOPLE, 3)
    they, them, their = ("she", "her", "her") if name in _SHE else ("he", "him", "his")
    day = draws.below(len(_DAYS))
    words = {"name": name, "friend": friend, "third": third, "day": _DAYS[day]}
    words |= {"they": they, "them": them, "their": their, "tomorrow": _DAYS[(day + 1) % 7]}
    words |= {"They": they.capitalize(), "Their": their.capitalize()}
    for kind, things in _THINGS.items():
        words[kind], words[f"{kind}s"] = draws.one_of(things)
    return words


def value(expression: str, numbers: Mapping[str, int]) -> int:
    """The value of an expression of integers, names, + − * and exact division.

    Raises:
        ValueError: a division leaves a rest, or the expression has something else in it."""
    return _evaluate(_parse_expression(expression), numbers)


@cache
def _parse_expression(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _evaluate(node: ast.expr, numbers: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return numbers[name]
        case ast.BinOp(left=left, op=operator, right=right):
            left_operand, right_operand = _evaluate(left, numbers), _evaluate(right, numbers)
            match operator:
                case ast.Add():
                    return left_operand + right_operand
                case ast.Sub():
                    return left_operand - right_operand
                case ast.Mult():
                    return left_operand * right_operand
                case ast.FloorDiv():
                    return left_operand // right_operand
                case ast.Div() if left_operand % right_operand == 0:
                    return left_operand // right_operand
    raise ValueError(f"{ast.unparse(node)} has no integer value for {dict(numbers)}")
