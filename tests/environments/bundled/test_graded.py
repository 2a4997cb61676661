"""Graded tasks: levels, right answers, and how the number of an answer is read."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from environments.tasks import task_of

from swarm_node.environments.answers.final import MAX_SCORED_CHARS
from swarm_node.environments.bundled.drills import create
from swarm_node.environments.bundled.graded import FAMILIES, GRADED
from swarm_node.environments.bundled.word_problems import value
from swarm_node.environments.presets import check_choice
from swarm_node.environments.splits.hashed_random import Draws
from swarm_node.errors import ConfigError

#: Families that have fewer than 10,000 questions, with their numbers.
SMALL = {
    "addition-1": 224,
    "addition-2": 8100,
    "subtraction-1": 160,
    "subtraction-2": 4095,
    "multiplication-1": 88,
    "multiplication-2": 720,
    "multiplication-3": 8100,
    "division-1": 112,
    "division-2": 720,
    "division-3": 8100,
}
PUBLISHED = {
    "addition-1": ("What is 9 + 8?", "17"),
    "addition-2": ("What is 49 + 70?", "119"),
    "addition-3": ("What is 189 + 587?", "776"),
    "addition-4": ("What is 57398 + 28717 + 21062?", "107177"),
    "subtraction-1": ("What is 20 - 7?", "13"),
    "subtraction-2": ("What is 99 - 90?", "9"),
    "subtraction-3": ("What is 630 - 471?", "159"),
    "subtraction-4": ("What is 97669 - 80860?", "16809"),
    "multiplication-1": ("What is 12 times 2?", "24"),
    "multiplication-2": ("What is 53 times 8?", "424"),
    "multiplication-3": ("What is 68 times 51?", "3468"),
    "multiplication-4": ("What is 575 times 710?", "408250"),
    "division-1": ("What is 42 divided by 7?", "6"),
    "division-2": ("What is 77 divided by 7?", "11"),
    "division-3": ("What is 6912 divided by 96?", "72"),
}


@pytest.mark.slow(reason="draws 4,000 tasks of each family")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_is_the_value_of_the_expression_and_no_constant_is_often_right(
    family: str,
) -> None:
    drawn = [FAMILIES[family](Draws(family, seed)) for seed in range(4000)]
    for question, answer, expression in drawn[:500]:
        assert int(answer) == value(expression, {}) >= 0
        assert question.endswith("?")
    assert Counter(each.answer for each in drawn).most_common(1)[0][1] <= 0.1 * 4000


@pytest.mark.slow(reason="draws 10,000 questions of each family")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_ten_thousand_questions_or_as_many_as_its_level_allows(family: str) -> None:
    if SMALL.get(family, 0) <= 1000:
        questions = Counter(FAMILIES[family](Draws(family, n)).question for n in range(10_000))
        assert len(questions) == SMALL.get(family, len(questions))
        assert family in SMALL or len(questions) > 7000
    else:
        drawn = {FAMILIES[family](Draws(family, n)).question for n in range(4000)}
        assert 4000 - len(drawn) == pytest.approx(8e6 / SMALL[family], rel=0.35)


def test_generators_draw_the_published_tasks() -> None:
    """A change here is a change of `graded.SCHEME`."""
    drawn = {family: tuple(make(Draws(family, 1)))[:2] for family, make in FAMILIES.items()}
    assert {f: each for f, each in drawn.items() if "word" not in f} == PUBLISHED


def test_levels_count_from_one_and_are_families_of_one_environment() -> None:
    families = create("graded").families
    assert set(families) == set(create("graded-reasoning").families) == set(FAMILIES)
    levels: dict[str, list[int]] = {}
    for family in families:
        name, level = re.fullmatch(r"(.+)-([1-9])", family).groups()  # type: ignore[union-attr]
        levels.setdefault(name, []).append(int(level))
    assert {name: sorted(each) for name, each in levels.items()} == {
        name: [*range(1, len(each) + 1)] for name, each in GRADED.items()
    }
    assert len(families) <= 20


RIGHT = (
    *("25", "25.", " 25\n", "17 + 8 = 25", "The answer is 25.", "25 apples", "$25", "25 dollars"),
    *("**25**", r"\boxed{25}", "$25$", "- 25", "25.00", "= 25", "x = 25", "25cm", "(25)", "25!"),
    *("a total of 25 apples", "<answer>25</answer>", "17 + 8 = 25\n17 + 8 = 25", "25, 25", "025"),
    *(
        "Total: 25",
        "A: 25",
        "Step 2: 25",
        "*25*",
        "25, not 24",
        "25 and not 24",
        "It is not 24: 25",
    ),
    *("1. 25 apples", "It is 17 plus 8, so 25 is right.", "+25", "#### 25", "24. No, 25"),
)
WRONG = (
    *(
        "",
        "|",
        "24",
        "-25",
        "24, 25",
        "24 or 25",
        "24 25",
        "1 2 3 25",
        "24,25",
        "23/24/25",
        "25, 26",
    ),
    *("25 dozen", "12 + 13", "25.5", "25/2", "50 / 2", "2^25", "25 + 0", "3:25", "17-25", "x25"),
    *("25 thousand", "25 - 3", r"\boxed{24, 25}", r"\boxed{24} \boxed{25}", "25 and 3 are 28"),
    *(
        "24, not 25",
        "24 and not 25",
        "17:25",
        "17 : 25",
        "25 * 2",
        "25*x",
        "25**2",
        "25\xb2",
        "not 25",
    ),
    *("twenty-five", "250", "1,25", "25,000", "²⁵", "The answer is 24. Or 25? The answer is 24."),
)


@pytest.mark.parametrize("preset", ["graded", "graded-reasoning"])
def test_the_last_number_of_an_answer_counts(preset: str) -> None:
    made = create(preset)
    task = task_of(made, "addition-1")
    task.payload["answer"] = "25"
    assert [text for text in RIGHT if made.score(task, text) != 1.0] == []
    assert [text for text in WRONG if made.score(task, text) != 0.0] == []


def test_large_numbers_may_have_commas_and_other_right_answers_are_read_as_well() -> None:
    made = create("graded")
    task = task_of(made, "addition-1")
    for right, texts in {
        "1234567": (
            *("1,234,567", "1234567", "about 9 x 9 = 1,234,567.", r"\boxed{1{,}234{,}567}"),
            *(r"1\,234\,567", "1\u202f234\u202f567", "1\xa0234\xa0567"),
        ),
        "0": ("0", "It is 0.", "00", "-0"),
    }.items():
        task.payload["answer"] = right
        assert [made.score(task, text) for text in texts] == [1.0] * len(texts)


def test_hostile_texts_of_the_longest_size_are_read() -> None:
    made = create("graded")
    task = task_of(made, "addition-1")
    for piece in ("1 ", "1,", ",", " ", "1", "1,111", "- ", "1or", "$", "\\boxed{", "<answer>"):
        text = piece * MAX_SCORED_CHARS
        assert made.score(task, text) == 0.0


def test_strict_takes_the_number_alone() -> None:
    made = create("graded", strict=True)
    task = task_of(made, "addition-1")
    answer = task.payload["answer"]
    assert made.score(task, answer) == made.score(task, f"<answer>{answer}</answer>") == 1.0
    assert made.score(task, f"It is {answer}") == 0.0


def test_the_form_of_the_right_answer_is_what_the_prompt_asks_for() -> None:
    for preset, form in (
        *(("short", "{}"), ("chat", "<answer>{}</answer>")),
        *(("graded", "{}"), ("graded-reasoning", r"\boxed{{{}}}")),
    ):
        made = create(preset)
        for family in made.families:
            task = task_of(made, family)
            written = made.reference_completion(task)  # type: ignore[attr-defined]
            assert written == form.format(task.payload["answer"])
            assert made.score(task, written) == 1.0
    assert create("graded").version != create("graded-reasoning").version


def test_a_family_of_the_preset_can_be_chosen_and_another_one_is_refused() -> None:
    check_choice("drills", {"preset": "graded"}, ["addition-1", "word-problems-5"])
    with pytest.raises(ConfigError, match=r"^environment\.families"):
        check_choice("drills", {"preset": "graded"}, ["addition-9"])
