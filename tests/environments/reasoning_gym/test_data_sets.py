"""Each data set is imported alone; all of them together are the package's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from swarm_node.environments.reasoning_gym import data_sets

IMPORTED = """
import json, sys
from swarm_node.environments.reasoning_gym.environment import create
print(json.dumps([
    [create(preset=preset).name, sorted({"sympy", "matplotlib", "PIL"} & sys.modules.keys())]
    for preset in ("chat", "sapo")
]))
"""
ONE_BY_ONE = """
import sys
from swarm_node.environments.reasoning_gym import data_sets
alone = {name: data_sets.find(name) for name in sys.argv[1:]}
import reasoning_gym.factory
whole = data_sets.names()
print(len(whole), alone == {name: reasoning_gym.factory.DATASETS[name] for name in sys.argv[1:]})
"""


def run(code: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    ).stdout


def test_no_preset_imports_sympy_or_matplotlib() -> None:
    assert json.loads(run(IMPORTED)) == [["reasoning_gym", []]] * 2


def test_a_data_set_imported_alone_is_that_of_the_whole_package() -> None:
    every = data_sets.names()
    assert run(ONE_BY_ONE, *every).split() == [str(len(every)), "True"]


@pytest.mark.parametrize("name", ["no_such_set", "", "../arc", "random"])
def test_a_name_without_a_data_set(name: str) -> None:
    assert data_sets.find(name) is None
