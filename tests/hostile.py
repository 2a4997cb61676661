"""Texts of peers that mean harm: code for scorers that evaluate, shapes for those that are slow."""

from __future__ import annotations

import json
from collections.abc import Iterator

LENGTH = 4096

#: What a scorer that evaluates would do with FILE. The module `this` prints when it is imported.
PAYLOADS = (
    "__import__('os').system('touch FILE')",
    "open('FILE','w')",
    "exec(\"open('FILE','w')\")",
    "eval(\"open('FILE','w')\")",
    "__import__('this')",
    "[x for x in ().__class__.__base__.__subclasses__()]",
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__=='Popen'][0]('touch FILE',"
    "shell=True)",
    "Symbol('x').__class__.__mro__[-1].__subclasses__()",
    "Symbol('x').__init__.__globals__['__builtins__']['open']('FILE','w')",
    "(lambda: open('FILE','w'))()",
    "[open('FILE','w'), 1]",
    "x + open('FILE','w').write('1') + C",
    "sympify(\"open('FILE','w')\")",
    "f\"{open('FILE','w')}\"",
    "(1).__class__.__base__",
    "1 + 2 if open('FILE','w') else 3",
    "$\\operatorname{open}('FILE','w')$",
    "{\"a\": \"__import__('os').system('touch FILE')\"}",
    "!!python/object/apply:os.system ['touch FILE']",
    "cos\nsystem\n(S'touch FILE'\ntR.",
)


def payloads(file: str) -> Iterator[str]:
    """Each as it is, and in tags."""
    for text in PAYLOADS:
        named = text.replace("FILE", file)
        yield named
        yield f"It is <answer>{named}</answer>."


_UNITS = (
    *"910[({\"'~¬∧\N{MULTIPLICATION SIGN}a \n\t-+٣²UD.eiß:$%_\U0001f600",
    *(
        "((1+",
        "[1,",
        '{"a":',
        "¬A∧",
        "A∧",
        "a∧",
        "A→",
        "(A",
        "2\N{MULTIPLICATION SIGN}",
        "9/",
        "9,",
        "1+",
        "1 ",
        "1\n",
    ),
    *(
        "1-",
        "()",
        "a//",
        "9**",
        "9^",
        "2**-",
        "x**",
        "x+",
        "sin(",
        "F ",
        "F2 ",
        "R' ",
        "U9",
        "A+9",
        "A+1 ",
        "w,",
    ),
    *("fill A\n", "Move disk 1 from Peg 1 to Peg 2\n", "ABC", "nan,", "inf,", "1e308,", "move("),
    *("<answer>", "</answer>", "answer ", "\\frac{", "\\(", "\\[", "is a knight ", "1.", ", "),
)

_LITERALS = (
    *("1e999999999", "-1e999999999", "1E+999999999999", "9**9**9**9", "(9**9)**(9**9)", "9" * 4096),
    *("0x" + "f" * 4000, "9" * 2000 + "/" + "7" * 2000, "[NaN]", "nan", "[1e999]"),
    *("U999999999", "A+999999999", "B-" + "9" * 4000, "F2 " * 249, "x" + "**9" * 200, "R" * 1999),
    *("[" * 2048 + "]" * 2048, "(" * 2048 + ")" * 2048, "(" * 2047 + "A" + ")" * 2047),
    *("¬" * 4095 + "A", "∧".join("abcdefghijklmnopqrstuvwxyz"), "∧".join("ABCDEFGHIJKLMNOPQRSTUV")),
    *("{" * 8 + "1," * 1800, "sin(" * 60 + "x" + ")" * 60, "x**" * 60 + "x", "answer" + " " * 4000),
    '{"a":' * 400 + "1" + "}" * 400,
    json.dumps([{"Agent[0.5, 0.5]": "move(" + ", " * 1900}]),
    json.dumps([{"1" * 4000: "move(a, b)"}]),
    json.dumps(["fill A"] * 380),
    json.dumps([[1]] * 800),
)


def shapes(right: str | None) -> Iterator[str]:
    """Texts of 4,096 characters at most, some made of the right answer."""
    for unit in _UNITS:
        yield (unit * LENGTH)[:LENGTH]
    yield from (text[:LENGTH] for text in _LITERALS)
    answer = right or "1"
    for pad in (" ", "9", "\n", ", ", "("):
        yield (answer + pad * LENGTH)[:LENGTH]
    yield (f"{answer} " * LENGTH)[:LENGTH]
    yield f"+0*{answer}" * (LENGTH // (len(answer) + 3) + 1)
