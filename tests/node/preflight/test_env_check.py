"""`swarm-node env check` on good and bad environments, in real processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import textwrap
from pathlib import Path

import pytest
from builders import ROOT
from in_memory import ROLES
from trained_homes import TINY
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.config import load_settings
from swarm_node.environments.scores import GroupScores
from swarm_node.node.metrics.snapshot import Said
from swarm_node.node.preflight import dataset_checks
from swarm_node.node.preflight.env_check import (
    ENOUGH_GROUPS,
    ScoredCompletions,
    check_environment,
    learnable,
    milliseconds,
)
from swarm_node.rollout import TaskRef

KINDS = ("questions", "constant")
GAMES = "swarm_node.environments.bundled.games:create"
SOURCE = """
import random
from swarm_node.environments.base import Task

class Made:
    name, version, families = "made", str({version}), ("one",)

    def derive(self, ref):
        return Task(ref, {payload})

    def render(self, task):
        return f"What is {{task.payload}}?"

    def score(self, task, text):
        {score}

    {more}

def create():
    return Made()
"""


def environment(place: Path, **parts: str) -> str:
    given = {
        "version": "1",
        "payload": "ref.seed % 100_000",
        "score": "return float(len(text) % 2)",
        "more": "",
    }
    text = SOURCE.format(**{**given, **parts})
    (place / "made.py").write_text(textwrap.dedent(text))
    return "made:create"


def checked(name: str, model: Path = TINY, longest: int = 24, completions: int = 16) -> list[Said]:
    given = {"sampling.group_size": 4, "sampling.max_new_tokens": longest}
    sampling = load_settings(given, environ={}).sampling
    return asyncio.run(check_environment(name, {}, (), model, sampling, completions))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    return tmp_path


@pytest.mark.slow(reason="starts two environments, and a model that answers")
@pytest.mark.parametrize(
    ("parts", "last", "level"),
    [
        ({}, "of 16 completions right; ", "good"),
        # As many again where there is doubt, which is not enough here.
        ({"score": "return 0.0"}, "0 of 32 completions right; 0", "warning"),
    ],
)
def test_what_the_model_answers_right_says_whether_it_can_learn(
    place: Path, parts: dict[str, str], last: str, level: str
) -> None:
    found = checked(environment(place, **parts))
    kinds = ["imports", "derive", "questions", "constant", "score", "family"]
    assert [said.kind for said in found] == kinds
    assert [said.level for said in found[:5]] == ["good"] * 5, found
    assert last in found[-1].text
    assert found[-1].level == level


@pytest.mark.nightly(reason="the shipped model and its families, which change with a release")
@pytest.mark.slow(reason="256 answers to nine families")
def test_the_shipped_model_can_learn_the_drills() -> None:
    done = CliRunner().invoke(app, ["env", "check", "drills", "--model", "tiny", "--json"])
    assert done.exit_code == 0, done.stdout
    levels = [each["level"] for each in json.loads(done.stdout)["checks"]]
    assert set(levels) == {"good"}


def answered(family: str, *rewards: float, cut: int = 0) -> ScoredCompletions:
    """A group of one task, with these rewards."""
    judged = GroupScores("What is 7?", rewards)
    return ScoredCompletions(
        TaskRef("e", "1", family, 0), ["7"] * len(rewards), judged, truncated_count=cut
    )


@pytest.mark.parametrize(
    ("groups", "level", "remedy"),
    [
        ([(0, 0)] * (ENOUGH_GROUPS - 2) + [(0, 1)], "good", ""),
        ([(0, 0)] * (ENOUGH_GROUPS - 2), "warning", f"--completions {ENOUGH_GROUPS * 2 * 2}"),
        ([(1, 1)] * (ENOUGH_GROUPS - 2), "warning", f"--completions {ENOUGH_GROUPS * 2 * 2}"),
        ([(0, 0)] * (ENOUGH_GROUPS - 1), "bad", "not learn"),
        ([(1, 1)] * (ENOUGH_GROUPS - 1), "warning", "harder"),
    ],
)
def test_that_a_family_cannot_be_learnt_is_said_of_enough_groups_alone(
    groups: list[tuple[float, ...]], level: str, remedy: str
) -> None:
    """The group of another family, with equal rewards too, counts as evidence on both."""
    assert 0.95**ENOUGH_GROUPS < 0.05 < 0.95 ** (ENOUGH_GROUPS - 1)
    made, sampling = [answered("one", *each) for each in groups], load_settings({}, environ={})
    sampling = sampling.sampling.model_copy(update={"group_size": 2})
    other = answered("other", 0.0, 0.0)
    said = learnable(made, [*made, other], "one", sampling, 2)
    assert (said.level, remedy in said.remedy) == (level, True)
    # Another family that can be learnt says nothing of this one.
    mixed = answered("other", 0.0, 1.0)
    said = learnable(made, [*made, mixed], "one", sampling, 2)
    assert (said.level == "warning") == (level != "good")


@pytest.mark.parametrize(
    ("group", "level", "named"),
    [
        (answered("one", 0, 0, cut=2), "bad", "2"),
        (answered("one", 0, 1, cut=2), "warning", "2"),
        (answered("one", 1, 1, cut=2), "warning", "2"),
        (answered("one", 0, 1, cut=1), "good", "1"),
        (answered("one", 0, 1), "good", ""),
    ],
)
def test_answers_that_were_cut_come_before_any_other_advice(
    group: ScoredCompletions, level: str, named: str
) -> None:
    said = learnable([group], [group], "one", load_settings({}, environ={}).sampling, 1)
    assert said.level == level
    assert (f"{named} were truncated at sampling.max_new_tokens (24)" in said.text) == bool(named)
    assert ("raise it" in said.remedy) == (level != "good")


@pytest.mark.slow(reason="starts two environments, and a model that answers")
@pytest.mark.parametrize(
    ("parts", "kind", "text"),
    [
        ({"payload": "random.random()"}, "derive", "other tasks"),
        ({"version": "random.random()"}, "version", "two processes"),
        ({"score": "return random.random()"}, "score", "different rewards"),
        ({"score": "return 7.0"}, "score", "32 completions"),
    ],
)
def test_what_peers_would_not_agree_on_is_found(
    place: Path, parts: dict[str, str], kind: str, text: str
) -> None:
    found = checked(environment(place, **parts))
    bad = next(said for said in found if said.level == "bad")
    assert (bad.kind, text in bad.text) == (kind, True), found
    assert bad.remedy


@pytest.mark.slow(reason="starts two environments, and a model that answers")
@pytest.mark.parametrize(
    ("parts", "level", "texts", "remedies"),
    [
        ({}, "good", ["10,000 draws", "no reference"], ["", ""]),
        (
            {
                "payload": "ref.seed % 500",
                "score": "return float(text == str(max(task.payload % 3, 1)))",
                "more": "def answer(self, task): return str(max(task.payload % 3, 1))",
            },
            "warning",
            ["one: 500 ", '"1" for'],
            ["10,000", "above 0.1"],
        ),
        (
            {
                "score": "return float(text == str(task.payload))",
                "more": "def answer(self, task): return str(task.payload)",
            },
            "good",
            ["about ", "0.00 (200"],
            ["", ""],
        ),
    ],
)
def test_the_questions_are_counted_and_a_constant_answer_is_tried(
    place: Path, parts: dict[str, str], level: str, texts: list[str], remedies: list[str]
) -> None:
    said = [each for each in checked(environment(place, **parts)) if each.kind in KINDS]
    assert [(each.kind, each.level) for each in said] == [(kind, level) for kind in KINDS], said
    for each, text, remedy in zip(said, texts, remedies, strict=True):
        assert text in each.text
        assert remedy in each.remedy
        assert bool(each.remedy) == bool(remedy)


@pytest.mark.slow(reason="draws until a limit")
def test_draws_that_take_long_are_cut_off(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_checks, "SECONDS", 0.1)
    slow = {"payload": "ref.seed % 50_000 if not __import__('time').sleep(0.002) else 0"}
    (said,) = [each for each in checked(environment(place, **slow)) if each.kind == "questions"]
    assert "(cut off" in said.text


@pytest.mark.slow(reason="draws for two seconds")
def test_drawing_may_use_its_seconds(place: Path) -> None:
    busy = {"payload": "ref.seed % 50_000 + 0 * sum(range(10_000))"}
    (said,) = [each for each in checked(environment(place, **busy)) if each.kind == "questions"]
    assert said.level == "good"


@pytest.mark.slow(reason="starts two environments, and a model that answers")
@pytest.mark.parametrize(
    ("more", "level"), [("score_seconds = 0.0", "warning"), ("score_seconds = 60.0", "good")]
)
def test_a_slow_scorer_is_told_unless_it_says_how_much_it_needs(
    place: Path, monkeypatch: pytest.MonkeyPatch, more: str, level: str
) -> None:
    monkeypatch.setattr(dataset_checks, "_SCORE_SECONDS", 0.0)  # for constant answers
    until = "until = time.process_time() + 0.06"
    score = f"import time; {until}\n        while time.process_time() < until: pass\n"
    name = environment(place, score=score + "        return 0.0", more=more)
    (said,) = [each for each in checked(name, completions=4) if each.kind == "score"]
    assert (said.level, bool(said.remedy)) == (level, level == "warning")


@pytest.mark.parametrize(("made", "said"), [(True, "0 of 1024"), (False, "'nowhere:create'")])
def test_questions_that_cannot_be_split_and_no_module_end_with_exit_code_1(
    place: Path, made: bool, said: str
) -> None:
    name = environment(place, payload="7") if made else "nowhere:create"
    done = CliRunner().invoke(app, ["env", "check", name, "--json"])
    assert done.exit_code == 1
    (check,) = json.loads(done.stdout)["checks"]
    assert said in check["text"]


def test_a_time_is_written_for_people() -> None:
    times = [milliseconds(seconds) for seconds in (0.000_123, 0.0123, 0.0999, 1.5)]
    assert times == ["0.12 ms", "12 ms", "100 ms", "1500 ms"]


TALK = """
import os
from swarm_node.environments.base import Task

class Talk:
    name, version, families, turns = "talk", "1", ("one",), 3

    def derive(self, ref):
        return Task(ref, ref.seed % 100_000)

    def render(self, task):
        return f"What is {task.payload}?"

    def observation(self, task, said):
        REPLY

    def reward(self, task, said):
        return float(len(said[-1]) % 2)

def create():
    return Talk()
"""


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a template that has roles."""
    path = Path(shutil.copytree(TINY, tmp_path_factory.mktemp("roles") / "model"))
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": ROLES}))
    return path


@pytest.mark.slow(reason="starts two environments, and a model that talks")
@pytest.mark.parametrize(
    ("reply", "level", "text"),
    [
        ("return f'{len(said)} more'", "good", "one: at most 3"),
        ("return str(os.getpid())", "bad", "turn 1 "),
        ("return 'x' * 2000", "bad", "failed (observation)"),
        ("return 1 / 0", "bad", "(observation ZeroDivisionError)"),
    ],
)
def test_dialogues_are_replayed_in_two_processes(
    place: Path, roles: Path, reply: str, level: str, text: str
) -> None:
    (place / "talk.py").write_text(TALK.replace("REPLY", reply))
    found = checked("talk:create", roles, 8)
    (replay,) = [said for said in found if said.kind == "rerun"]
    assert (replay.level, text in replay.text) == (level, True), found
    assert bool(replay.remedy) == (level == "bad")
    if level == "good":
        assert "16 re-runs" in replay.text
        assert found[-1].kind == "family"


@pytest.mark.slow(reason="starts two environments, and a model that talks")
def test_the_games_replay_and_a_model_without_roles_is_refused(roles: Path) -> None:
    found = checked(GAMES, roles, 8)
    replays = [said for said in found if said.kind == "rerun"]
    # The tiny model says nothing that a game replies to.
    assert [said.level for said in replays] == ["warning"] * 3, found
    assert "no observation" in replays[0].text
    assert [said.text.split(":")[0] for said in replays] == ["guess", "calc", "weigh"]
    refused = checked(GAMES, TINY, 8)[-1]
    assert (refused.level, "no roles" in refused.text) == ("bad", True)
