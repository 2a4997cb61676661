"""Share of right answers that score 1, beside math-verify used as its README says.

    python benchmarks/answers.py FILE [FILE ...] [--rows 150] [--seed 7]

Each file is a set of questions that `environment.options.path` takes. Every right answer is given
as its own answer in four forms: in <answer></answer>, in $ in those, in \\boxed{} and bare. These
are equal word for word, so it is given in plain text too, where that differs: (3)/(4) for
\\frac{3}{4}; and with another last digit, which is wrong. Then answers of other rows are given, and
those that score 1 are counted unless math-verify finds both equal as LaTeX. Last comes the cost of
a text of 64 kB.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence

from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig

from swarm_node.environments.answers.final import last_tagged
from swarm_node.environments.base import Environment, Task
from swarm_node.environments.lists.jsonl import create
from swarm_node.environments.mathematics.limit import quieten, within_time
from swarm_node.rollout import TaskRef

FORMS = {
    "tag": "<answer>{}</answer>",
    "$ in tag": "<answer>${}$</answer>",
    "boxed": "\\boxed{{{}}}",
    "bare": "{}",
}
PAIRS = 1100
PLAIN = {
    r"\\[dt]?frac\s?\{([^{}]+)\}\s?\{([^{}]+)\}": r"(\1)/(\2)",
    r"\\sqrt\s?\{(\w+)\}": r"√\1",
    r"\\(?:left|right)(?![a-z])|\$": "",
    r"\\pi(?![a-z])": "π",
    r"\\infty(?![a-z])": "∞",
    r"\\leq?(?![a-z])": "≤",
    r"\\geq?(?![a-z])": "≥",
    r"\\(?:cdot|times)(?![a-z])": "×",  # noqa: RUF001
    r"\\cup(?![a-z])": "∪",  # noqa: RUF001
    r"\\pm(?![a-z])": "±",
    r"\^\{(\w+)\}": r"^\1",
    r"(?<=\d),(?=\d{3}\b)": "",
}
LONG = [unit * (65536 // len(unit)) for unit in ("<answer>", "9", "((1+", "\\boxed{", "$", "1, ")]


def rows(environment: Environment, row_count: int, seed: int) -> list[Task]:
    """Tasks of as many rows as asked, drawn by a seed."""
    family = environment.families[0]
    places = list(range(environment.sizes[family][0]))  # type: ignore[attr-defined]
    random.Random(seed).shuffle(places)
    refs = [TaskRef(environment.name, environment.version, family, n) for n in places[:row_count]]
    return [environment.derive(ref) for ref in refs]


def rival(text: str, right: str) -> bool:
    """math-verify 0.9.0 by its README: the right answer as LaTeX, and by its own search the text,
    or what is in its tag."""
    tagged = last_tagged(text)
    judged = text if tagged is None else tagged
    gold = parse(f"${right}$", parsing_timeout=None)
    return within_time(
        lambda: bool(verify(gold, parse(judged, parsing_timeout=None), timeout_seconds=None))
    )


def as_latex(first: str, second: str) -> bool:
    """Whether math-verify finds two right answers equal, read as LaTeX both."""
    config = [LatexExtractionConfig()]
    parsed_answers = [
        parse(f"${each.strip('$')}$", config, fallback_mode="no_fallback", parsing_timeout=None)
        for each in (first, second)
    ]
    return within_time(lambda: bool(verify(*parsed_answers, timeout_seconds=None)))


def shares(tasks: Sequence[Task], score: Callable[[Task, str], float]) -> list[float]:
    """For each form, the share of tasks whose right answer scores 1 in it."""
    accepted_shares = []
    for name, form in FORMS.items():
        golds = [
            (task, task.payload.answer.strip("$") if "$" in name else task.payload.answer)
            for task in tasks
        ]
        accepted_shares.append(
            sum(score(task, form.format(gold)) for task, gold in golds) / len(tasks)
        )
    return accepted_shares


def respelled(gold: str) -> str:
    """A right answer in plain text."""
    for pattern, new in PLAIN.items():
        gold = re.sub(pattern, new, gold)
    return gold.strip()


def changed(gold: str) -> str:
    """A right answer with another last digit."""
    return re.sub(r"\d(?=\D*$)", lambda match: str((int(match[0]) + 1) % 10), gold)


def spelling(
    tasks: Sequence[Task], score: Callable[[Task, str], float], spell: Callable[[str], str]
) -> tuple[float, int]:
    """Of the right answers that `spell` changes, the share that scores 1, and how many they are."""
    pairs = [(task, spell(task.payload.answer)) for task in tasks]
    pairs = [(task, text) for task, text in pairs if text != task.payload.answer]
    right = sum(score(task, f"<answer>{text}</answer>") for task, text in pairs)
    return right / max(len(pairs), 1), len(pairs)


def strangers(environment: Environment, tasks: Sequence[Task], seed: int) -> tuple[int, int]:
    """Of pairs of rows, how many answers of the other row score 1, and how many of these that are
    not equal as LaTeX."""
    draw = random.Random(seed)
    accepted = unequal = 0
    for _ in range(PAIRS):
        first, second = draw.sample(tasks, 2)
        other_answer, right_answer = first.payload.answer, second.payload.answer
        if other_answer.split() != right_answer.split() and environment.score(
            second, f"<answer>{other_answer}</answer>"
        ):
            accepted += 1
            unequal += not as_latex(other_answer, right_answer)
    return accepted, unequal


def slowest(environment: Environment, task: Task) -> float:
    """CPU milliseconds of the slowest text of 64 kB."""
    takes = []
    for text in LONG:
        cpu_start = time.process_time()
        environment.score(task, text)
        takes.append(1000 * (time.process_time() - cpu_start))
    return max(takes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--answer-field", default="", help="as of `swarm-node env check`")
    arguments = parser.parse_args()
    quieten()
    heads = [*FORMS, "plain text", "other digit"]
    print(f"{'set':13} {'':11} {'  '.join(f'{name:>16}' for name in heads)}")
    for file in arguments.files:
        environment = create(file, scoring="math", answer=arguments.answer_field)
        tasks = rows(environment, arguments.rows, arguments.seed)
        scorers: dict[str, Callable[[Task, str], float]] = {
            "swarm-node": environment.score,
            "math-verify": lambda task, text: float(rival(text, task.payload.answer)),
        }
        for name, score in scorers.items():
            columns = [f"{share:.3f}" for share in shares(tasks, score)]
            for spell in (respelled, changed):
                share, count = spelling(tasks, score, spell)
                columns.append(f"{share:.3f} of {count}")
            cells = "  ".join(f"{column:>16}" for column in columns)
            print(f"{environment.families[0][:13]:13} {name:11} {cells}")
        accepted, unequal = strangers(environment, tasks, arguments.seed)
        print(
            f"    {unequal} of {accepted} accepted answers of other rows are not equal as LaTeX; "
            f"a text of 64 kB took {slowest(environment, tasks[0]):.0f} ms at most"
        )


if __name__ == "__main__":
    main()
