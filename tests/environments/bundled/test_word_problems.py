"""Word problems: numbers, language and variety of every template."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from swarm_node.environments.bundled.word_problems import (
    LEVELS,
    Template,
    fill_template,
    value,
    word_problem,
)
from swarm_node.environments.splits.hashed_random import Draws, Exercise

TEMPLATES = [template for level in LEVELS for template in level]
#: Numbers of an expression that a text says in words: twice, the days of a working week, cents of a
#: dollar, all but the last.
_IN_WORDS = {1, 2, 5, 100}


def problems(template: Template, count: int = 300) -> Iterator[Exercise]:
    return (fill_template(Draws("test", seed), template) for seed in range(count))


def numbers_in(text: str) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r"\d{1,3}(?:,\d{3})+|\d+", text)]


def results(node: ast.expr) -> Iterator[float]:
    """The value of every part of an expression, with Python's own arithmetic."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp | ast.Constant):
            yield eval(compile(ast.Expression(part), "expression", "eval"))


@pytest.mark.slow(reason="draws many problems of each template")
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_numbers_of_a_text_give_its_answer_and_no_nonsense_on_the_way(
    template: Template,
) -> None:
    for question, answer, expression in problems(template):
        tree = ast.parse(expression, mode="eval").body
        steps = list(results(tree))
        assert steps[0] == int(answer)
        assert all(step == int(step) >= 1 for step in steps), (question, expression)
        said = Counter(numbers_in(question))
        used = Counter(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
        assert {number for number in used if number not in said} <= _IN_WORDS
        assert said.keys() <= used.keys(), question  # no number is there for nothing
        assert min(said) >= 2  # so that every plural is right


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_text_is_whole_sentences_that_end_in_one_question(template: Template) -> None:
    for question, _, _ in problems(template, 60):
        assert "{" not in question
        assert question.endswith("?")
        assert question.count("?") == 1
        assert not re.search(r"  |\ba [aeiou]|,[^ \d]| [,.?]", question), question
        for sentence in re.split(r"(?<=[.?]) ", question):
            assert re.match(r"[A-Z0-9]", sentence), question


def test_a_person_is_one_person_and_has_the_same_pronoun_everywhere() -> None:
    pronouns: dict[str, set[str]] = {}
    for template in TEMPLATES:
        for question, _, _ in problems(template, 200):
            words = {*re.findall(r"\w+", question.casefold())}
            found = [kind for kind in (("she", "her"), ("he", "him", "his")) if words & {*kind}]
            assert len(found) < 2, question
            if template.text.startswith("{name} ") and found:
                pronouns.setdefault(question.split()[0], set()).add(found[0][0])
    assert len(pronouns) >= 60
    assert all(len(kinds) == 1 for kinds in pronouns.values())


def test_a_level_has_more_steps_than_the_one_before() -> None:
    steps = [
        [
            sum(isinstance(part, ast.BinOp) for part in ast.walk(ast.parse(each.answer)))
            for each in level
        ]
        for level in LEVELS
    ]
    assert [min(each) for each in steps] == [1, 2, 3, 4, 5]
    averages = [sum(each) / len(each) for each in steps]
    assert averages == sorted(averages)


@pytest.mark.slow(reason="draws 8,000 texts of each level")
@pytest.mark.parametrize("level", range(1, len(LEVELS) + 1))
def test_a_level_has_far_more_than_a_hundred_thousand_texts(level: int) -> None:
    """n equally likely texts would repeat about 3.2e7 / n times in 8,000 draws; unlike ones repeat
    more often, so there are more of them than that."""
    drawn = [word_problem(Draws(f"word-problems-{level}", seed), level) for seed in range(8000)]
    repeated = 8000 - len({each.question for each in drawn})
    assert 8000 * 7999 / 2 / max(repeated, 1) >= 300_000
    assert Counter(each.answer for each in drawn).most_common(1)[0][1] <= 0.1 * 8000


def test_draws_make_the_published_problems() -> None:
    """A change here is a change of `graded.SCHEME`."""
    made = [word_problem(Draws(f"word-problems-{level}", 1), level) for level in range(1, 6)]
    assert [tuple(each) for each in made] == PUBLISHED


def test_only_integers_names_and_exact_arithmetic_have_a_value() -> None:
    assert value("(a + 2) * b - 9 // 2 - 8 / 4", {"a": 1, "b": 5}) == 9
    for wrong in ("7 / 2", "2 ** 9", "-1", "f(1)", "a if a else b", "'a'"):
        with pytest.raises(ValueError, match="no integer value"):
            value(wrong, {"a": 1, "b": 2})


PUBLISHED = [
    (
        "13 starlings are sitting in a tree in Raj's garden, and 5 more fly in. How many "
        "starlings are in the tree now?",
        "18",
        "13 + 5",
    ),
    (
        "Felix takes a train that has 7 cars with 10 seats each. Today 60 seats are taken. "
        "How many seats are free?",
        "10",
        "7 * 10 - 60",
    ),
    (
        "Hana has 6 boxes with 9 seashells in each. She gives 30 seashells to Rosa and shares "
        "the rest equally among 2 cousins. How many seashells does each cousin get?",
        "12",
        "(6 * 9 - 30) / 2",
    ),
    (
        "Fatima plans a trip for 4 classes of 18 pupils each. 3 pupils are ill and stay at "
        "home, and 11 adults come along. They fill a number of buses with 10 seats each to "
        "the last seat. How many buses do they fill?",
        "8",
        "(4 * 18 - 3 + 11) / 10",
    ),
    (
        "Sofia pays 22 dollars a month for her phone, with 111 free minutes. Every further "
        "minute costs 8 cents. In May she talks for 133 minutes, and in June for 124 minutes. "
        "How many cents do these two months cost her?",
        "4680",
        "2 * 22 * 100 + (133 - 111 + 124 - 111) * 8",
    ),
]
