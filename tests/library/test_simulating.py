"""The simulator as a function."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

import swarm_node
from swarm_node.cli.main import app
from swarm_node.errors import ConfigError, ModelError
from swarm_node.simulation.report import load_report

SMALL = {"run.eval_tasks": 1, "experience.local": 2}


@pytest.mark.slow(reason="simulates a swarm twice")
def test_it_gives_what_the_command_gives_also_in_a_notebook(tmp_path: Path) -> None:
    lines: list[str] = []
    before, configured = structlog.get_config(), structlog.is_configured()

    async def notebook() -> swarm_node.SimulationReport:
        return swarm_node.simulate(
            nodes=2,
            rounds=2,
            external=1,
            seed=3,
            delay=(0.0, 1.0),
            message_loss=0.1,
            speeds=(0.5, 2.0),
            settings=SMALL,
            report=tmp_path / "library",
            progress=lines.append,
        )

    result = asyncio.run(notebook())
    assert structlog.get_config() == before
    assert structlog.is_configured() is configured  # or a member would log to stdout
    options = "--nodes 2 --rounds 2 --external 1 --seed 3 --message-loss 0.1 --delay 0,1"
    options += " --speeds 0.5,2" + "".join(f" --set {key}={value}" for key, value in SMALL.items())
    report = ["--report", str(tmp_path / "command")]
    done = CliRunner().invoke(app, ["simulate", *options.split(), *report])
    assert done.exit_code == 0, done.output
    assert f"hash                 {result.hash}" in done.stdout
    saved = load_report(tmp_path / "library" / "report.json")
    assert saved.hash == result.hash
    assert [entry for entry, _ in result.eval_reward.curve] == [0, 2]
    assert len(result.rounds.local_reward) == 2
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    assert lines == ["round 1 of 2", "round 2 of 2"]


@pytest.mark.slow(reason="simulates a swarm")
def test_an_interrupt_ends_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def interrupt(*_: object) -> None:
        assert began.wait(120)
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        swarm_node.simulate(
            nodes=1, rounds=10_000, settings=SMALL, progress=lambda line: began.set()
        )
    (running,) = (each for each in threading.enumerate() if each.name == "swarm_node")
    running.join(120)
    assert not running.is_alive()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"nodes": 0}, ConfigError, "1 node"),
        ({"message_loss": 2.0}, ConfigError, "within 0"),
        ({"external": "some"}, ConfigError, r"experience\.external"),
        ({"settings": {"experience.owm": 1}}, ConfigError, r"experience\.owm"),
        ({"model": ["tiny"] * 9}, ConfigError, "9 .* 8 nodes"),
        ({"model": "/no/such/model"}, ModelError, "/no/such/model"),
    ],
)
def test_what_is_impossible_is_refused(
    arguments: dict[str, object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        swarm_node.simulate(**arguments)  # type: ignore[arg-type]
