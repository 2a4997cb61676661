"""Games of two turns, and what they are worth to a player that does not listen."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest
from environments.tasks import task_of

from swarm_node.environments.base import Task
from swarm_node.environments.bundled.games import corpus, create
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.split import is_held_out
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript, rerun
from swarm_node.errors import ConfigError

GAMES = create_environment("swarm_node.environments.bundled.games:create", {})


def task(family: str, index: int, environment: SplitEnvironment = GAMES) -> Task:
    return task_of(environment, family, task_seed("games", family, index))


def heard(one: Task, *said: str) -> tuple[list[str], float | None]:
    line = rerun(GAMES, one, Transcript(list(said)))
    return line.observations, None if line.verdict is None else line.verdict.reward


def test_guess_has_as_many_questions_as_a_family_should() -> None:
    drawn = {tuple(numbers(task("guess", index))) for index in range(4000)}
    assert all(10 <= low < middle < high < 100 for low, middle, high in drawn)
    # Of 117,480 triples with an eighth held out, 4,000 draws find about 3,923.
    assert 3880 < len(drawn) < 3970


def numbers(one: Task) -> list[int]:
    return list(map(int, re.findall(r"\d+", GAMES.render(one))))


def test_who_listens_finds_every_number_and_who_does_not_two_of_three() -> None:
    listening = deaf = 0.0
    for index in range(90):
        one = task("guess", index)
        low, middle, high = numbers(one)
        replies, reward = heard(one, str(middle))
        if reward is None:
            (reply,) = replies
            last = {"higher": high, "lower": low}[reply]
            assert heard(one, str(middle), f" {last}\n")[1] == 1.0
            deaf += heard(one, str(middle), str(low))[1] or 0.0
        else:
            deaf += reward
        listening += 1.0
    assert listening == 90
    assert deaf / 90 == pytest.approx(2 / 3, abs=0.15)


@pytest.mark.parametrize("text", ["", "?", "1 2", "-5", "1e3", "\u0663", "9" * 5000])
def test_what_is_no_number_ends_the_guessing(text: str) -> None:
    assert heard(task("guess", 0), text) == ([], 0.0)


def test_a_product_is_computed_for_who_asks_and_only_its_right_value_counts() -> None:
    one = task("calc", 0)
    left, right = numbers(one)[:2]
    product = str(left * right)
    assert heard(one, product) == ([], 1.0)
    assert heard(one, f"calc {left}*{right}") == ([product], None)
    assert heard(one, f"calc {left}*{right}", product) == ([product], 1.0)
    assert heard(one, "calc 2*3", "6") == (["6"], 0.0)
    assert heard(one, f"calc {left}*{right}", f"calc {left}*{right}") == ([product], 0.0)
    for text in ("calc", f"calc {left}**{right}", f"calc {left}*{right}+1", "calc " + "9" * 5000):
        assert heard(one, text) == ([], 0.0)
    largest = heard(one, "calc 999999999*999999999")[0]
    assert largest == [str(999_999_999**2)]


def letters(one: Task) -> str:
    first, second, third = re.findall(r"\b[a-z]\b", GAMES.render(one).partition(" is ")[0])
    return f"{first}{second}{third}"


def test_the_heavier_of_three_is_known_to_who_listens_and_else_one_time_of_three() -> None:
    deaf, answers, sunk = 0.0, Counter[str](), {"left is heavier": 0, "right is heavier": 1}
    for index in range(300):
        one = task("weigh", index)
        three = letters(one)
        assert len({*three}) == 3
        (reply,), reward = heard(one, f"{three[0]}:{three[1]}")
        assert reward is None
        answers[reply] += 1
        found = three[sunk.get(reply, 2)]
        assert heard(one, f"{three[0]}:{three[1]}", f" {found}\n") == ([reply], 1.0)
        assert heard(one, found) == ([], 1.0), "one try without a weighing"
        turned = {"left is heavier": "right is heavier", "right is heavier": "left is heavier"}
        assert heard(one, f"{three[1]}:{three[0]}")[0] == [turned.get(reply, reply)]
        deaf += heard(one, f"{three[0]}:{three[1]}", three[0])[1] or 0.0
    assert deaf / 300 == pytest.approx(1 / 3, abs=0.08)
    assert min(answers.values()) > 70, "each of the three is as likely"


def test_what_is_no_weighing_of_two_of_the_three_ends_the_game() -> None:
    one = task("weigh", 0)
    first, second, third = letters(one)
    other = next(letter for letter in "abcd" if letter not in letters(one))
    said = ["", other, f"{first}:{first}", f"{first}:{other}", f"{first}:{second}:{third}"]
    for text in (*said, f"{first} {second}", f"{first}:{second}!", "a:" + "b" * 5000):
        assert heard(one, text) == ([], 0.0)


@pytest.mark.parametrize("family", ["calc", "weigh"])
def test_what_a_question_tells_to_say_gets_a_reply(family: str) -> None:
    one = task(family, 0)
    told = re.search(r"Say (.+?) and I ", GAMES.render(one))
    replies, reward = heard(one, told[1])
    assert (len(replies), reward) == (1, None)


def test_weigh_has_as_many_questions_as_a_family_should() -> None:
    drawn = {letters(task("weigh", index)) for index in range(4000)}
    # Of 15,600 triples with an eighth held out, 4,000 draws find about 3,470.
    assert 3300 < len(drawn) < 3600


def test_the_ground_is_split_by_text_and_every_family_has_both_sides() -> None:
    for family in GAMES.families:
        assert GAMES.refusal(family) == ""
        held = {
            GAMES.render(task_of(GAMES, family, held_out_seed(family, index)))
            for index in range(100)
        }
        assert not held & {GAMES.render(task(family, index)) for index in range(400)}


def test_other_digits_are_another_version_with_larger_numbers() -> None:
    larger = create_environment("swarm_node.environments.bundled.games:create", {"digits": 5})
    assert larger.version != GAMES.version
    assert all(
        10**4 <= n < 10**5
        for n in map(int, re.findall(r"\d+", larger.render(task("calc", 1, larger))))
    )
    for wrong in (1, 10, "2"):
        with pytest.raises(ConfigError, match="digits"):
            create(wrong)  # type: ignore[arg-type]


def listens(texts: list[str]) -> bool:
    """Check that the last number is one that the replies of a guessing leave."""
    left = {*numbers_in(texts[0])}
    for said, reply in zip(texts[1::2], texts[2::2], strict=False):
        left = {n for n in left if (n > int(said) if reply == "higher" else n < int(said))}
    return int(texts[-1]) in left


def test_a_warm_start_has_no_held_out_question_and_its_author_listens() -> None:
    heard: list[bool] = []

    def right(words: str, wrong: str, answered: bool) -> str:
        heard.append(answered)
        return words

    lessons = list(islice(corpus(0, right), 600))
    assert not any(is_held_out(texts[0]) for _, texts in lessons)
    assert Counter(family for family, _ in lessons).keys() == set(GAMES.families)
    for family, texts in lessons:
        assert len(texts) in (2, 4)
        if family == "guess":
            assert listens(texts)
        elif family == "weigh":
            three = re.findall(r"\b[a-z]\b", texts[0].partition(" is ")[0])
            assert texts[1] == f"{three[0]}:{three[1]}"
            sunk = {"left is heavier": three[0], "right is heavier": three[1], "equal": three[2]}
            assert texts[3] == sunk[texts[2]]
        else:
            left, times = numbers_in(texts[0])[:2]
            assert texts[1:] == [f"calc {left}*{times}", *2 * [str(left * times)]]
    assert Counter(heard)[False] == sum(len(texts) == 4 for _, texts in lessons)
    assert list(islice(corpus(0, right), 20)) == lessons[:20]
    assert list(islice(corpus(1, right), 20)) != lessons[:20]


def test_the_other_words_of_a_warm_start_do_not_listen() -> None:
    lessons = list(islice(corpus(0, lambda right, wrong, heard: right if heard else wrong), 600))
    guessed = [texts for family, texts in lessons if family == "guess" and len(texts) == 4]
    assert 0.3 < sum(map(listens, guessed)) / len(guessed) < 0.7
    weighed = [texts for family, texts in lessons if family == "weigh" and len(texts) == 4]
    sunk = {"left is heavier": 0, "right is heavier": 2}
    known = [texts[1][sunk[texts[2]]] == texts[3] for texts in weighed if texts[2] in sunk]
    assert 0.15 < sum(known) / len(known) < 0.55
    products = [texts for family, texts in lessons if family == "calc"]
    assert sum(texts[-1] == texts[-2] for texts in products) < 0.05 * len(products)


def test_who_does_not_listen_asks_for_products_of_as_many_digits() -> None:
    lessons = islice(corpus(0, lambda right, wrong, heard: wrong), 3000)
    asked = [texts[1] for family, texts in lessons if family == "calc"]
    assert len(asked) > 500
    assert all(re.fullmatch(r"calc [1-9][0-9]\*[1-9][0-9]", said) for said in asked)


def numbers_in(text: str) -> list[int]:
    return list(map(int, re.findall(r"[0-9]+", text)))
