"""Each data set is imported alone; all of them together are the package's."""

from __future__ import annotations

import importlib.util
import json

import pytest
from builders import printed_by

from swarm_node.environments.reasoning_gym import data_sets

IMPORTED = """
import json, sys
from swarm_node.environments.reasoning_gym.environment import create
print(json.dumps([
    [create(preset=preset).name, sorted({"sympy", "matplotlib", "PIL"} & sys.modules.keys())]
    for preset in ("chat", "sapo")
]))
"""
WHOLE = """
import json
import reasoning_gym.factory
print(json.dumps({
    name: [f"{part.__module__}.{part.__qualname__}" for part in parts]
    for name, parts in reasoning_gym.factory.DATASETS.items()
}))
"""
needs_all = pytest.mark.skipif(
    importlib.util.find_spec("pycosat") is None,
    reason="NOT RUN: needs pycosat, which pip compiles (Debian: gcc libc6-dev python3-dev)",
)


def test_no_preset_imports_sympy_or_matplotlib() -> None:
    assert json.loads(printed_by(IMPORTED)) == [["reasoning_gym", []]] * 2


@needs_all
@pytest.mark.slow(reason="imports all data sets, and with them sympy and matplotlib, twice")
def test_a_data_set_imported_alone_is_that_of_the_whole_package() -> None:
    whole = json.loads(printed_by(WHOLE))
    found = {name: data_sets.find(name) for name in reversed(data_sets.names())}
    assert {
        name: [f"{part.__module__}.{part.__qualname__}" for part in parts or ()]
        for name, parts in found.items()
    } == whole


@pytest.mark.slow(reason="starts a process for each data set")
@pytest.mark.parametrize("name", ["gsm_symbolic", "acre", "list_functions", "gcd", "sokoban"])
def test_a_data_set_imports_no_other_room(name: str) -> None:
    program = (
        "import sys\n"
        "from swarm_node.environments.reasoning_gym import data_sets\n"
        "data_sets.find(sys.argv[1])\n"
        "from reasoning_gym.factory import create_dataset\n"
        "data_set = create_dataset(sys.argv[1], seed=1, size=10)\n"
        "unwanted = {'pycosat', 'pytz', 'zss'} & sys.modules.keys()\n"
        "print(len(data_set[0]['question']), sorted(unwanted))"
    )
    length, _, imported = printed_by(program, name).strip().partition(" ")
    assert (int(length) > 10, imported) == (True, "[]")


@pytest.mark.parametrize("name", ["no_such_set", "", "../arc", "random"])
def test_a_name_without_a_data_set(name: str) -> None:
    assert data_sets.find(name) is None
