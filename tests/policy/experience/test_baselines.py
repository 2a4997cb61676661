"""What is remembered of a task's groups, and for how long."""

from __future__ import annotations

from builders import verified

from swarm_node.policy.experience.baselines import MOST_GROUPS, Baselines
from swarm_node.rollout import PolicyRef, Provenance

WRONG, RIGHT = (0.0, 0.0), (1.0, 1.0)


def test_own_and_kin_are_one_class_and_each_foreign_model_another() -> None:
    known = Baselines(8)
    mine, kin = verified("a", rewards=WRONG), verified("b", "kin", rewards=RIGHT)
    foreign = [
        verified(f"f{author}{model}", author, provenance=Provenance.FOREIGN, rewards=(0.5, 0.5),
                 policy=PolicyRef(model * 32, b"t" * 32, 0))
        for author, model in (("x", b"x"), ("y", b"y"), ("z", b"x"))
    ]  # fmt: skip
    for group in (mine, kin, *foreign):
        known.note(group)
    assert known.beside(mine, 0, 32) == RIGHT
    assert known.beside(kin, 0, 32) == WRONG
    assert [known.beside(group, 0, 32) for group in foreign] == [(0.5, 0.5), (), (0.5, 0.5)]
    assert known.beside(verified("other", seed=1), 0, 32) == ()


def test_an_author_counts_once_and_nobody_fills_a_task_alone() -> None:
    known = Baselines(8)
    mine = verified("a", rewards=WRONG)
    for number in range(50):
        known.note(verified(f"k{number}", "kin", rewards=(float(number),)))
    assert known.beside(mine, 0, 32) == (0.0,)
    for number in range(50):
        known.note(verified(f"s{number}", f"sybil {number}", rewards=(1.0,)))
    assert known.beside(mine, 0, 32) == (0.0, *[1.0] * (MOST_GROUPS - 1))


def test_what_came_too_long_ago_no_longer_counts() -> None:
    known = Baselines(8)
    known.note(verified("k", "kin", rewards=RIGHT, arrived=10))
    mine = verified("a")
    assert known.beside(mine, 14, 4) == RIGHT
    assert known.beside(mine, 15, 4) == ()


def test_only_so_many_tasks_are_remembered() -> None:
    known = Baselines(2)
    for seed in (0, 1, 0, 2):
        known.note(verified(f"{seed}", f"kin {seed}", seed=seed, rewards=RIGHT))
    assert [known.beside(verified(seed=seed), 0, 9) for seed in (0, 1, 2)] == [RIGHT, (), RIGHT]
