"""Swarms of unlike nodes: rollouts cross tokenizers, and the comparison of kinds adds up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from research.__main__ import app as studies
from research.arms import chosen_arms
from research.estimates import declared_seeds
from research.heterogeneous import Composition, compositions, gains_table
from research.scenario import StudyScenario
from research.swarm import simulate
from swarm_node.cli.main import app
from swarm_node.errors import ConfigError
from swarm_node.p2p.peers.standing import BLAMELESS
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.simulation.models import deal
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.run import simulation_settings

TEXT = "Spell this word backward: café\n10/3"


@pytest.fixture(scope="module")
def respelt(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shipped model with its byte tokens in reverse order: it says the same as often, in ids
    that mean something else to the original."""
    path = tmp_path_factory.mktemp("respelt") / "model"
    shutil.copytree(resolve("tiny"), path)
    rules = json.loads((path / "tokenizer.json").read_text())
    vocabulary = rules["model"]["vocab"]
    renamed = {i: 263 - i for i in range(4, 260)}
    rules["model"]["vocab"] = {token: renamed.get(i, i) for token, i in vocabulary.items()}
    (path / "tokenizer.json").write_text(json.dumps(rules))
    weights = load_file(path / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    order = [renamed.get(i, i) for i in range(len(rows))]
    weights["model.embed_tokens.weight"] = rows[order].contiguous()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return str(path)


def mixed(*models: str) -> SimulationReport:
    scenario = StudyScenario(nodes=4, rounds=3, eval_rounds=3, eval_tasks=2, models=models)
    return simulate(scenario, simulation_settings(0, {}))


@pytest.fixture(scope="module")
def together(respelt: str) -> SimulationReport:
    return mixed("tiny", respelt)


def test_the_respelt_model_uses_other_ids_for_the_same_text(respelt: str) -> None:
    ours, theirs = (Codec.from_directory(Path(p)) for p in (resolve("tiny"), respelt))
    assert ours.encode_answer(TEXT) != theirs.encode_answer(TEXT)
    assert theirs.decode(theirs.encode_answer(TEXT)) == TEXT
    assert ours.decode(theirs.encode_answer(TEXT)) != TEXT


@pytest.mark.slow(reason="simulates a swarm of two kinds")
def test_groups_cross_tokenizers_both_ways(together: SimulationReport) -> None:
    report = together
    assert [node.model for node in report.nodes] == [0, 1, 0, 1]
    assert [model.nodes for model in report.models] == [2, 2]
    ours, theirs = report.models
    assert ours.model != theirs.model
    assert ours.tokenizer != theirs.tokenizer
    for node in report.nodes:
        # One peer is of its kind and two are not.
        assert 0 < node.trained_cross_model < node.trained_external
        assert node.rejected.keys() <= BLAMELESS
    assert report.eval_reward.end == pytest.approx((ours.curve[-1][1] + theirs.curve[-1][1]) / 2)
    assert {entry for entry, _ in theirs.curve} == {0, 3}


@pytest.mark.slow(reason="simulates a swarm of two kinds")
def test_a_mixed_swarm_gives_the_same_hash_again(respelt: str, together: SimulationReport) -> None:
    assert mixed("tiny", respelt).hash == together.hash


def test_among_one_model_nothing_is_foreign() -> None:
    scenario = StudyScenario(
        nodes=2, rounds=2, eval_rounds=2, eval_tasks=1, models=("tiny", "tiny")
    )
    report = simulate(scenario, simulation_settings(0, {}))
    assert len(report.models) == 1
    assert [node.trained_cross_model for node in report.nodes] == [0, 0]
    assert all(node.trained_external for node in report.nodes)


def test_models_are_dealt_in_turn_as_often_as_they_are_named(respelt: str) -> None:
    models = deal(("tiny", "tiny", respelt), 5)
    assert [model.name for model in models] == ["tiny", "tiny", respelt, "tiny", "tiny"]
    assert len({id(model) for model in models}) == 2
    assert models[0].policy.tokenizer != models[2].policy.tokenizer


def test_every_model_needs_a_node() -> None:
    for models in ((), ("tiny",) * 3):
        with pytest.raises(ConfigError, match="needs a node"):
            StudyScenario(nodes=2, models=models)


def test_sharing_arms_are_run_in_all_swarms_and_alone_in_none_of_both() -> None:
    swarms = compositions(chosen_arms(("8/0", "4/4")))
    assert [(swarm.kinds, swarm.arm.name, swarm.name) for swarm in swarms] == [
        (("strong",), "8/0", "alone"),
        (("strong",), "4/4", "own kind"),
        (("weak",), "8/0", "alone"),
        (("weak",), "4/4", "own kind"),
        (("strong", "weak"), "4/4", "both kinds"),
    ]


def test_the_declared_seeds_are_its_own() -> None:
    assert declared_seeds(2, "heterogeneous") == [2431616001, 759067935]
    assert not {*declared_seeds(4, "sapo")} & {*declared_seeds(4, "heterogeneous")}


@pytest.mark.slow(reason="simulates a swarm of two kinds")
def test_the_gain_is_against_the_same_kind_alone(together: SimulationReport) -> None:
    report = together
    alone, shared = chosen_arms(("8/0", "4/4"))
    results = {Composition((kind,), alone): [report] for kind in ("strong", "weak")}
    results[Composition(("strong", "weak"), shared)] = [report]
    columns = {str(column.header): [*column.cells] for column in gains_table(results).columns}
    assert columns["nodes"] == ["strong", "weak"]
    # Both kinds' runs alone are this report, whose first model is the strong one.
    first, second = (model.curve[-1][1] for model in report.models)
    assert columns["3 updates"] == ["+0.000", f"{second - first:+.3f}"]


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (["simulate", "--model", "tiny", "--model", "nowhere"], "no model at nowhere"),
        (["simulate", "--nodes", "1", "--model", "tiny", "--model", "tiny"], "needs a node"),
        (["heterogeneous", "--weak", "tiny"], "are the same"),
        (["heterogeneous", "--arms", "5/3"], "there is no arm 5/3"),
        (["heterogeneous", "--strong", "nowhere", "--weak", "tiny"], "no model"),
        (["model", "build-tiny", "--out", "never", "--size", "huge"], "there is no size huge"),
        (["model", "build-tiny", "--out", "never", "--tokenizer", "bpe"], "no tokenizer bpe"),
    ],
)
def test_what_cannot_be_is_refused(
    command: list[str], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = app if command[0] in ("simulate", "model") else studies
    done = CliRunner().invoke(program, command)
    assert done.exit_code in (1, 2)
    assert refusal in done.stderr.replace("\n", " ")
    assert not [*tmp_path.rglob("*.safetensors")]
