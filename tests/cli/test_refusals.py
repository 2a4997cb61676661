"""What a command says when it cannot do what it is asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.config.remembered import recall
from swarm_node.config.sources import set_remembered
from swarm_node.errors import ConfigError, ModelError
from swarm_node.node.home.home import Home
from swarm_node.policy.models.hub import ALIASES
from swarm_node.policy.models.model import require_model
from swarm_node.program.terminal import format_error, wrap_text

#: Runs commands one after the other. It prints of each the exit code, what was imported by then of
#: what takes seconds, and how its message begins.
_IMPORTED = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from swarm_node.cli.main import app
heavy = {"torch", "transformers", "vllm", "hivemind", "numpy", "huggingface_hub", "matplotlib"}
for command in json.load(sys.stdin):
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        try:
            app(command.split())
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([command, code, sorted(heavy & sys.modules.keys()), said.getvalue()[:12]]))
"""
_IMPOSSIBLE = [
    "join --model qwen2.5-2b",
    "join --environment nope.jsonl",
    "join --environment drlls",
    "join --ticket-file nope",
    "join --ticket swarmjoin1.nothing",
    "join --set run.max_steps=abc",
    "env check nope.jsonl",
    "env check jsonl --set environment.options.path=nope.jsonl",
    "env check drills --model typo",
    "export full",
    "export new --format peft",
    "export new --model typo",
    "eval",
    "eval --checkpoint all --tasks nope.jsonl",
    "eval --checkpoint nope",
    "serve --checkpoint nope",
    "track wandb",
    "support-bundle --out full/file",
    "backup --out full/file",
    "restore nope",
    "plan --model typo",
    "simulate --model typo",
    "simulate --report full/file",
    "demo --model typo",
    "demo --environment drlls",
    "demo --report full/file",
    *("members", "peers", "samples", "status", "stop", "top"),
]


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--vram", "much"],
        ["plan", "--model", "qwen2.5-05b"],
        ["train-host", "10.0.0.1", "--key", "none"],
        ["train-host", "10.0.0.1:29400", "--key", "none"],
    ],
)
def test_an_error_is_a_line_and_one_for_each_remedy_and_exit_code_1(command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert done.stdout == ""
    cause, *remedies = done.stderr.splitlines()
    assert cause.startswith("swarm-node: ")
    assert all(line.startswith("→ ") for line in remedies)


def test_a_plan_that_does_not_fit_exits_with_1() -> None:
    for gigabytes, code in (("80GB", 0), ("1GB", 1)):
        done = CliRunner().invoke(app, ["plan", "--model", "qwen2.5-1.5b", "--vram", gigabytes])
        assert done.exit_code == code, done.output
        assert "qwen2.5-1.5b" in done.stdout


def test_a_refused_join_forgets_nothing(tmp_path: Path) -> None:
    set_remembered(tmp_path, {"run.seed": 3})
    with Home(tmp_path).lock():
        done = CliRunner().invoke(app, ["join", "--home", str(tmp_path), "--forget", "run.seed"])
    assert done.exit_code == 1
    assert "already running" in done.stderr
    assert [*recall(tmp_path)] == ["run.seed"]


@pytest.mark.slow(reason="starts a process that imports all commands")
def test_what_cannot_be_is_told_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED],
        input=json.dumps(_IMPOSSIBLE),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "SWARM_NODE_HOME": str(home)},
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        [command, 1, [], "swarm-node: "] for command in _IMPOSSIBLE
    ]
    assert not home.exists()


def test_an_unknown_model_is_told_with_its_nearest_names() -> None:
    with pytest.raises(ModelError) as caught:
        require_model("qwen2.5-2b")
    assert "qwen2.5-2b" in caught.value.cause
    near, *_ = caught.value.remedies
    assert 1 <= len(ALIASES.keys() & {*re.findall(r"[\w.-]+\w", near)}) <= 3
    assert max(map(len, caught.value.remedies)) < 150


def test_the_help_of_plan_lists_every_short_name() -> None:
    shown = CliRunner().invoke(app, ["plan", "--help"]).stdout
    listed, family = set[str](), ""
    for word in shown.replace("│", " ").replace(",", " ").replace(";", " ").split():
        if word.startswith("-"):
            listed.add(f"{family}{word}")
        else:
            listed.add(word)
            family = word.partition("-")[0]
    assert {name for name in ALIASES if not name.endswith("-base")} <= listed


def test_an_error_as_text_is_one_sentence_with_its_remedies() -> None:
    error = ConfigError("no tasks at x", "did you mean y?", "name a file", "or none")
    assert str(error) == "no tasks at x: did you mean y? name a file; or none"
    assert error.split_remedies() == ("no tasks at x", "did you mean y? name a file; or none")
    assert ConfigError("cannot: mend it").split_remedies() == ("cannot", "mend it")
    assert ConfigError("cannot").split_remedies() == ("cannot", "")


def test_an_error_in_a_pipe_is_a_line_each_and_nothing_in_it_moves_a_cursor() -> None:
    error = ConfigError("peer said \x1b[2J " + "word " * 60, "try `swarm-node join`", "or \r none")
    lines = [*format_error("swarm-node", error, Path("/data"))]
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert lines[1] == "→ try `swarm-node join --home /data`"


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_lines_on_a_terminal_break_between_words(columns: int) -> None:
    text = "swarm-node: no model at /a/very/long/path/that/has/no/blank: 模型 is not\nthere at all"
    lines = wrap_text(text, columns).split("\n")
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= columns or " " not in line for line in lines)
    assert all(line.startswith("  ") for line in wrap_text(text, columns, "  ").split("\n")[1:-1])
