"""The frontier: its arms, its rule of choice, its files, and one small whole experiment."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from builders import ROOT

from research import frontier_arms
from research.frontier import Frontier
from research.frontier_arms import (
    CENTRAL,
    DEFAULT,
    GROUNDS,
    RIVALS,
    SOLO,
    SOURCE,
    central_groups,
    measured_at,
    scenario_of,
    settings_of,
    updates,
)
from research.frontier_choice import (
    choose,
    needed,
    read_choices,
    reward_at,
)
from research.frontier_raw import (
    Raw,
    all_raw,
    claimed,
    find_raw,
    key_of,
    pack,
    packed,
    plan_digest,
    write_raw,
)
from research.frontier_tables import (
    best_constants,
    prediction_table,
    show_picture,
    show_tables,
    solo_gain,
)
from swarm_node.errors import ConfigError, SwarmNodeError


def raw(arm: str, nodes: int, index: int, answers: list[float], unseen: list[float]) -> Raw:
    return Raw(
        *("pilot", "dense", arm, nodes, index, 7, nodes, "plan", "report", "commit"),
        updates=[0, 10, 20],
        unseen=unseen,
        seen=[],
        answers=answers,
        informative=[0, 5, 10],
        share=[0, 0.5, 0.5],
        bytes=1000,
        weights=0,
        cpu=2.0,
        own_lag=1.0,
        peers_lag=0.0,
    )


PILOT = [
    raw("default", 8, 0, [0, 100, 200], [0.0, 0.2, 0.4]),
    raw("default", 2, 0, [0, 200, 400], [0.0, 0.2, 0.4]),
    # Quick at first, and best in the end.
    raw("solo-4x2", 1, 0, [0, 100, 800], [0.0, 0.15, 0.2]),
    raw("solo-64x8", 1, 0, [0, 400, 1600], [0.0, 0.1, 0.9]),
    raw("solo-8x4", 1, 0, [0, 100, 800], [0.0, 0.05, 0.1]),
    raw("solo-16x4", 1, 0, [0, 100, 800], [0.0, 0.02, 0.05]),
]


def test_a_prediction_begins_with_the_first_share_that_was_measured(tmp_path: Path) -> None:
    swarm = raw("default", 2, 0, [0, 200, 400], [0.0, 0.2, 0.4])
    final = msgspec.structs.replace(swarm, stage="final")
    short = msgspec.structs.replace(swarm, unseen=[0.0, 0.1, 0.2])
    for run in (short, final, raw("default-long", 2, 0, [0, 100, 200], [0.0, 0.2, 0.4])):
        write_raw(run, tmp_path)
    table = prediction_table(tmp_path, "dense", [2])
    assert [list(column.cells) for column in table.columns[2:]] == [
        ["0.400"],
        ["0.400"],
        ["+0.000"],
    ]
    assert "fitted" in str(table.title), "this regime's final had been read before"


def test_a_prediction_is_printed_before_the_final_is_run(tmp_path: Path) -> None:
    for arm in ("default", "default-long"):
        run = raw(arm, 2, 0, [0, 100, 200], [0.0, 0.2, 0.4])
        run = msgspec.structs.replace(run, regime="unlike")
        write_raw(run, tmp_path)
    table = prediction_table(tmp_path, "unlike", [2, 4])
    assert [list(column.cells) for column in table.columns[2:]] == [["0.400"], ["-"], ["-"]]
    assert "predicted" in str(table.title)


def test_the_sweep_is_whole_and_solo_arms_make_enough_answers() -> None:
    assert len(SOLO) == 5 * 3 * 2 * 2 == len({arm.name for arm in SOLO})
    assert updates(RIVALS["solo-4x2"], 60) == 338
    assert updates(RIVALS["solo-64x8-filter-past"], 60) == 60
    assert all(updates(arm, 60) * arm.own * arm.size >= 2700 for arm in SOLO)
    assert updates(RIVALS["default"], 120) == 120
    assert updates(RIVALS["central-small"], 120, 8, 7.1) == 213
    assert [*measured_at(60, 60)] == [5, 10, 20, 30, 40, 50]
    assert [*measured_at(60, 338)][-3:] == [120, 180, 240]


def test_a_central_learner_makes_the_answers_of_all_nodes() -> None:
    assert central_groups(8, 18.0) == 36
    assert central_groups(2, 40.0) == 20
    with pytest.raises(ConfigError, match="too large"):
        central_groups(32, 1000.0)
    lag0, lag4 = (
        scenario_of(RIVALS[f"central-lag{lag}"], GROUNDS["specialised"], 2, 1, 60, ["m"])
        for lag in (0, 4)
    )
    assert (lag0.nodes, lag0.samplers, lag0.families_per_node, lag0.behind) == (1, 2, 4, 0)
    assert lag4.behind == 3
    found = settings_of(CENTRAL[0], GROUNDS["dense"], 8, 18.0)
    assert (found["experience.local"], found["experience.external"]) == (36, 0)
    assert found["experience.max_staleness"] == 0


def test_a_level_is_reached_between_two_measurements_or_never() -> None:
    run = PILOT[0]
    assert needed(run, 0.3) == pytest.approx(150)
    assert needed(run, 0.0) == 0
    assert needed(run, 0.5) == math.inf
    assert needed(run, 0.3, run.everybodys) == pytest.approx(1200)
    assert reward_at(run, 50) == pytest.approx(0.1)
    assert reward_at(run, 1e6) == 0.4


def test_the_rule_takes_the_best_at_equal_answers_and_the_quickest_to_each_level() -> None:
    choice = choose(PILOT)
    assert choice.answers == {2: 20.0, 8: 10.0}
    assert choice.budget == 200
    assert choice.levels == [0.1, 0.2, 0.3, 0.36]
    assert choice.solo == ["solo-4x2", "solo-8x4", "solo-64x8"]
    assert choose(PILOT, [0.05]).solo == choice.solo
    with pytest.raises(ConfigError, match="lacks"):
        choose(PILOT[:1])


def test_the_best_solo_arm_is_that_at_the_answers_of_a_node_of_the_swarm() -> None:
    runs = {run.arm: [run] for run in PILOT if run.nodes != 2}
    gains, arm = solo_gain(runs)
    assert arm == "solo-4x2", "solo-64x8 is the best in the end only"
    assert gains == pytest.approx([0.4 - reward_at(runs[arm][0], 200)])
    assert solo_gain({"default": [PILOT[0]]}) == ([], "")


def test_a_run_is_claimed_by_one_and_a_broken_file_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "pilot-dense-default-n8-s0.json"
    others: list[bool] = []

    def second() -> None:
        with claimed(path) as mine:
            others.append(mine)

    with claimed(path) as mine:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    second()
    assert (mine, others) == (True, [False, True])
    write_raw(PILOT[0], tmp_path)
    key = key_of(PILOT[0])
    assert find_raw(tmp_path, key) == PILOT[0]
    assert path.stat().st_size < 1000
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:50])
    assert find_raw(tmp_path, key) is None
    with pytest.raises(SwarmNodeError, match="whole run"):
        all_raw(tmp_path, "pilot", "dense")


def test_packed_runs_are_read_and_a_file_beside_them_counts(tmp_path: Path) -> None:
    for run in PILOT:
        write_raw(run, tmp_path)
    found = all_raw(tmp_path, "pilot", "dense")
    archive = pack(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [archive.name]
    assert all_raw(tmp_path, "pilot", "dense") == found
    assert all_raw(tmp_path, "final", "dense") == []
    again = msgspec.structs.replace(PILOT[0], cpu=9.0)
    write_raw(again, tmp_path)
    assert again in all_raw(tmp_path, "pilot", "dense")
    pack(tmp_path)
    assert packed(tmp_path)[key_of(again).file] == again
    archive.write_bytes(archive.read_bytes()[:-9])
    with pytest.raises(SwarmNodeError, match="no archive"):
        all_raw(tmp_path, "pilot", "dense")


def test_a_packed_run_is_not_made_again(tmp_path: Path) -> None:
    whole = Frontier("pilot", ("dense",), (2,), ("default",), tmp_path, tmp_path / "models")
    ((place, _),) = whole.places()
    run = raw("default", 2, 0, [0, 200, 400], [0.0, 0.2, 0.4])
    write_raw(msgspec.structs.replace(run, seed=place.seed), tmp_path)
    before = pack(tmp_path).read_bytes()
    whole.run()
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["runs.jsonl.xz"]
    assert (tmp_path / "runs.jsonl.xz").read_bytes() == before


def test_a_constant_is_the_most_frequent_answer() -> None:
    found = best_constants("drills", {}, 8)
    assert len(found) == 9
    assert all(0 <= constant.reward <= 1 and constant.answer for constant in found.values())
    assert all(constant.reward <= 0.25 for constant in found.values())  # 8 tasks each


@pytest.mark.slow(reason="simulates a pilot and a final of two nodes each")
def test_a_pilot_decides_and_a_final_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    for module in ("frontier", "frontier_arms", "frontier_choice", "frontier_tables"):
        monkeypatch.setattr(f"research.{module}.SIZE", 2)
    monkeypatch.setattr(frontier_arms, "EVAL_TASKS", 1)

    def small(stage: str, *arms: str) -> Frontier:
        return Frontier(stage, ("dense",), (2,), arms, tmp_path, tmp_path / "models", 2, 0, 1)

    with pytest.raises(ConfigError, match="is decided"):
        small("final").run()
    pilot = small("pilot", "default", "default-long", "solo-8x4")
    pilot.run()
    pilot.decide()
    choice = read_choices(tmp_path)["dense"]
    assert choice.answers[2] > 0
    solo = choice.solo[0]
    final = small("final", "default", "central-lag0", "central-lag2", "default+past", solo)
    final.run()
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("final-*.json")}
    assert len(made) == 10
    capsys.readouterr()
    final.run()
    assert capsys.readouterr().out == ""
    assert made == {path: path.stat().st_mtime_ns for path in tmp_path.glob("final-*.json")}
    runs = {(run.arm, run.index): run for run in all_raw(tmp_path, "final", "dense")}
    central, swarm = runs["central-lag0", 0], runs["default", 0]
    assert central.learners == 1
    assert central.weights > 50 * swarm.bytes
    expected = central_groups(2, choice.answers[2]) * 4
    assert central.answers[-1] == 2 * expected
    for name in ("ends", "levels", "claims", "sizes", "prediction"):
        show_tables(final, name)
    shown = capsys.readouterr().out
    for word in ("default / best solo", "2 nodes", "Holm", "formula", "1/"):
        assert word in shown
    show_picture(final, tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 10_000


@pytest.mark.slow(reason="starts a process that imports torch")
def test_a_run_is_over_once_its_helpers_are(tmp_path: Path) -> None:
    Frontier("pilot", ("dense",), (), ("default",), tmp_path, tmp_path).run(jobs=2)
    assert multiprocessing.active_children() == []


@pytest.mark.slow(reason="starts two processes that import torch")
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux tells of a parent's death")
def test_a_helper_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "research", "frontier", "--regimes", "dense"]
    options = ["--sizes", "16,32", "--arms", "default", "--jobs", "2", "--raw", str(tmp_path)]
    with subprocess.Popen([*command, *options], cwd=ROOT) as main:
        try:
            helpers: list[psutil.Process] = []
            while main.poll() is None and not helpers:
                time.sleep(0.2)
                children = psutil.Process(main.pid).children()
                # A helper has the signal set once its first line has run; a claim shows that.
                claims = list(tmp_path.iterdir())
                with suppress(psutil.NoSuchProcess):  # git, which tells the commit, is short
                    said = {child: str(child.cmdline()) for child in children}
                    helpers = [
                        child for child in said if "spawn_main" in said[child] and claims[1:]
                    ]
        finally:
            main.kill()
    assert helpers
    assert psutil.wait_procs(helpers, timeout=30)[1] == []


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    def small(stage: str, regime: str, *arms: str) -> Frontier:
        return Frontier(stage, (regime,), (2,), arms, tmp_path, tmp_path)

    for wrong in (("third", "dense"), ("pilot", "easy"), ("pilot", "dense", "solo-5x5")):
        with pytest.raises(ConfigError):
            small(*wrong)
    with pytest.raises(ConfigError, match="for dense"):
        show_tables(small("pilot", "dense"), "levels")
    with pytest.raises(ConfigError, match="no table"):
        show_tables(small("pilot", "dense"), "best")
    (tmp_path / "declared.json").write_text("{")
    with pytest.raises(ConfigError, match="no decisions"):
        read_choices(tmp_path)


def test_every_run_says_which_seed_it_has(tmp_path: Path) -> None:
    whole = Frontier("pilot", ("dense", "unlike"), (2, 8), (), tmp_path, tmp_path)
    places = [place for place, _ in whole.places()]
    assert len({place.file for place in places}) == len(places) == (60 + 3) + (36 + 3)
    assert len({place.seed for place in places}) == 1
    assert DEFAULT.name in {place.arm for place in places}
    assert {place.nodes for place in places if place.arm == SOURCE.name} == {2}
    assert msgspec.structs.asdict(places[0])["stage"] == "pilot"


def test_a_renamed_field_makes_no_stored_run_anew() -> None:
    now = {"families_per_node": 2, "message_loss": 0.1, "nodes": 4}
    first = {"specialised": 2, "loss": 0.1, "nodes": 4}
    content = msgspec.json.encode({"plan": first, "split": 1}, order="sorted")
    assert plan_digest({"plan": now, "split": 1}) == hashlib.sha256(content).hexdigest()
