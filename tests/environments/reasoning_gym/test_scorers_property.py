"""Own scorers against the package's, on answers as honest members give them."""

from __future__ import annotations

import contextlib
import io
import math
import random
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from builders import examples
from environments.tasks import task_of
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.environments.answers.final import final_answer, last_tagged
from swarm_node.environments.base import Environment, Task
from swarm_node.environments.reasoning_gym import scorers
from swarm_node.environments.reasoning_gym.environment import RIGHT, create
from swarm_node.environments.splits.seeds import task_seed

#: Family -> seeds. The package takes milliseconds to evaluate an answer, and seconds to simplify.
SEEDS = {
    "binary_matrix": 2000,
    "bitwise_arithmetic": 2000,
    "coin_flip": 1000,
    "complex_arithmetic": 1000,
    "countdown": 200,
    "intermediate_integration": 16,
    "n_queens": 300,
    "number_sorting": 1000,
    "propositional_logic": 500,
    "puzzle24": 100,
    "rubiks_cube": 40,
    "rush_hour": 300,
    "simple_integration": 40,
    "sokoban": 100,
    "spell_backward": 1000,
    "spiral_matrix": 1000,
    "string_insertion": 2000,
}


def perturbed(answer: str, rng: random.Random) -> Iterator[str]:
    """The answer, other ways to write it, and answers that are a little wrong."""
    yield from (answer, answer.replace(" ", ""), f"({answer})", answer[:-1], answer + "1")
    yield from (f"2*({answer})", f"{answer} + 1", answer.replace("+", "-", 1))
    at = rng.randrange(len(answer))
    yield answer[:at] + rng.choice("0123456789+-*/() xC") + answer[at + 1 :]
    rows = [line.split() for line in answer.split("\n")]
    yield from (str(rows), str(rows[0]), str(tuple(rows[0])), ", ".join(rows[0]), str(list(answer)))
    if all(cell.isdigit() for row in rows for cell in row):
        yield str([[int(cell) for cell in row] for row in rows])
        yield str([int(cell) for cell in rows[0]])


def proposition(variables: list[str], depth: int, rng: random.Random) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(variables)
    operator = rng.choice("\N{NOT SIGN}\N{LOGICAL AND}\N{LOGICAL OR}→↔")
    left = proposition(variables, depth - 1, rng)
    if operator == "\N{NOT SIGN}":
        return operator + left
    return f"({left} {operator} {proposition(variables, depth - 1, rng)})"


def honest(family: str, entry: dict[str, Any], rng: random.Random) -> Iterator[str]:
    answer, metadata = entry["answer"], entry["metadata"]
    match family:
        case "propositional_logic":
            for _ in range(4):
                text = proposition(metadata["variables"], 3, rng)
                yield from (text, text.replace("(", "").replace(")", ""))
            yield from metadata["premises"]
        case "rush_hour":
            for _ in range(10):
                pieces = rng.choices("ABCDEFGHI", k=rng.randint(1, 30))
                yield " ".join(f"{p}{rng.choice('+-')}{rng.randint(0, 12)}" for p in pieces)
        case "rubiks_cube":
            yield metadata["example_correct_answer"]
            for _ in range(3):
                turns = rng.choices("RLUDFB", k=8)
                yield " ".join(turn + rng.choice(["", "2", "'", "11", "0"]) for turn in turns)
        case "simple_integration" | "intermediate_integration" if "Integral" not in answer:
            yield from (
                answer,
                answer.replace("C", "K"),
                answer.replace(" + C", ""),
                f"2*({answer})",
            )
            yield from (answer.replace("log", "ln"), answer.replace("**", "^"), answer + " + x")
            yield from (
                metadata["integrand"],
                answer.replace("+", "-", 1),
                answer.replace("2", "3", 1),
            )
        case "bitwise_arithmetic":
            yield from (str(int(answer, 16)), bin(int(answer, 16)), answer[2:])
            yield from perturbed(answer, rng)
        case "spell_backward":  # not a right word with more behind it: see its scorer
            yield from (answer, answer.upper(), answer[:-1], answer[::-1], "x" + answer)
        case _ if "Integral" not in answer:
            yield from perturbed(answer, rng)


@pytest.mark.parametrize(
    "share",
    [
        0.02,
        pytest.param(
            1.0, marks=pytest.mark.nightly(reason="the same with fifty times the answers")
        ),
    ],
)
@pytest.mark.parametrize("family", SEEDS)
def test_the_verdict_is_the_packages_on_honest_answers(family: str, share: float) -> None:
    native, binary = (create({family: {}}, scoring=kind) for kind in ("native", "binary"))
    right = 0
    for index in range(math.ceil(SEEDS[family] * share)):
        task = task_of(native, seed=task_seed("honest", index))
        dataset = native._dataset(family, task.ref.seed)  # type: ignore[attr-defined]
        for text in honest(family, task.payload, random.Random(index)):
            answer = text.strip()
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                try:
                    theirs = float(dataset.score_answer(answer, task.payload))
                except Exception:  # noqa: BLE001 - to us a wrong answer
                    theirs = 0.0
                assert native.score(task, text) == pytest.approx(theirs, abs=1e-9), (index, text)
                assert binary.score(task, text) == (theirs >= RIGHT), (index, text)
            right += theirs >= RIGHT
    assert right or family in ("rush_hour",)  # random moves hardly ever solve a board


@examples(400)
@given(st.lists(st.sampled_from(["<answer>", "</answer>", "<answer", ">", "a", "\n"]), max_size=12))
def test_the_last_answer_in_tags_is_what_the_expression_finds(parts: list[str]) -> None:
    text = "".join(parts)
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    assert last_tagged(text) == (found[-1] if found else None)
    assert final_answer(text).text == (found[-1] if found else text).strip()


@cache
def every_own() -> tuple[Environment, list[Task]]:
    environment = create({family: {} for family in scorers.OWN}, scoring="native")
    return environment, [task_of(environment, family, 5) for family in environment.families]


@examples(200)
@given(
    st.text(alphabet="0123456789+-*/(). ^%xCsin\N{NOT SIGN}\N{LOGICAL AND}AB[],'\"", max_size=40)
)
def test_any_text_gets_a_score(text: str) -> None:
    environment, tasks = every_own()
    for task in tasks:
        assert 0.0 <= environment.score(task, text) <= 1.0
