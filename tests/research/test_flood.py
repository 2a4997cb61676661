"""The experiment with floods: its runs, their files and the table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import ROOT

from research.flood import ARMS, HONEST, Flood
from research.frontier_raw import Raw, write_raw


def raw(arm: str, index: int, end: float) -> Raw:
    return Raw(
        *("flood", "dense", arm, 3 + len(ARMS[arm]), index, 7, HONEST, "plan", "report", "commit"),
        updates=[0, 40],
        unseen=[0.1, end],
        seen=[],
        answers=[0.0, 400.0],
        informative=[0.0, 5.0],
        share=[0.0, 0.5],
        bytes=1000,
        weights=0,
        cpu=2.0,
        own_lag=1.0,
        peers_lag=2.0,
        hostile=0.125 if ARMS[arm] else 0.0,
    )


def test_the_runs_are_those_that_the_plan_declared(tmp_path: Path) -> None:
    plan = (ROOT / "docs" / "research" / "flood.md").read_text()
    declared = Flood(tmp_path)
    assert f"**Seeds.** {declared.seeds}:" in plan
    assert f"after {declared.rounds} updates, on {declared.tasks} tasks a family" in plan


def test_every_arm_of_a_seed_comes_before_the_next_seed(tmp_path: Path) -> None:
    places = list(Flood(tmp_path, seeds=2).places())
    assert [place.arm for place in places] == [*ARMS, *ARMS]
    assert [place.nodes for place in places[:5]] == [3, 4, 6, 4, 6]
    assert len({place.seed for place in places}) == 2
    assert len({place.file for place in places}) == len(places)


def test_differences_are_paired_by_seed_and_leave_out_seeds_without_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for index, (missing, flooded) in enumerate([(0.4, 0.38), (0.5, 0.5)]):
        for arm, end in (("missing", missing), ("one-of-four-floods", flooded)):
            made = raw(arm, index, end)
            write_raw(made, tmp_path)
    write_raw(raw("three-of-six-flood", 2, 0.1), tmp_path)
    Flood(tmp_path).show()
    shown = capsys.readouterr().out
    (row,) = (line for line in shown.splitlines() if "one-of-four-floods" in line)
    assert row.split() == [
        *("one-of-four-floods", "2", "0.440", "±", "0.762"),
        *("-0.010", "±", "0.127", "400", "±", "0", "12.5%", "±", "0.0%"),
    ]
    assert "three-of-six-flood" not in shown


@pytest.mark.slow(reason="simulates five swarms")
def test_runs_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = Flood(tmp_path, seeds=1, rounds=2, tasks=1)
    experiment.run()
    assert capsys.readouterr().out.count("made ") == len(ARMS)
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert len(kept) == len(ARMS)
    experiment.run()
    assert "made " not in capsys.readouterr().out
    for path, content in kept.items():
        assert path.read_bytes() == content
        one = msgspec.json.decode(path.read_bytes(), type=Raw)
        assert one.learners == HONEST
