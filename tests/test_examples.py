"""Every file in examples/ loads or runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from builders import ROOT
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.config import Settings, load_settings
from swarm_node.environments.extras import installed_extras
from swarm_node.environments.registry import create_environment
from swarm_node.environments.workers.scoring_worker import Transcript, rerun
from swarm_node.rollout import TaskRef

EXAMPLES = ROOT / "examples"
SETTINGS = sorted(EXAMPLES.glob("*.toml"))


def test_every_example_is_tested_here_and_named_in_the_documentation() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    others = {"successor.py", "hints.py", "exams.jsonl", "library.ipynb", "trl_member.py"}
    others |= {"words.py"}
    assert files == {path.name for path in SETTINGS} | others
    pages = (ROOT / "docs" / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    assert {name for name in files if f"examples/{name})" not in pages} == set()


@pytest.mark.parametrize("path", SETTINGS, ids=lambda path: path.stem)
def test_settings_load_and_say_how_they_are_used(path: Path) -> None:
    settings = load_settings({}, environ={}, config=path)
    assert settings.model_fields_set
    assert settings != Settings()
    assert f"swarm-node join --config examples/{path.name}" in path.read_text()


def test_the_consumer_card_of_the_example_is_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_NODE_CONFIG", str(EXAMPLES / "consumer-card.toml"))
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["plan", "--vram", "12GB"])
    assert shown.exit_code == 0
    assert "12 GiB" in shown.output


def test_the_environments_of_your_own_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "writing-environments.md").read_text()
    files = [(EXAMPLES / name).read_text() for name in ("successor.py", "hints.py")]
    assert re.findall(r"```python\n(.*?)```", page, re.DOTALL) == files


def test_the_file_of_words_has_the_drills_own_wording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from words import rows

    drills = create_environment("drills", {})
    asked = drills.render(drills.derive(TaskRef("drills", drills.version, "reversal", 5)))
    found = rows()
    assert len({row["question"] for row in found}) == len(found) == 400
    pattern = r"Spell [a-z]+ backward\. End with a full stop\."
    assert all(re.fullmatch(pattern, text) for text in [asked, *(r["question"] for r in found)])


def test_the_environment_of_one_turn_scores_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    environment = create_environment("successor:create", {})
    task = environment.derive(TaskRef("successor", environment.version, "small", 11))
    number = int(re.findall(r"\d+", environment.render(task))[0])
    assert environment.score(task, str(number + 1)) == 1.0
    assert environment.score(task, str(number)) == 0.0


def test_the_environment_of_several_turns_replies_until_it_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    environment = create_environment("hints:create", {})
    task = environment.derive(TaskRef("hints", environment.version, "small", 11))
    lowest, highest = (int(number) for number in re.findall(r"\d+", environment.render(task)))
    said: list[str] = []
    while not said or environment.observation(task, said) is not None:
        middle = (lowest + highest) // 2
        said.append(str(middle))
        if environment.observation(task, said) == "higher":
            lowest = middle + 1
        else:
            highest = middle - 1
    assert len(said) <= environment.turns
    assert environment.reward(task, said) == 1.0
    assert environment.reward(task, [*said, "0"]) == 0.0
    assert environment.observation(task, ["seven"]) is None


#: Right programs for the questions of examples/exams.jsonl, in their order.
PROGRAMS = (
    "import math\nprint(math.gcd(*map(int, input().split())))",
    "print(sum(letter in 'aeiou' for letter in input().lower()))",
    "print(*reversed(input().split()))",
    "a, b = 0, 1\nfor _ in range(int(input())):\n    a, b = b, a + b\nprint(a)",
    """\
opened, closes = [], {")": "(", "]": "[", "}": "{"}
for bracket in input():
    if bracket in "([{":
        opened.append(bracket)
    elif not opened or opened.pop() != closes[bracket]:
        opened = [bracket]
        break
print("no" if opened else "yes")
""",
    """\
numbers = [int(input()) for _ in range(int(input()))]
print(max(abs(one - next) for one, next in zip(numbers, numbers[1:])))
""",
)


@pytest.mark.slow(reason="runs each program of the exams")
@pytest.mark.skipif(
    "programs" not in installed_extras(), reason="the extra programs is not installed"
)
def test_the_exams_have_right_programs_and_a_wrong_one_may_be_mended() -> None:
    path = EXAMPLES / "exams.jsonl"
    environment = create_environment("programs", {"path": str(path), "turns": 2})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    right = dict(zip((row["question"] for row in rows), PROGRAMS, strict=True))
    seen = set()
    for seed in range(40):
        task = environment.derive(TaskRef("programs", environment.version, "exams", seed))
        question = environment.question(task)
        if question in seen:
            continue
        seen.add(question)
        mended = rerun(environment, task, Transcript(["print()", right[question]]))
        assert (len(mended.observations), mended.verdict.reward) == (1, 1.0), question
        at_once = rerun(environment, task, Transcript([right[question]]))
        assert (at_once.observations, at_once.verdict) == ([], mended.verdict)
    assert len(seen) == len(rows) - 1  # one is held out
