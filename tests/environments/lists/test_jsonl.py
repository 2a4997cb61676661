"""JSON Lines files as an environment, and how final answers are judged."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import write_rows
from environments.tasks import ref_to, task_of
from lasting import started

from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.lists.jsonl import create
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.split import is_held_out
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import HELD_OUT_SEED, SEED_LIMIT, TaskRef


def sums(count: int = 100) -> list[dict[str, str]]:
    """As GSM8K writes them."""
    return [
        {"question": f"{n} and {n}?", "answer": f"Twice {n} is <<2*{n}={2 * n}>>.\n#### {2 * n:,}"}
        for n in range(count)
    ]


def test_gsm8k_rows_become_tasks(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "gsm8k.jsonl", sums(2000))
    environment = create(str(path), scoring="math", template="Sum: {question} {braces}")
    assert environment.families == ("gsm8k",)
    task = task_of(environment, seed=task_seed("a"))
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


def test_a_question_is_trained_on_or_held_out_by_its_text_alone(tmp_path: Path) -> None:
    rows = [*sums(), *sums()]  # each question twice
    environment = create(str(write_rows(tmp_path / "sums.jsonl", rows)), held_out=0.2)

    def questions(seeds: Sequence[int]) -> set[str]:
        return {environment.render(task_of(environment, seed=seed)) for seed in seeds}

    training = questions([*range(1000), HELD_OUT_SEED - 1])
    held_out = questions([*range(HELD_OUT_SEED, HELD_OUT_SEED + 1000), SEED_LIMIT - 1])
    assert len(training | held_out) == 100
    assert all(is_held_out(question, 0.2) for question in held_out)
    assert not any(is_held_out(question, 0.2) for question in training)
    assert questions([held_out_seed("x", index) for index in range(50)]) <= held_out


def test_another_file_or_option_is_another_version(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sums.jsonl", sums())
    first = create(str(path))
    others = [
        create(str(path), scoring="math"),
        create(str(path), template="{question}!"),
        create(str(path), held_out=0.2),
        create([str(path), str(write_rows(tmp_path / "more.jsonl", sums(27)[20:]))]),
        create(str(write_rows(tmp_path / "sums.jsonl", [*sums(), sums()[0]]))),
    ]
    assert len({first.version, *(other.version for other in others)}) == 6
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert create(str(write_rows(elsewhere / "sums.jsonl", sums()))).version == first.version
    with pytest.raises(UnknownTaskError, match="same files"):
        others[0].derive(ref_to(first))
    for wrong in (TaskRef("jsonl", first.version, "x", 1), ref_to(first, seed=SEED_LIMIT)):
        with pytest.raises(UnknownTaskError):
            first.derive(wrong)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"question": "a"}], {}, "line 1: no answer: the row has question."),
        ([{"text": {"q": "a"}, "id": 1}], {}, "the row has text.q, id. Name the right one with"),
        ([{"question": "a"}], {"answer": "gold"}, "line 1: no field 'gold': the row has question"),
        ([{"question": "a"}], {"answer": 3}, "environment.options.answer"),
        ([{"question": 3, "answer": "a"}], {}, "'question' must be a text"),
        ([{"question": "a", "answer": None}], {}, "line 1: 'answer' is null"),
        ([{"question": "a", "answer": ["1", "2"]}], {}, "line 1: 'answer' must be"),
        ([{"question": "a", "answer": "#### "}], {}, "is empty"),
        ([3], {}, "must be a JSON object"),
        (sums(1), {}, "two different questions"),
        ([], {}, "empty"),
        ([{"question": "a" * 70_000, "answer": "a"}], {}, "64 KiB"),
        (sums(), {"scoring": "fuzzy"}, "none of exact, math, choice"),
        (sums(), {"scoring": "choice"}, "no choices: the row has question, answer"),
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
        create(str(write_rows(tmp_path / "rows.jsonl", rows)), **options)
    assert message in str(caught.value)


@pytest.mark.slow(reason="reads large files")
def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        create(str(tmp_path / "none.jsonl"))
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"question": ' + "[" * 60_000)
    with pytest.raises(ConfigError, match="line 1"):
        create(str(deep))
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"question": "a", "answer": "1"}\n{"question": "é"}'.encode("latin-1"))
    with pytest.raises(ConfigError, match="line 2: byte 15 is not UTF-8"):
        create(str(latin))
    huge = tmp_path / "huge.jsonl"
    with huge.open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(ConfigError, match="256 MiB"):
        create(str(huge))


def test_a_file_is_the_same_tasks_packed_or_with_a_mark_of_utf_8(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sums.jsonl", sums())
    first, data = create(str(path)), path.read_bytes()
    (tmp_path / "packed").mkdir()
    for name, form in (
        ("packed/sums.jsonl.gz", gzip.compress(data)),
        ("packed/sums.jsonl", gzip.compress(b"\xef\xbb\xbf" + data)),
        ("sums.jsonl", b"\xef\xbb\xbf" + data),
    ):
        (tmp_path / name).write_bytes(form)
        again = create(str(tmp_path / name))
        assert (again.version, again.families) == (first.version, first.families)


def test_a_file_that_unpacks_without_end_is_refused_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm_node.environments.lists.rows.MAX_FILE_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * (1 << 24), 9))
    with pytest.raises(ConfigError, match="larger than 1 MiB once unpacked"):
        create(str(bomb))


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "null", "1e9999", "9" * 1001])
def test_what_is_no_number_is_refused_by_its_line(tmp_path: Path, literal: str) -> None:
    path = write_rows(
        tmp_path / "rows.jsonl", [{"question": f"q{n}", "answer": n} for n in range(5)]
    )
    path.write_text(path.read_text() + f'{{"question": "q5", "answer": {literal}}}\n')
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 6: "):
        create(str(path))


def test_a_number_is_right_however_it_is_written(tmp_path: Path) -> None:
    numbers = {"1e+22": ("1e22", "10000000000000000000000"), "18.0": ("18", "18.0", "1.8e1")}
    for literal, texts in numbers.items():
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f'{{"question": "q{n}", "answer": {literal}}}\n' for n in range(9)))
        for scoring in ("exact", "math"):
            environment = create(str(path), scoring=scoring)
            task = task_of(environment, seed=1)
            right = texts[1] if literal == "1e+22" else texts[0]
            assert task.payload.answer == right
            for text in texts:
                assert environment.score(task, f"<answer>{text}</answer>") == 1.0, (scoring, text)
            assert environment.score(task, "<answer>17</answer>") == 0.0


def test_rows_of_public_sets_are_tasks_as_they_are(tmp_path: Path) -> None:
    maths = [
        {"problem": f"p{n}", "solution": f"So it is $\\boxed{{{n}}}$.", "level": "Level 1"}
        for n in range(20)
    ]
    environment = create(str(write_rows(tmp_path / "maths.jsonl", maths)))
    for seed in range(5):
        task = task_of(environment, seed=seed)
        assert environment.score(task, environment.render(task)[1:]) == 1.0
    questions = [
        {"question": {"stem": f"q{n}", "choices": [{"label": "A", "text": "x"}, {"label": "B",
         "text": "y"}]}, "answerKey": "B"}
        for n in range(20)
    ]  # fmt: skip
    path = str(write_rows(tmp_path / "common.jsonl", questions))
    environment = create(path, scoring="choice")
    task = task_of(environment, seed=1)
    assert environment.render(task).endswith("\nA. x\nB. y")
    assert environment.score(task, "B") == 1.0
    with pytest.raises(ConfigError, match="scoring=choice"):
        create(path)
    by_text = [{**row, "answerKey": "y"} for row in questions]
    (warning,) = create(str(write_rows(tmp_path / "text.jsonl", by_text))).warnings
    assert "20 rows have choices" in warning
    named = create(path, scoring="choice", question="question.stem", choices="question.choices")
    assert named.version != environment.version


def test_one_question_with_two_right_answers_is_warned_of(tmp_path: Path) -> None:
    rows = [{"question": f"q{n % 10}", "answer": f"{n % 10}"} for n in range(20)]
    path = tmp_path / "twice.jsonl"
    assert create(str(write_rows(path, rows))).warnings == ()
    rows[13]["answer"], rows[14]["answer"] = "7", "4.0"
    (warning,) = create(str(write_rows(path, rows))).warnings
    assert "1 rows" in warning
    assert "line 14:" in warning


def test_a_key_that_stands_twice_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "q", "answer": 1}\n{"question": "r", "answer": 1, "answer": 2}')
    with pytest.raises(ConfigError, match=r"line 2: .*'answer'"):
        create(str(path))


def test_names_of_families_are_plain_and_different(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [
        write_rows(tmp_path / name, sums()) for name in ("é.jsonl", "a.jsonl", "other/a.jsonl")
    ]
    with pytest.raises(ConfigError, match="rename the file: letters"):
        create(str(files[0]))
    with pytest.raises(ConfigError, match="same name, 'a'"):
        create([str(file) for file in files[1:]])


def test_choices_are_shown_and_judged_by_letter(tmp_path: Path) -> None:
    rows = [
        {"question": f"Capital {n}?", "choices": ["Rome", f"Paris {n}", "Oslo"], "answer": answer}
        for n, answer in enumerate(["B", 1, "Paris 2", 1, 1, 1])
    ]
    environment = create(str(write_rows(tmp_path / "capitals.jsonl", rows)), scoring="choice")
    for seed in range(6):
        task = task_of(environment, seed=seed)
        name = task.payload.choices[1]
        assert environment.render(task).endswith(f"?\nA. Rome\nB. {name}\nC. Oslo")
        for text in ("B", "(b)", "B.", f"B. {name}", f"Answer: B) {name}", name, "The answer is B"):
            assert environment.score(task, text) == 1.0, text
        for text in ("A", "", "AB", "B or A", "Because", "Rome", "D", "A. Rome, not B"):
            assert environment.score(task, text) == 0.0, text


def test_strictly_words_around_the_answer_make_it_wrong(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(20)]
    file = write_rows(tmp_path / "sums.jsonl", rows)
    lenient, strict = create(str(file)), create(str(file), strict=True)
    assert lenient.version != strict.version
    for environment, reward in ((lenient, 1.0), (strict, 0.0)):
        task = task_of(environment)
        right = task.payload.answer
        for text in (f"zq <answer>{right}</answer>", f"zq #### {right}"):
            assert environment.score(task, text) == reward
        assert environment.score(task, right) == 1.0
        assert environment.score(task, f"<answer>{right}</answer>") == 1.0


@pytest.mark.slow(reason="a limit is waited out")
async def test_in_its_process_an_endless_computation_ends(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "sums.jsonl", [{"question": each, "answer": "7"} for each in "ab"])
    options = {"path": str(path), "scoring": "math"}
    host = ProcessEnvironmentHost("swarm_node.environments.lists.jsonl:create", options)
    async with started(host) as info:
        judged = await host.score(ref_to(info), ["7", "9**9**9**9", "\\boxed{7}"])
        assert judged.rewards == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("scoring", ["exact", "math"])
def test_the_same_words_are_right_whatever_they_are(tmp_path: Path, scoring: str) -> None:
    right = "The answer is \\boxed{7}.\n#### 8, or so"
    rows = [{"question": each, "answer": f"{each} {right}"} for each in "abcdefgh"]
    environment = create(str(write_rows(tmp_path / "rows.jsonl", rows)), scoring=scoring)
    task = task_of(environment, seed=1)
    for form in ("{}", "<answer>{}</answer>", "so <ANSWER> {}</ANSWER>"):
        assert environment.score(task, form.format(task.payload.answer)) == 1.0
