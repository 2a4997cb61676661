"""JSON Lines files as an environment, and how final answers are judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lasting import started

from swarm_node.config import load_settings, parse_assignments
from swarm_node.environments.base import Environment
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.jsonl import create
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import HELD_OUT_SEED, SEED_LIMIT, TaskRef


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums(count: int = 100) -> list[dict[str, str]]:
    """As GSM8K writes them."""
    return [
        {"question": f"{n} and {n}?", "answer": f"Twice {n} is <<2*{n}={2 * n}>>.\n#### {2 * n:,}"}
        for n in range(count)
    ]


def ref_to(environment: Environment, seed: int) -> TaskRef:
    return TaskRef(environment.name, environment.version, environment.families[0], seed)


def test_gsm8k_rows_become_tasks(tmp_path: Path) -> None:
    path = write(tmp_path / "gsm8k.jsonl", sums(2000))
    environment = create(str(path), scoring="math", template="Sum: {question} {braces}")
    assert environment.families == ("gsm8k",)
    task = environment.derive(ref_to(environment, task_seed("a")))
    number = int(task.payload.question.split()[0])
    assert environment.render(task) == f"Sum: {number} and {number}? {{braces}}"
    right = str(2 * number)
    for text in (
        right,
        f"It is \\boxed{{{right}}}",
        f"so <answer> {right}.0 </answer>",
        f"#### {right}",
    ):
        assert environment.score(task, text) == 1.0, text
    for text in ("", f"{2 * number + 1}", f"{right} or else 3", "<answer></answer>"):
        assert environment.score(task, text) == 0.0, text


def test_no_held_out_question_is_ever_trained_on(tmp_path: Path) -> None:
    rows = [*sums(), *sums()]  # each question twice
    environment = create(str(write(tmp_path / "sums.jsonl", rows)), held_out=0.2)

    def questions(seeds: Sequence[int]) -> set[str]:
        return {environment.render(environment.derive(ref_to(environment, seed))) for seed in seeds}

    training = questions([*range(1000), HELD_OUT_SEED - 1])
    held_out = questions([*range(HELD_OUT_SEED, HELD_OUT_SEED + 1000), SEED_LIMIT - 1])
    assert not training & held_out
    assert len(training | held_out) == 100
    assert 10 <= len(held_out) <= 30
    assert questions([held_out_seed("x", index) for index in range(50)]) <= held_out


def test_a_question_keeps_its_side_when_the_file_grows(tmp_path: Path) -> None:
    sides = []
    for count in (100, 200):
        path = write(tmp_path / "sums.jsonl", sums(count))
        environment = create(str(path))
        sides.append(
            {
                environment.render(environment.derive(ref_to(environment, HELD_OUT_SEED + seed)))
                for seed in range(500)
            }
        )
    assert sides[0] <= sides[1]


def test_another_file_or_option_is_another_version(tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", sums())
    first = create(str(path))
    others = [
        create(str(path), scoring="math"),
        create(str(path), template="{question}!"),
        create(str(path), held_out=0.2),
        create([str(path), str(write(tmp_path / "more.jsonl", sums(27)[20:]))]),
        create(str(write(tmp_path / "sums.jsonl", [*sums(), sums()[0]]))),
    ]
    assert len({first.version, *(other.version for other in others)}) == 6
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert create(str(write(elsewhere / "sums.jsonl", sums()))).version == first.version
    with pytest.raises(UnknownTaskError, match="same files"):
        others[0].derive(ref_to(first, 1))
    for wrong in (TaskRef("jsonl", first.version, "x", 1), ref_to(first, SEED_LIMIT)):
        with pytest.raises(UnknownTaskError):
            first.derive(wrong)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"question": "a"}], {}, "line 1: no field 'answer'"),
        ([{"question": 3, "answer": "a"}], {}, "'question' must be a text"),
        ([{"question": "a", "answer": None}], {}, "'answer' must be"),
        ([{"question": "a", "answer": "#### "}], {}, "is empty"),
        ([3], {}, "must be a JSON object"),
        (sums(1), {}, "two different questions"),
        ([], {}, "two different questions"),
        ([{"question": "a" * 70_000, "answer": "a"}], {}, "64 KiB"),
        (sums(), {"scoring": "fuzzy"}, "none of exact, math, choice"),
        (sums(), {"scoring": "choice"}, "'choices' must be a list"),
        (sums(), {"template": "Answer!"}, "{question} once"),
        (sums(), {"template": 5}, "{question} once"),
        (sums(), {"held_out": 1.0}, "a share"),
        (sums(), {"held_out": "0.1"}, "a share"),
        ([{"question": "\ud800", "answer": "a"}], {}, "line 1: 'question' has half a character"),
        ([{"question": "q", "answer": "\ud800"}], {}, "line 1: 'answer' has half a character"),
        (
            [{"question": "q", "answer": "A", "choices": ["\ud800", "b"]}],
            {"scoring": "choice"},
            "line 1: 'choices' has half a character",
        ),
        (
            [{"question": "a", "answer": "C", "choices": ["x", "y"]}],
            {"scoring": "choice"},
            "no letter",
        ),
    ],
    ids=str,
)
def test_what_is_malformed_is_refused_by_line_and_option(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=r"environment\.options\.") as caught:
        create(str(write(tmp_path / "rows.jsonl", rows)), **options)
    assert message in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        create(str(tmp_path / "none.jsonl"))
    deep = tmp_path / "deep.jsonl"
    deep.write_text("[" * 60_000)
    with pytest.raises(ConfigError, match="line 1"):
        create(str(deep))
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match="line 1"):
        create(str(binary))
    huge = tmp_path / "huge.jsonl"
    with huge.open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(ConfigError, match="256 MiB"):
        create(str(huge))


def test_choices_are_shown_and_judged_by_letter(tmp_path: Path) -> None:
    rows = [
        {"question": f"Capital {n}?", "choices": ["Rome", f"Paris {n}", "Oslo"], "answer": answer}
        for n, answer in enumerate(["B", 1, "Paris 2", 1, 1, 1])
    ]
    environment = create(str(write(tmp_path / "capitals.jsonl", rows)), scoring="choice")
    for seed in range(6):
        task = environment.derive(ref_to(environment, seed))
        name = task.payload.choices[1]
        assert environment.render(task).endswith(f"?\nA. Rome\nB. {name}\nC. Oslo")
        for text in ("B", "(b)", "B.", f"B. {name}", f"Answer: B) {name}", name, "The answer is B"):
            assert environment.score(task, text) == 1.0, text
        for text in ("A", "", "AB", "B or A", "Because", "Rome", "D", "A. Rome, not B"):
            assert environment.score(task, text) == 0.0, text


def test_strictly_words_around_the_answer_make_it_wrong(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lenient, strict = create(str(file)), create(str(file), strict=True)
    assert lenient.version != strict.version
    for environment, reward in ((lenient, 1.0), (strict, 0.0)):
        task = environment.derive(TaskRef("jsonl", environment.version, "sums", 3))
        right = task.payload.answer
        for text in (f"zq <answer>{right}</answer>", f"zq #### {right}"):
            assert environment.score(task, text) == reward
        assert environment.score(task, right) == 1.0
        assert environment.score(task, f"<answer>{right}</answer>") == 1.0


@pytest.mark.slow(reason="a limit is waited out")
async def test_in_its_process_an_endless_computation_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", [{"question": each, "answer": "7"} for each in "ab"])
    options = {"path": str(path), "scoring": "math"}
    host = ProcessEnvironmentHost("swarm_node.environments.jsonl:create", options)
    async with started(host) as info:
        ref = TaskRef(info.name, info.version, "sums", 1)
        judged = await host.judge(ref, ["7", "9**9**9**9", "\\boxed{7}"])
        assert judged.rewards == (1.0, 0.0, 1.0)


def test_options_can_be_set_one_by_one() -> None:
    parsed = parse_assignments(
        [
            "environment.name=jsonl",
            "environment.options.path=a.jsonl",
            "environment.options.held_out=0.2",
        ]
    )
    loaded = load_settings(parsed, environ={})
    assert loaded.environment.options == {"path": "a.jsonl", "held_out": 0.2}
    with pytest.raises(ConfigError, match=r"experience\.own\.more"):
        load_settings({"experience.own.more": 1}, environ={})
