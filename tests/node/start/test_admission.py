"""What `join` refuses, `doctor` marks: one list for both."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from trained_homes import TINY, trained_home
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.node.home.home import Home

_RANK = 8


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that trained adapters of the tiny model."""
    place = tmp_path_factory.mktemp("admission") / "home"
    Home(place).found_swarm("team", time.time())
    trained_home(place, _RANK).close()
    return place


@pytest.fixture(scope="module")
def foreign(trained: Path) -> Path:
    """A home whose newest checkpoint another program wrote."""
    place = trained.with_name("foreign")
    Home(place).found_swarm("team", time.time())
    host = trained_home(place, 0)
    host.checkpoint({"updates": "many"})
    host.close()
    return place


def both(home: Path, options: list[str]) -> tuple[int, dict[str, str], int, str]:
    """Exit code of `doctor` and its errors by subject; exit code of `join` and its words."""
    common = ["--home", str(home), "--device", "cpu", *options]
    examined = CliRunner().invoke(app, ["doctor", "--json", *common])
    checks = json.loads(examined.stdout)["checks"]
    errors = {row["subject"]: row["found"] for row in checks if row["level"] == "error"}
    joined = CliRunner().invoke(app, ["join", "--steps", "1", *common])
    return examined.exit_code, errors, joined.exit_code, joined.stderr


@pytest.mark.slow(reason="runs doctor and join for each setting")
@pytest.mark.parametrize(
    ("subject", "key", "value"),
    [
        ("checkpoints", "training.lora_rank", "16"),
        ("checkpoints", "model", "tiny-talk"),
        ("port", "network.advertise", '["somewhere"]'),
        ("context", "sampling.max_new_tokens", "1100"),
        ("environment", "environment.families", '["revers"]'),
        ("environment", "environment.options.preset", "shrot"),
        ("environment", "environment.options.path", "questions.jsonl"),
        ("environment", "environment.name", "drill"),
    ],
)
def test_doctor_marks_the_setting_that_join_refuses(
    trained: Path, subject: str, key: str, value: str
) -> None:
    before = sorted(trained.rglob("*"))
    examined, errors, joined, said = both(trained, ["--set", f"{key}={value}"])
    assert (examined, joined) == (1, 1)
    assert subject in errors
    assert errors[subject] in said.replace("swarm-node: ", "")
    assert sorted(trained.rglob("*")) == before, "refused before anything was written"


@pytest.mark.parametrize("lacks", ["tokenizer.json", "model.safetensors", "config.json"])
def test_doctor_marks_the_model_that_join_refuses(tmp_path: Path, lacks: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / lacks).unlink()
    examined, errors, joined, _ = both(tmp_path / "home", ["--model", str(model)])
    assert (examined, joined) == (1, 1)
    assert [*errors] == ["model"]
    assert not (tmp_path / "home").exists()


def test_doctor_marks_the_game_that_join_refuses(tmp_path: Path) -> None:
    games = ["--model", "tiny-talk", "--set", "environment.name=games"]
    chosen = ["--set", 'environment.families=["guss"]']
    examined, errors, joined, said = both(tmp_path / "home", [*games, *chosen])
    assert (examined, joined) == (1, 1)
    assert errors["environment"] in said


@pytest.mark.slow(reason="runs doctor twice and join")
def test_doctor_marks_questions_that_are_all_too_long_for_the_model(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    text = "".join(f'{{"question": "{number} is {"long " * 900}?", "answer": "{number}"}}\n'
                   for number in range(20))  # fmt: skip
    rows.write_text(text)
    examined, errors, joined, said = both(tmp_path / "home", ["--environment", str(rows)])
    assert (examined, joined) == (1, 1)
    assert errors["prompts"] in said
    short = (f'{{"question": "{number}?", "answer": "{number}"}}\n' for number in range(20))
    rows.write_text(text + "".join(short))
    fitting = ["doctor", "--home", str(tmp_path / "home"), "--environment", str(rows)]
    assert "context" not in CliRunner().invoke(app, fitting).stdout


def test_doctor_marks_the_state_that_join_refuses(foreign: Path) -> None:
    examined, errors, joined, said = both(foreign, [])
    assert (examined, joined) == (1, 1)
    assert errors["checkpoints"] in said
    assert not (foreign / "node.log").exists()


def test_doctor_agrees_to_go_on(trained: Path) -> None:
    common = ["--home", str(trained), "--device", "cpu"]
    assert CliRunner().invoke(app, ["doctor", *common]).exit_code == 0
