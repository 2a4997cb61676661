"""Drills: every exercise is answered as its question says, and the same everywhere."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest
from builders import printed_by
from environments.tasks import ref_to, task_of

from swarm_node.environments.bundled.drills import (
    FAMILIES,
    GRADED,
    MAX_LENGTH,
    PRESETS,
    corpus,
    create,
)
from swarm_node.environments.bundled.graded import FAMILIES as LEVELS
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.hashed_random import Draws
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.split import is_held_out
from swarm_node.errors import ConfigError, UnknownTaskError

PUBLISHED = {
    "addition": ("What is 1802 + 674?", "2476"),
    "difference": ("How far apart are 627 and 1249?", "622"),
    "largest": ("Which is the largest: 614, 197, 516?", "614"),
    "sorting": ("Sort the digits of 827 from low to high.", "278"),
    "digit_sums": ("Add 504 and 039 digit by digit without carrying.", "533"),
    "reversal": ("Spell byw backward.", "wyb"),
    "successors": ("Replace each letter of qod by the next one.", "rpe"),
    "initials": ("Give the first letters of ybn jpx zgd.", "yjz"),
    "position": ("Which letter is number 3 of sqo?", "o"),
    "alphabet": ("Put the letters of tpt in alphabetical order.", "ptt"),
    "removal": ("Leave out every g of ngh.", "nh"),
    "progression": ("What comes next: 121, 139, 157?", "175"),
    "doubling": ("Write each letter of ysk twice.", "yysskk"),
}


def solve(family: str, question: str) -> str:  # noqa: C901 - one case for each family
    """The answer that a reader of the question gives, without the generator's code."""
    question, _, ending = question.partition(" End with ")
    if ending:
        mark = {"a full stop.": ".", "an exclamation mark.": "!"}[ending]
        return solve(family, question) + mark
    words = question.rstrip("?.").replace(",", "").split()
    numbers = [int(word) for word in words if word.isdigit()]
    match family:
        case "addition":
            return str(sum(numbers))
        case "difference":
            return str(max(numbers) - min(numbers))
        case "largest":
            return str(max(numbers))
        case "sorting":
            return "".join(sorted(words[4]))
        case "digit_sums":
            return "".join(
                str(int(a) + int(b))[-1] for a, b in zip(words[1], words[3], strict=True)
            )
        case "reversal":
            return "".join(reversed(words[1]))
        case "successors":
            return "".join(chr((ord(c) - 96) % 26 + 97) for c in words[4])
        case "initials":
            return "".join(word[0] for word in words[5:])
        case "position":
            return words[6][int(words[4]) - 1]
        case "alphabet":
            return "".join(sorted(words[4]))
        case "removal":
            return "".join(c for c in words[5] if c != words[3])
        case "doubling":
            return "".join(c + c for c in words[4])
        case "progression":
            return str(numbers[-1] + numbers[1] - numbers[0])
    raise AssertionError(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reader_of_the_question_gives_the_same_answer(family: str) -> None:
    environment = create(families={family: (3, MAX_LENGTH)})
    for index in range(200):
        task = task_of(environment, family, task_seed("read", index))
        answer = solve(family, environment.render(task))
        assert environment.score(task, answer) == 1.0
        assert environment.score(task, f" {answer}\n") == 1.0
        assert environment.score(task, f"<answer>{answer}</answer>") == 1.0
        for wrong in (f"{answer}.", f"= {answer}", f"{answer} ok", answer + answer[-1], ""):
            assert environment.score(task, wrong) == 0.0


@pytest.mark.parametrize("family", PRESETS["short"])
def test_an_answer_without_its_ending_is_wrong(family: str) -> None:
    environment = create()
    task = task_of(environment, family, 11)
    right = solve(family, environment.render(task))
    assert environment.score(task, right) == 1.0
    plain = right.rstrip(".!")
    wrong = [plain + mark for mark in ("", ".", "!", ";") if plain + mark != right]
    assert [environment.score(task, text) for text in wrong] == [0.0] * 3


def test_generators_draw_the_published_exercises() -> None:
    """The first exercises of each family; a change here is a change of SCHEME."""
    drawn = {f: tuple(make(Draws(f, 1), 3))[:2] for f, make in FAMILIES.items()}
    assert drawn == PUBLISHED


def test_another_process_with_another_hash_seed_derives_the_same() -> None:
    code = (
        "import json\n"
        "from swarm_node.environments.splits.hashed_random import Draws\n"
        "from swarm_node.environments.bundled.drills import FAMILIES\n"
        "from swarm_node.environments.bundled.graded import FAMILIES as levels\n"
        "print(json.dumps([*[m(Draws(f, s * 10**16), 5) for f, m in FAMILIES.items()"
        " for s in range(40)], *[m(Draws(f, 7)) for f, m in levels.items()]]))"
    )
    told = {printed_by(code, PYTHONHASHSEED=hash_seed) for hash_seed in ("1", "2")}
    here = [list(m(Draws(f, s * 10**16), 5)) for f, m in FAMILIES.items() for s in range(40)]
    here += [list(m(Draws(f, 7))) for f, m in LEVELS.items()]
    assert [json.loads(each) for each in told] == [here]


@pytest.mark.slow(reason="draws 4,000 tasks of each family")
@pytest.mark.parametrize(
    ("preset", "family"),
    [(name, family) for name in PRESETS if name not in GRADED for family in PRESETS[name]],
)
def test_a_family_of_a_preset_has_many_questions_and_no_constant_answers_it(
    preset: str, family: str
) -> None:
    """Of n equally likely questions 4,000 draws repeat about 8e6 / n; so many as here are over
    10,000, with unequal ones among them."""
    environment = create(preset)
    tasks = [task_of(environment, family, index) for index in range(4000)]
    repeated = 4000 - len({environment.render(task) for task in tasks})
    assert 4000 * 3999 / 2 / max(repeated, 1) >= 10_000
    answers = Counter(str(task.payload["answer"]) for task in tasks)
    assert answers.most_common(1)[0][1] <= 0.1 * 4000


def test_the_corpus_holds_every_family_and_no_held_out_text() -> None:
    items = list(islice(corpus("short", 3), 4000))
    assert Counter(family for family, _, _ in items).keys() == PRESETS["short"].keys()
    assert not any(is_held_out(question) for _, question, _ in items)
    assert all(solve(family, question) == answer for family, question, answer in items)
    assert (
        items[:50] == list(islice(corpus("short", 3), 50)) != list(islice(corpus("short", 4), 50))
    )


def test_a_draw_covers_its_range_and_nothing_else() -> None:
    seen = Counter(Draws("x", seed).within(3, 7) for seed in range(5000))
    assert seen.keys() == {3, 4, 5, 6, 7}
    assert max(seen.values()) < 1.2 * min(seen.values())


def test_references_of_others_are_refused() -> None:
    short, long = create(), create("long")
    for ref in (
        ref_to(long, "addition", 1),
        ref_to(short, "digit_sums", 1),
        ref_to(short, "addition", -1),
    ):
        with pytest.raises(UnknownTaskError):
            short.derive(ref)


def test_a_chat_preset_asks_for_an_answer_in_tags_and_finds_it() -> None:
    chat = create("chat")
    task = task_of(chat, "reversal", 5)
    assert chat.render(task).endswith("<answer></answer>.")
    answer = task.payload["answer"]
    assert chat.score(task, f"Let me see. <answer>{answer}</answer>") == 1.0
    assert create("chat", instruction="Go.").version != chat.version


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "tall"},
        {"families": {}},
        {"families": []},
        {"families": {"chess": [2, 3]}},
        {"families": {"addition": [0, 3]}},
        {"families": {"addition": [3, 2]}},
        {"families": {"addition": [2, MAX_LENGTH + 1]}},
        {"families": {"addition": [2]}},
        {"families": {"addition": 3}},
        {"families": {"addition": [True, 3]}},
        {"families": {"addition": ["2", "3"]}},
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"environment\.options\."):
        create_environment("drills", options)


def test_the_shipped_model_begins_with_the_shipped_families() -> None:
    """Its tokenizer has a token for the fixed part of each question."""
    from swarm_node.policy.models.model import TINY, resolve
    from swarm_node.policy.models.text.codec import Codec

    codec = Codec.from_directory(resolve(TINY))
    for _, question, _ in islice(corpus("short", 0), 90):
        assert len(codec.encode_prompt(question)) <= 20
