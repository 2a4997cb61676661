"""Programs as answers: rows, what is run of an answer, and which programs are right."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import write_rows
from environments.tasks import needs_programs, ref_to, task_of
from hostile_programs import CHEATS, HOSTILE, examples_only, honest, sums
from lasting import started

from swarm_node.environments.base import Environment
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.programs.environment import (
    MAX_TESTS,
    STEPS,
    create,
    normalize_output,
    program_of,
)
from swarm_node.environments.registry import create_environment
from swarm_node.environments.scores import GroupScores
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import TaskRef


@pytest.fixture(scope="module")
def exams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("exams") / "sums.jsonl", sums(40))


@pytest.fixture(scope="module")
def environment(exams: Path) -> Environment:
    return create(str(exams))


def fenced(program: str) -> str:
    return f"I think so.\n```python\n{program}\n```\nThat is all."


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", "print(1)"),
        ("a\n```python\nprint(1)\n```\nb", "print(1)"),
        ("```\nfirst\n```\nthen\n```py\nsecond\n```", "second"),
        ("```\nfirst\n```\nthen\n```py\ncut off", "cut off"),
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)"),
        ("```python\nprint(1)\n```\n```Python\nprint(2)\n```\n```text\n2\n```", "print(2)"),
        ("its end\n```\nthen\n```python\nprint(1)\n```", "print(1)"),
        ("```sh\nls\n```\n```\nprint(1)\n```", "print(1)"),
        ("  ```\n  print(1)\n  ```", "  print(1)"),
        ("so <answer>print(1)</answer>.", "print(1)"),
        ("<answer>\n```\nprint(1)\n```\n</answer>", "print(1)"),
        ("x = '```'\nprint(x)", "x = '```'\nprint(x)"),
        ("", ""),
        ("```", ""),
        ("y" * 5000, "y" * 4096),
    ],
)
def test_what_is_run_of_an_answer(text: str, program: str) -> None:
    assert program_of(text) == program


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (b"1\n2\n", b"1\n2", True),
        (b"1 \t\r\n2\n\n \n", b"1\n2", True),
        (b" 1", b"1", False),
        (b"1  2", b"1 2", False),
        (b"1\n\n2", b"1\n2", False),
        (b"", b"\n", True),
        (b"a\x85b", b"a b", False),
    ],
)
def test_white_space_at_ends_is_not_compared(left: bytes, right: bytes, same: bool) -> None:
    assert (normalize_output(left) == normalize_output(right)) == same


@pytest.mark.slow(reason="runs programs")
@needs_programs
def test_only_an_honest_program_is_right(environment: Environment) -> None:
    task = task_of(environment)
    question = task.payload.question
    assert environment.render(task).startswith(question + "\n\n")
    right = honest(question)
    assert environment.score(task, fenced(right)) == 1.0
    assert environment.score(task, right) == 1.0
    assert environment.score(task, right + "\nprint()") == 1.0
    for wrong in (
        *("", "```\n```", "no program", examples_only(question), right + "\0"),
        right.replace("+", "-"),
        right + "\nprint('and more')",
        right + "\nraise SystemExit(1)",
        right.replace("print(", "import sys\nsys.stderr.write(str("),
        # Right for the first test only.
        f"a, b = map(int, input().split())\nprint({task.payload.tests[0][1].decode()!r}.strip())",
    ):
        assert environment.score(task, wrong) == 0.0, wrong


def judged(path: Path, texts: Mapping[str, Sequence[str]]) -> tuple[dict[str, GroupScores], int]:
    """Judgements of the node's own process, and the number of lost judges. `texts` have QUESTION
    for the right program."""

    async def play() -> tuple[dict[str, GroupScores], int]:
        host = ProcessEnvironmentHost("programs", {"path": str(path)})
        async with started(host) as info:
            ref = ref_to(info, seed=task_seed("judged"))
            (prompt,) = await host.render([ref])
            right = honest(prompt)
            return {
                name: await host.score(
                    ref, [text.replace("RIGHT", right) for text in group], "peers"
                )
                for name, group in texts.items()
            }, host.losses

    return asyncio.run(play())


@needs_programs
@pytest.mark.slow(reason="34 programs, of which many use up their steps")
def test_hostile_groups_end_no_confined_judge_and_change_no_verdict(exams: Path) -> None:
    programs = [fenced(program) for program in (*CHEATS.values(), *HOSTILE.values())]
    groups = {
        **{
            f"hostile {first}": [*programs[first : first + 7], "RIGHT"]
            for first in range(0, len(programs), 7)
        },
        "honest": ["RIGHT", fenced("RIGHT"), "wrong"],
    }
    verdicts, losses = judged(exams, groups)
    assert losses == 0
    for name, judgement in verdicts.items():
        wanted = (1.0, 1.0, 0.0) if name == "honest" else (*[0.0] * (len(groups[name]) - 1), 1.0)
        assert judgement.rewards == wanted, name
        assert (judgement.faults, judgement.exception, judgement.loss_reason) == (0, "", "")


@pytest.mark.slow(reason="starts four environments that check their rows")
@needs_programs
def test_the_version_covers_tests_and_limits(exams: Path, tmp_path: Path) -> None:
    rows = sums(40)
    rows[3]["outputs"][0] = "another\n"
    versions = [
        create(str(exams)).version,
        create(str(write_rows(tmp_path / "sums.jsonl", rows))).version,
        create(str(exams), steps=10**8).version,
        create(str(exams), template="{question}").version,
    ]
    assert len(set(versions)) == 4
    assert create(str(exams)).version == versions[0]
    with pytest.raises(UnknownTaskError, match="same files"):
        create(str(exams), steps=10**8).derive(TaskRef("programs", versions[0], "sums", 1))


@pytest.mark.slow(reason="runs programs")
@needs_programs
def test_steps_decide_and_nothing_else(exams: Path) -> None:
    slow = "for _ in range(200_000): pass\n"
    verdicts = []
    for steps in (10**6, 5 * 10**8):
        environment = create(str(exams), steps=steps)
        task = task_of(environment)
        verdicts.append(environment.score(task, slow + honest(task.payload.question)))
    assert verdicts == [0.0, 1.0]


@pytest.mark.slow(reason="starts three environments that check their rows")
@needs_programs
def test_more_steps_have_more_time_and_a_test_may_stand_twice(tmp_path: Path) -> None:
    row = {"question": "q", "inputs": ["1", "1"], "outputs": ["2", "2\n"]}
    path = str(write_rows(tmp_path / "sums.jsonl", [*sums(3), row]))
    seconds = [
        create_environment("programs", {"path": path, "steps": n * STEPS // 4}).score_seconds
        for n in (1, 4, 16)
    ]
    assert seconds == [60, 60, 240]


@needs_programs
def test_held_out_questions_are_split_by_text(exams: Path) -> None:
    environment = create_environment("programs", {"path": str(exams)})
    assert environment.refusal("sums") == ""
    assert environment.score_seconds == 60.0
    assert [re.findall(r"\d+", note) for note in environment.notes] == [["35", "5"]]


@needs_programs
def test_rows_that_a_constant_answers_are_told(tmp_path: Path) -> None:
    rows = sums(20)
    rows[0]["outputs"] = ["7", "7 ", "7\n"]
    (note,) = create(str(write_rows(tmp_path / "sums.jsonl", rows))).notes
    assert "in 1 rows" in note


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"inputs": ["1"], "outputs": ["1"]}, "'question' must be a text"),
        ({"question": "q", "outputs": ["1"]}, "'inputs' must be a list of texts"),
        ({"question": "q", "inputs": ["1"], "outputs": [1]}, "line 4: 'outputs' "),
        ({"question": "q", "inputs": ["1"], "outputs": []}, "as many 'outputs'"),
        ({"question": "q", "inputs": [], "outputs": []}, "give 1 to 10"),
        (
            {
                "question": "q",
                "inputs": ["1"] * (MAX_TESTS + 1),
                "outputs": ["1"] * (MAX_TESTS + 1),
            },
            "give 1 to 10",
        ),
        ({"question": "q", "inputs": ["\ud800"], "outputs": ["1"]}, "half a character"),
        ({"question": "\ud800", "inputs": ["1"], "outputs": ["1"]}, "'question' has half a"),
        ({"question": "q", "inputs": ["1", "1"], "outputs": ["2", "3"]}, "has two outputs"),
        ({"question": "q", "inputs": ["x" * 70_000], "outputs": ["1"]}, "64 KiB at most"),
        ([1], "a row must be a JSON object"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, row: Any, why: str) -> None:
    path = write_rows(tmp_path / "sums.jsonl", [*sums(3), row])
    with pytest.raises(ConfigError, match="line 4: ") as refused:
        create(str(path))
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"steps": 1}, "options.steps: a number from 1000000 to 2000000000"),
        ({"steps": True}, "options.steps"),
        ({"template": "no place"}, "options.template"),
        ({"template": 5}, "options.template"),
        ({"held_out": 1.0}, "options.held_out"),
        ({"held_out": "0.1"}, "options.held_out"),
        ({"path": 5}, "options.path: a file, or a list of files"),
        ({"path": [5]}, "options.path: a file, or a list of files"),
        ({"path": "none.jsonl"}, "cannot read none.jsonl"),
        ({"path": []}, "name at least one file"),
    ],
)
def test_a_bad_option_is_refused_by_name(exams: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create(**{"path": str(exams), **options})
    assert why in str(refused.value)
