"""The experiment with attackers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from research.attack import Attack
from swarm_node.errors import ConfigError
from swarm_node.policy.models.model import resolve

SMALL = Attack(
    nodes=3, rounds=3, seeds=1, flags={}, plan="trigger", only=("no attacker", "large, guarded")
)


@pytest.mark.slow(reason="simulates two swarms and measures them as an experiment does")
def test_the_table_says_what_was_refused_and_of_whom(
    run_twice: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no cell is wrapped
    shown = run_twice(SMALL, "trigger-n3-r3/attack.png")
    figures, refused = (line.split() for line in shown.splitlines() if "large, guarded" in line)
    assert figures[-1] == "0.00%"
    assert int(refused[3]) > 0
    assert "too_large" in shown


def test_a_quarter_attacks_in_every_case_but_one(tmp_path: Path) -> None:
    cases = Attack(nodes=8, rounds=6, seeds=1, flags={}, plan="trigger").cases(tmp_path)
    scenarios = [case.scenario for case in cases.values()]
    assert [len(each.hostile) for each in scenarios] == [0, 2, 2, 2, 2, 2, 2]
    assert {each.nodes for each in scenarios} == {8}
    assert {each.eval_rounds for each in scenarios} == {3}, "measured halfway and at the end"
    # Elsewhere words before an answer make it wrong, so nobody would publish them.
    environments = {case.flags["environment.name"] for case in cases.values()}
    assert environments == {"research.lenient:create"}


@pytest.mark.slow(reason="builds two models and simulates two swarms")
def test_honest_nodes_are_held_against_a_swarm_without_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name in (
        "base-tiny-phrases-0.005-0.04-0.2-2500-0",
        "base-small-words-0.03-0.15-0.2-1000-0",
    ):
        shutil.copytree(resolve("tiny"), tmp_path / name)  # what stands there is not built again
    only = ("no attacker", "lazy, guarded", "a quarter missing", "half another model")
    plan = Attack(nodes=4, rounds=2, seeds=1, flags={}, plan="quarter", only=only)
    cases = plan.cases(tmp_path)
    assert [case.scenario.nodes for case in cases.values()] == [4, 4, 3, 4]
    assert [len(case.scenario.models) for case in cases.values()] == [1, 1, 1, 2]
    plan.run(tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (honest,) = (row for row in rows if row[:2] == ["no", "attacker"] and len(row) > 9)
    assert honest[3] == "1.000"


def test_an_unknown_plan_or_case_is_refused() -> None:
    with pytest.raises(ConfigError, match="trigger, quarter"):
        Attack(nodes=4, rounds=1, seeds=1, flags={}, plan="siege")
    with pytest.raises(ConfigError, match="large, guarded"):
        Attack(nodes=4, rounds=1, seeds=1, flags={}, plan="trigger", only=("huge",))
