"""Two tries at a program: what is told of a failed public test, and what decides the reward."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import write_rows
from environments.tasks import needs_programs, ref_to, task_of
from hostile_programs import CHEATS, HOSTILE, examples_only, honest, sums
from hypothesis import given
from hypothesis import strategies as st
from lasting import started

from swarm_node.environments.base import MAX_OBSERVATION_CHARS, Task
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.programs.environment import Failure, create, describe_failure
from swarm_node.environments.programs.runtime import Outcome
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import RerunLine, Transcript, rerun
from swarm_node.errors import ConfigError

AGAIN = "Write the whole program again."
#: No program can come upon these by itself.
SECRET_IN, SECRET_OUT = "kqz-7-asked\n", "wvj-9-answered\n"


def two_turns(count: int) -> list[dict[str, Any]]:
    """Rows whose public tests are the example of the question, and a second one."""
    rows = sums(count)
    for row in rows:
        factor = int(examples_only(row["question"])[6:-1])
        row["public_inputs"] = ["1 0\n", "2 900\n"]
        row["public_outputs"] = [f"{factor}\n", f"{2 * factor + 900}\n"]
    return rows


@pytest.fixture(scope="module")
def exams(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_rows(tmp_path_factory.mktemp("exams") / "sums.jsonl", two_turns(40)))


@pytest.fixture(scope="module")
def environment(exams: str) -> SplitEnvironment:
    return create_environment("programs", {"path": exams, "turns": 2})


def replayed(environment: SplitEnvironment, task: Task, *texts: str) -> RerunLine:
    return rerun(environment, task, Transcript(list(texts)))


def rewarded(line: RerunLine) -> float:
    assert line.over
    assert (line.verdict.fault, line.verdict.raised) == ("", "")
    return line.verdict.reward


@pytest.mark.slow(reason="runs programs")
@needs_programs
def test_a_program_that_passes_the_public_tests_ends_the_dialogue(
    environment: SplitEnvironment,
) -> None:
    task = task_of(environment)
    question = environment.question(task)
    line = replayed(environment, task, f"So:\n```python\n{honest(question)}\n```")
    assert (environment.turns, line.observations, rewarded(line)) == (2, [], 1.0)
    # Right in all public tests, and in none that decides.
    learnt = f"a, b = input().split()\n{examples_only(question)[:-1]} * int(a) + int(b) % 899)"
    learnt = learnt.replace("% 899", "// 900 * 900")
    line = replayed(environment, task, learnt)
    assert (line.observations, rewarded(line)) == ([], 0.0)
    # Who goes on after the end is told so.
    assert replayed(environment, task, honest(question), "more").verdict is None


@pytest.mark.slow(reason="runs programs")
@needs_programs
def test_the_last_program_is_judged_by_private_tests(environment: SplitEnvironment) -> None:
    task = task_of(environment)
    right = honest(environment.question(task))
    for texts, reward in (
        (["print(3)", right], 1.0),
        (["print(3)", "print(3)"], 0.0),
        (["print(3)", "I give up."], 0.0),
        (["print(3)", ""], 0.0),
        (["no program at all", f"```\n{right}\n```"], 1.0),
        # What fails a public test may be right where it counts.
        (["print(3)", right.replace("+ b)", "+ b if b != 900 else 0)")], 1.0),
    ):
        line = replayed(environment, task, *texts)
        assert (len(line.observations), rewarded(line)) == (1, reward), texts
    cut = rerun(environment, task, Transcript([right], cut=True))
    assert (cut.observations, rewarded(cut)) == ([], 1.0)


@needs_programs
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("print(3)\nprint(4)\n", "1 0\nThe program printed:\n3\n4\n"),
        ("x = 5", "1 0\nThe program printed nothing.\n"),
        (
            "print(3)\nraise SystemExit(2)",
            "1 0\nThe program raised an exception, or ended with a code other than 0.\n",
        ),
        ("while True: pass", "1 0\nThe program took too many steps.\n"),
        ("while True: print('x' * 999)", "1 0\nThe program printed too much.\n"),
        ("RIGHT.real if b else 0)", "2 900\nThe program printed:\n0\n"),
    ],
)
def test_the_first_failed_test_is_told(
    environment: SplitEnvironment, program: str, told: str
) -> None:
    task = task_of(environment)
    right = honest(environment.question(task))
    if program.startswith("RIGHT"):  # right for the first public test, and not for the second
        program = right.replace("+ b)", "if not b else 0)")
    line = replayed(environment, task, program)
    assert line.observations == [f"Wrong for this input:\n{told}{AGAIN}"]
    assert not line.over


@needs_programs
@pytest.mark.parametrize("text", ["", "```\n```", "print(1)\0"])
def test_an_answer_without_a_program_is_told_so(environment: SplitEnvironment, text: str) -> None:
    line = replayed(environment, task_of(environment), text)
    assert line.observations == [f"There is no program in the answer.\n{AGAIN}"]


@given(
    st.binary(max_size=3000) | st.text(min_size=300, max_size=900).map(str.encode),
    st.binary(max_size=3000),
    st.sampled_from(["ok", "raised", "steps", "output", "broken"]),
)
def test_every_reply_can_be_sent(stdin: bytes, stdout: bytes, end: Any) -> None:
    reply = describe_failure(Failure(stdin, Outcome(stdout, 1, end)))
    assert len(reply) <= MAX_OBSERVATION_CHARS
    assert reply.encode().decode() == reply
    assert reply.endswith(AGAIN)


@pytest.mark.parametrize("character", ["x", "é", "€", "🐝"])
def test_a_long_output_is_cut_between_characters(character: str) -> None:
    outcome = Outcome((character * 2000).encode(), 1, "ok")
    reply = describe_failure(Failure((character * 401).encode(), outcome))
    shown = character * 400 + "…"
    assert reply == f"Wrong for this input:\n{shown}\nThe program printed:\n{shown}\n{AGAIN}"
    exact = Failure(b"", outcome._replace(stdout=(character * 400).encode() + b" \r\n\n"))
    assert describe_failure(exact) == (
        f"Wrong for an empty input.\nThe program printed:\n{character * 400}\n{AGAIN}"
    )


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows whose private tests no program can guess."""
    rows = [
        {
            "question": f"Secret {n}.",
            "public_inputs": ["shown\n"],
            "public_outputs": ["seen\n"],
            "inputs": [SECRET_IN],
            "outputs": [SECRET_OUT],
        }
        for n in range(16)
    ]
    return str(write_rows(tmp_path_factory.mktemp("exams") / "secrets.jsonl", rows))


@needs_programs
@pytest.mark.slow(reason="34 programs in both turns, of which many use up their steps")
def test_no_cheat_and_no_hostile_program_scores_or_hears_a_secret_in_either_turn(
    secrets: str,
) -> None:
    environment = create_environment("programs", {"path": secrets, "turns": 2})
    task = task_of(environment, "secrets")
    for name, program in {**CHEATS, **HOSTILE}.items():
        line = replayed(environment, task, program, program)
        assert rewarded(line) == 0.0, name
        (reply,) = line.observations
        assert reply.startswith("Wrong for this input:\nshown\n"), name
        for secret in (SECRET_IN, SECRET_OUT, "root:", "uid=", str(Path.home())):
            assert secret.strip() not in reply, name
    # The control: one that knew the secret would be right.
    known = f"print({SECRET_OUT!r}.strip() if input() == {SECRET_IN.strip()!r} else 'seen')"
    assert rewarded(replayed(environment, task, known)) == 1.0


@needs_programs
@pytest.mark.slow(reason="34 programs in both turns, of which many use up their steps")
async def test_hostile_dialogues_end_no_confined_judge_and_change_no_verdict(exams: str) -> None:
    programs = [*CHEATS.values(), *HOSTILE.values()]
    host = ProcessEnvironmentHost("programs", {"path": exams, "turns": 2})
    async with started(host) as info:
        assert info.turns == 2
        ref = ref_to(info, seed=task_seed("judged"))
        (prompt,) = await host.render([ref])
        right = honest(prompt)
        asked = [
            [
                *(Transcript([one, other]) for one, other in zip(some, some[::-1], strict=True)),
                *(Transcript([one, right]) for one in some[:1]),
                Transcript([right]),
            ]
            for some in (programs[at : at + 6] for at in range(0, len(programs), 6))
        ]
        groups = [list((await host.rerun(ref, group)).reruns) for group in asked]
        assert host.losses == 0
    for group in groups:
        *hostile, late, honest_one = group
        assert [each.reward for each in hostile] == [0.0] * len(hostile)
        assert (late.reward, honest_one.reward, honest_one.observations) == (1.0, 1.0, ())
        assert {(each.is_over, each.fault, each.exception) for each in group} == {(True, "", "")}
        assert all(len(each.observations) == 1 for each in (*hostile, late))


@pytest.mark.slow(reason="starts three environments that check their rows")
@needs_programs
def test_one_turn_of_the_same_file_has_another_version_and_no_reply(exams: str) -> None:
    one, two = (create_environment("programs", {"path": exams, "turns": n}) for n in (1, 2))
    assert one.version == create_environment("programs", {"path": exams}).version != two.version
    assert (one.turns, one.score_seconds, two.score_seconds) == (1, 60.0, 120.0)
    task = task_of(one)
    question = one.question(task)
    assert one.render(task) == two.render(task_of(two))
    assert one.score(task, honest(question)) == 1.0
    # Public tests decide nothing.
    assert one.score(task, honest(question).replace("+ b)", "+ b if b != 900 else 0)")) == 1.0


PUBLIC: Mapping[str, Any] = {"public_inputs": ["3"], "public_outputs": ["1"]}


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**PUBLIC}, "line 4: 'inputs' "),
        ({**PUBLIC, "inputs": [], "outputs": []}, "give 1 to 10 'inputs', and as many 'outputs'"),
        (
            {"inputs": ["1", "3 \n"], "outputs": ["1", "2"], **PUBLIC},
            "one of 'public_inputs' is also one of 'inputs'",
        ),
        (
            {"inputs": ["1"], "outputs": ["1"], "public_inputs": ["2"]},
            "line 4: 'public_outputs' ",
        ),
        (
            {"inputs": ["1"], "outputs": ["1"], "public_inputs": [], "public_outputs": []},
            "give 1 to 10 'public_inputs', and as many 'public_outputs'",
        ),
        (
            {
                "inputs": ["1"],
                "outputs": ["1"],
                "public_inputs": ["2", "2"],
                "public_outputs": ["1", "2"],
            },
            "the same input has two outputs",
        ),
    ],
)
def test_a_bad_row_is_refused_with_its_line(
    tmp_path: Path, turns: int, row: dict[str, Any], why: str
) -> None:
    path = str(write_rows(tmp_path / "sums.jsonl", [*two_turns(3), {"question": "q", **row}]))
    with pytest.raises(ConfigError, match="line 4: ") as refused:
        create(path, turns=turns)
    assert why in str(refused.value)


def test_two_turns_need_public_tests_and_other_numbers_are_refused(tmp_path: Path) -> None:
    path = str(write_rows(tmp_path / "sums.jsonl", sums(3)))
    with pytest.raises(ConfigError, match="line 1: 'public_inputs'"):
        create(path, turns=2)
    for turns in (0, 3, True, "2", 2.0):
        with pytest.raises(ConfigError, match=r"options\.turns"):
            create(path, turns=turns)  # type: ignore[arg-type]
