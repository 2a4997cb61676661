"""The experiment around SAPO: its arithmetic, its declared seeds, and that it resumes."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.arms import ARMS, DEFAULT, expected_informative
from research.budgets import BATCH_ANSWERS
from research.estimates import declared_seeds, estimate
from research.sapo import Sapo
from research.scenario import StudyScenario
from research.supervised import ROWS
from swarm_node.errors import ConfigError
from swarm_node.simulation.report import SimulationReport, load_report

SMALL = Sapo(2, 1, 1, {}, "dense", ("supervised", "4/4", "8/0", DEFAULT))


def test_the_declared_seeds_never_change() -> None:
    assert declared_seeds(4, "sapo") == [1989404046, 4109115025, 1579712524, 1174217370]
    assert declared_seeds(2, "sapo") == declared_seeds(4, "sapo")[:2]


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_an_interval_is_wider_than_the_normal_one(values: list[float]) -> None:
    found = estimate(values)
    normal = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.half >= normal - 1e-9


def test_expected_informative_groups_are_those_of_the_feasibility_study() -> None:
    # The table of p = .1, .2, .4 for N = 8 in the design notes, worked out by hand there.
    for p, counts in ((0.1, (0.8, 2.6, 3.2, 1.6)), (0.4, (3.2, 4.4, 5.6, 6.4))):
        batches = ((8, 0), (6, 2), (4, 4), (2, 6))
        found = [expected_informative(own, external, 8, p) for own, external in batches]
        assert found == pytest.approx(counts)


def test_only_arms_that_say_so_are_filtered_told_or_supervised() -> None:
    plain = StudyScenario()
    of = {arm.name: arm.scenario(plain) for arm in ARMS}
    assert {name for name, each in of.items() if each.filtered} == {"8/0+filter"}
    assert {name: each.told for name, each in of.items() if each.told} == {"sft+default": 20}
    assert {name for name, each in of.items() if each.supervised} == {"supervised"}
    others = [name for name in of if name not in ("8/0+filter", "sft+default", "supervised")]
    assert others
    assert all(of[name] == plain for name in others)


def test_arms_train_on_as_many_answers_and_have_directories_of_their_own() -> None:
    for arm in ARMS:
        flags = arm.flags({})
        if "experience.local" in flags and not arm.supervised:
            groups = flags["experience.local"] + flags["experience.external"]
            assert groups * flags["sampling.group_size"] == BATCH_ANSWERS == ROWS
    assert len({arm.directory for arm in ARMS}) == len(ARMS)


def test_a_regime_chooses_the_tasks_and_an_arm_what_is_told(tmp_path: Path) -> None:
    given = Sapo(
        2, 1, 1, {"training.loss": "dapo"}, "headroom", ("sft+default", DEFAULT), model="tiny"
    )
    cases = {arm.name: case for arm, case in given.cases(tmp_path).items()}
    for case in cases.values():
        assert case.flags == {"environment.options.preset": "long", "training.loss": "dapo"}
    assert {name: case.scenario.told for name, case in cases.items()} == {
        DEFAULT: 0,
        "sft+default": 20,
    }
    assert not Sapo(2, 1, 1, {}, "sparse").shared


def test_an_unknown_regime_is_refused() -> None:
    with pytest.raises(ConfigError, match="regime easy"):
        Sapo(1, 1, 1, {}, "easy")


def test_a_later_part_of_the_declared_seeds_can_be_asked_for() -> None:
    assert Sapo(2, 1, 2, {}, "dense", first=2).declared() == {2: 1579712524, 3: 1174217370}


def reports(place: Path) -> dict[Path, SimulationReport | None]:
    return {path: load_report(path) for path in sorted(place.rglob("report.json"))}


@pytest.mark.slow(reason="simulates five swarms and measures them as an experiment does")
def test_an_experiment_resumes_midway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SMALL.run(tmp_path)
    first = reports(tmp_path)
    assert [path.parent.parent.name for path in first] == ["4-4", "8-0", DEFAULT, "supervised"]
    assert {path.parent.parent.parent.name for path in first} == {"dense-n2-r1"}
    shown = capsys.readouterr().out
    assert "1093.31" in shown
    assert "+95%" in shown
    words = " ".join(shown.split())
    for heading in ("70:30", "less that of the arm, paired by seed"):
        assert heading in words
    kept, broken = list(first)[:2]
    written = kept.stat().st_mtime_ns
    broken.write_text(broken.read_text()[:100])
    SMALL.run(tmp_path)
    assert kept.stat().st_mtime_ns == written
    again = reports(tmp_path)[broken]
    assert again.hash == first[broken].hash  # type: ignore[union-attr]


@pytest.mark.slow(reason="simulates two swarms and measures them as an experiment does")
def test_a_report_of_other_settings_is_not_taken_for_the_asked_one(tmp_path: Path) -> None:
    Sapo(1, 1, 1, {}, "dense", ("8/0",)).run(tmp_path)
    (before,) = reports(tmp_path).values()
    Sapo(1, 1, 1, {"training.learning_rate": 1e-3}, "dense", ("8/0",)).run(tmp_path)
    (after,) = reports(tmp_path).values()
    assert after.settings["training"]["learning_rate"] == 1e-3
    assert after.hash != before.hash
