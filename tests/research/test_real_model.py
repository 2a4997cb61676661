"""The study with a real model: its plan, its runs, its rule of choice and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import ROOT
from rich.console import Console

from research import real_model
from research.few_families import EASIEST, create
from research.frontier_raw import Raw, all_raw, write_raw
from research.real_model import (
    ARMS,
    CENTRAL,
    CHANGES,
    DESCRIBED_SEEDS,
    REGIMES,
    ROUNDS,
    SEEDS,
    SIZE,
    SOLO,
    SOLO_ANSWERS,
    RealModel,
    at_equal_cpu,
    best_solo,
    changes_table,
    claims_table,
    scenario_of,
    settings_of,
    tables,
)
from swarm_node.errors import ConfigError
from swarm_node.simulation.run import simulation_settings

CHOSEN = SOLO[1].name


def raw(stage: str, regime: str, arm: str, nodes: int, index: int, end: float) -> Raw:
    return Raw(
        *(stage, regime, arm, nodes, index, 7, nodes, "plan", "report", "commit"),
        updates=[0, 10, 20],
        unseen=[0.2, 0.3, end],
        seen=[],
        answers=[0, 400, 800] if ARMS[arm].kind == "solo" else [0, 200, 400],
        informative=[0, 5, 10],
        share=[0, 0.5, 0.5],
        bytes=1000,
        weights=0,
        cpu=100.0 * nodes,
        own_lag=1.0,
        peers_lag=0.0,
    )


def study(place: Path, stage: str = "final", **changes: object) -> RealModel:
    given = {"regimes": ("same",), "sizes": (4, 2), "arms": (), "raw": place, "model": "tiny"}
    return RealModel(stage, **given | changes)  # type: ignore[arg-type]


def pilot(place: Path, *regimes: str) -> None:
    """A pilot in which CHOSEN is ahead at 480 answers, though another ends higher."""
    for regime in regimes:
        for arm in SOLO:
            run = raw("pilot", regime, arm.name, 1, 0, 0.9 if arm is SOLO[0] else 0.5)
            if arm.name == CHOSEN:
                run.unseen[:] = [0.2, 0.6, 0.6]
            write_raw(run, place)


def test_the_runs_are_those_that_the_plan_declared() -> None:
    plan = (ROOT / "docs" / "research" / "real-model.md").read_text()
    assert f"a member of the swarm of four makes in {ROUNDS} updates" in " ".join(plan.split())
    assert f"until it has made {SOLO_ANSWERS} answers" in plan
    assert f"mean over {real_model.EVAL_TASKS} tasks" in plan
    assert (SEEDS, DESCRIBED_SEEDS) == (8, 3)
    assert "eight seeds of the solo arm and the swarm of four, three of the swarm" in plan
    for name, regime in REGIMES.items():
        assert f"\n| {name} | {regime.tokens}" in plan
    assert f"{', '.join(EASIEST[:3])} and subtraction, level 1".replace("-1", "") in plan


def test_a_final_has_the_best_recipe_and_the_other_sizes_on_three_seeds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--stage pilot"):
        list(study(tmp_path).places())
    pilot(tmp_path, "same")
    assert best_solo(tmp_path, "same").name == CHOSEN
    places = [(key.arm, key.nodes, key.index) for key, _ in study(tmp_path).places()]
    seed = [(CHOSEN, 1), ("default", 4), ("default", 2), ("central", 4)]
    assert places == [
        *((arm, nodes, index) for index in range(DESCRIBED_SEEDS) for arm, nodes in seed),
        *(
            (arm, nodes, index)
            for index in range(DESCRIBED_SEEDS, SEEDS)
            for arm, nodes in seed[:2]
        ),
    ]


def test_arms_differ_as_the_plan_says() -> None:
    private = REGIMES["private"]
    member = simulation_settings(1, settings_of(ARMS["default"], private))
    assert (member.experience.local, member.experience.external) == (2, "auto")
    assert (member.sampling.group_size, member.sampling.temperature) == (8, 0.7)
    for arm in SOLO:
        scenario = scenario_of(arm, private, 4, 1, "tiny")
        assert scenario.rounds * arm.own_groups * 8 == SOLO_ANSWERS
        assert (scenario.families_per_node, scenario.nodes) == (1, 4)
        assert simulation_settings(1, settings_of(arm, private)).experience.external == 0
    central = scenario_of(CENTRAL, private, 4, 1, "tiny")
    assert (central.nodes, central.samplers, central.families_per_node) == (1, 4, 0)


def test_a_change_differs_from_the_default_in_one_thing(tmp_path: Path) -> None:
    pilot(tmp_path, "same")
    places = list(study(tmp_path, "changes").places())
    assert [(key.arm, key.nodes, key.index) for key, _ in places] == [
        (arm.name, SIZE, 0) for arm in (ARMS["default"], *CHANGES)
    ]
    assert len({key.seed for key, _ in places}) == 1
    default = settings_of(ARMS["default"], REGIMES["same"])
    for arm in CHANGES:
        changed = settings_of(arm, REGIMES["same"])
        assert {key for key in changed if changed[key] != default.get(key)} == set(arm.settings)
    for end, arm in ((0.6, "default"), (0.9, "6-external")):
        write_raw(raw("changes", "same", arm, SIZE, 0, end), tmp_path)
    table = changes_table(tmp_path)
    assert list(table.columns[0].cells) == ["default", "6-external"]
    assert list(table.columns[3].cells) == ["0.600", "0.900"]


def test_the_environment_has_the_families_asked_for() -> None:
    assert create(["division-2", "addition-3"]).families == ("division-2", "addition-3")
    with pytest.raises(ConfigError, match="division-9"):
        create(["division-9"])


def test_a_member_is_compared_at_its_own_answers_and_at_its_own_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    solo = raw("final", "same", CHOSEN, 1, 0, 0.5)
    member = raw("final", "same", "default", SIZE, 0, 0.7)
    assert at_equal_cpu(solo, member) == pytest.approx(0.5)  # 100 s each
    for index, end in enumerate((0.7, 0.8, 0.75)):
        write_raw(raw("final", "same", CHOSEN, 1, index, 0.5), tmp_path)
        write_raw(raw("final", "same", "default", SIZE, index, end), tmp_path)
    write_raw(raw("final", "rare", "default", SIZE, 0, 0.7), tmp_path)  # without a rival
    table = claims_table(tmp_path)
    cells = [list(column.cells) for column in table.columns]
    # At 400 answers the node alone is at .3; after 100 s at .5.
    assert cells[0] == ["same"]
    assert cells[1] == ["+0.450 ± 0.124"]
    assert cells[3] == ["+0.250 ± 0.124"]
    monkeypatch.setenv("COLUMNS", "160")
    for each in tables(tmp_path):
        Console().print(each)
    shown = capsys.readouterr().out
    assert "same: unseen texts" in shown
    assert "rare: unseen texts" in shown
    assert CHOSEN in shown
    assert real_model.draw(tmp_path, tmp_path / "learning.png") == [tmp_path / "learning.png"]
    assert (tmp_path / "learning.png").stat().st_size > 10_000


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no last"):
        study(tmp_path, stage="last")
    with pytest.raises(ConfigError, match="no dense"):
        study(tmp_path, regimes=("dense",))
    with pytest.raises(ConfigError, match="no solo"):
        study(tmp_path, arms=("solo",))


@pytest.mark.slow(reason="simulates five nodes with adapters")
def test_a_pilot_and_a_final_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"ROUNDS": 2, "SOLO_ANSWERS": 32, "EVAL_TASKS": 1}.items():
        monkeypatch.setattr(real_model, name, value)
    study(tmp_path, "pilot").run()
    assert capsys.readouterr().out.count("made ") == len(SOLO)
    final = study(tmp_path, sizes=(2,), arms=("default", "central"), seeds=1)
    final.run()
    assert capsys.readouterr().out.count("made ") == 2
    swarm, central = (
        next(run for run in all_raw(tmp_path, "final", "same") if run.arm == arm)
        for arm in ("default", "central")
    )
    assert swarm.learners == 2
    assert (central.learners, central.nodes) == (1, SIZE)
    final.run()
    assert "made " not in capsys.readouterr().out
