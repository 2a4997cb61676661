"""Right answers that do not score 1 are found, named and refused, by every command alike."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from builders import ROOT
from lasting import started
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.config import Sources, load_settings
from swarm_node.config.model import EnvironmentTable
from swarm_node.environments.answers.final import MAX_SCORED_CHARS
from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.presets import try_environment
from swarm_node.environments.workers.scoring_worker import FailedAnswer
from swarm_node.errors import ConfigError
from swarm_node.node.preflight import right_answers
from swarm_node.node.preflight.dataset_checks import BestConstant, best_constant
from swarm_node.node.preflight.right_answers import (
    RightAnswers,
    examine_rows,
    score_family,
    verdict_on,
)
from swarm_node.node.start.join import join_swarm

#: Nobody judges the beginning of such an answer, so the tag around it is not found.
TOO_LONG = "7" * MAX_SCORED_CHARS


def written(place: Path, count: int, *wrong: int) -> Path:
    """A file of `count` rows, the first on line 2. The answers of the `wrong` lines fail."""
    rows = [
        {"question": f"What is {line}?", "answer": TOO_LONG if line in wrong else str(line)}
        for line in range(2, count + 2)
    ]
    path = place / "rows.jsonl"
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    return path


def options(path: Path) -> list[str]:
    return ["--environment", str(path)]


def table(path: Path, *, accept: bool = False) -> EnvironmentTable:
    return EnvironmentTable(name="jsonl", options={"path": str(path)}, allow_invalid=accept)


@pytest.mark.slow(reason="a judge scores a hundred rows, four times")
@pytest.mark.parametrize(
    ("wrong", "accept", "level"),
    [
        ([], False, "ok"),
        ([7], False, "warning"),
        ([7, 101], False, "error"),
        ([7, 101], True, "warning"),
    ],
)
async def test_rows_whose_own_answer_fails_are_named_and_more_than_one_in_a_hundred_refused(
    tmp_path: Path, wrong: list[int], accept: bool, level: str
) -> None:
    rows = await examine_rows(table(written(tmp_path, 100, *wrong), accept=accept))
    (found,) = rows.findings
    assert rows.prompt_bytes > 0
    assert (found.subject, found.level) == ("rows", level)
    assert [line for line in range(2, 102) if f"line {line}," in found.found] == wrong
    assert found.found.count("scores 0") == len(wrong)
    assert bool(found.remedy) == bool(wrong)
    assert ("--allow-invalid" in found.remedy) == (level == "error")


@pytest.mark.slow(reason="a judge scores a hundred rows, thrice")
def test_the_start_doctor_and_the_check_refuse_the_same_file_until_it_is_accepted(
    tmp_path: Path,
) -> None:
    path, home = written(tmp_path, 100, 7, 101), tmp_path / "home"
    flags = {"home": home, "environment.name": "jsonl", "environment.options.path": str(path)}
    with pytest.raises(ConfigError, match=r"line 7,.*line 101,.*--allow-invalid"):
        join_swarm(load_settings(flags, environ={}), Sources(flags, {}))
    assert not home.exists(), "nothing was founded"
    for more, code in (([], 1), (["--allow-invalid"], 0)):
        done = CliRunner().invoke(app, ["doctor", "--home", str(home), *options(path), *more])
        assert (done.exit_code, "line 101" in " ".join(done.output.split())) == (code, True)


@pytest.mark.slow(reason="a model answers")
def test_a_file_is_checked_by_its_name_and_its_failed_rows_fail_the_check(tmp_path: Path) -> None:
    path = written(tmp_path, 300, 9)
    for wrong, accept, level in ([9], [], "warning"), ([9, 10, 11, 12], [], "bad"):
        written(tmp_path, 300, *wrong)
        command = ["env", "check", str(path), "--completions", "8", "--json", *accept]
        done = CliRunner().invoke(app, command)
        checks = {each["kind"]: each for each in json.loads(done.stdout)["checks"]}
        assert checks["answers"]["level"] == level, checks
        assert (done.exit_code == 1) == (level == "bad")
    accepted = CliRunner().invoke(app, [*command, "--allow-invalid"])
    assert accepted.exit_code == 0


async def test_all_rows_are_scored_unless_time_is_short_and_then_some_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(right_answers, "_AT_ONCE", 32)
    path, heard = written(tmp_path, 100, *range(40, 60)), list[tuple[str, int, int]]()
    host = ProcessEnvironmentHost("jsonl", {"path": str(path)})
    async with started(host) as info:
        whole = await score_family(host, info, "rows", tell=lambda *told: heard.append(told))
        some = await score_family(host, info, "rows", 0.0)
        again = await score_family(host, info, "rows", 0.0)
    assert (whole.total, whole.scored_count, whole.known_count, whole.failed_count) == (
        100,
        100,
        100,
        20,
    )
    assert [each.place for each in whole.first_failures] == [
        f"line {line}" for line in range(40, 45)
    ]
    assert heard == [("reference answers of rows", done, 100) for done in (32, 64, 96, 100)]
    assert (some.total, some.scored_count, some == again) == (100, 32, True)
    assert 0 < some.failed_count < 32, "by chance: half of the first 32 lines would be all right"
    said = verdict_on(some, accept=False)
    assert "32 rows, drawn by chance from 100," in said.text


@pytest.mark.parametrize(
    ("known", "failed", "listed", "level"),
    [
        (0, 0, True, None),
        (100, 0, True, "good"),
        (100, 1, True, "warning"),
        (99, 1, True, "bad"),
        (200, 3, False, "bad"),
    ],
)
def test_one_in_a_hundred_is_the_most_that_may_fail(
    known: int, failed: int, listed: bool, level: str | None
) -> None:
    shown = [FailedAnswer(0, "line 3", "<answer>\n7</answer>", "scores 0.5")][:failed]
    said = verdict_on(RightAnswers("f", known, known, known, failed, shown, listed), accept=False)
    assert (said and said.level) == level
    if said is not None and failed:
        assert 'line 3, "<answer> 7</answer>" scores 0.5' in said.text
        assert ("score()" in said.remedy) == (not listed)


LIST = """
import os
from swarm_node.environments.base import Task

class Listed:
    name, version, families = "listed", "1", ("one",)
    sizes, held_out_bounds = {"one": (90, 10)}, {}

    def derive(self, ref):
        return Task(ref, ref.seed % 90)

    def render(self, task):
        return f"Say the number {task.payload}."

    def answer(self, task):
        return "no" if task.payload < 45 else str(task.payload)

    def place(self, task):
        return f"page {task.payload}"

    def score(self, task, text):
        if text == "crash":
            os._exit(3)
        return float(text == "0" if task.payload < 45 else text == str(task.payload))

def create():
    return Listed()
"""


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "listed.py").write_text(LIST)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return tmp_path / "listed.py"


def test_a_list_of_ones_own_is_one_whose_rows_a_start_scores(listed: Path) -> None:
    assert try_environment("listed:create", {}).lists
    # Texts of other lengths: Python takes compiled code of the same size and second for current.
    listed.write_text(LIST.replace("sizes,", "no_sizes,"))
    assert not try_environment("listed:create", {}).lists
    listed.write_text(LIST.replace("def answer", "def another"))
    assert not try_environment("listed:create", {}).lists


def test_a_constant_answer_is_tried_where_the_own_answer_is_credited(listed: Path) -> None:
    """A constant that is right where the right answer fails, "0", gets nothing for that."""

    async def tried() -> BestConstant:
        host = ProcessEnvironmentHost("listed:create", {})
        async with started(host) as info:
            return await best_constant(host, info, "one", ["0", "50"])

    found = asyncio.run(tried())
    assert found.answer == "50"
    assert found.tasks + found.left_out == 200
    assert 70 < found.left_out < 130
    assert found.reward * found.tasks == pytest.approx(round(found.reward * found.tasks))
    assert 0 < found.reward < 0.1
