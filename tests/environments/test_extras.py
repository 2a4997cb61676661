"""The program without the packages of its extras: in an environment that does not have them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from builders import ROOT

from swarm_node.environments.extras import EXTRAS, installed_extras, refusal

NEEDED = "environment.name: reasoning-gym is not installed"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with everything that is installed here but reasoning-gym."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, with_pip=False)
    packages = next(place.glob("lib/python*/site-packages"))
    for directory in [Path(part) for part in sys.path if Path(part).name == "site-packages"]:
        for entry in directory.iterdir():
            # Other .pth files name directories, which may hold the package again.
            foreign = entry.suffix == ".pth" and not entry.name.startswith("__editable__")
            target = packages / entry.name
            if not (foreign or entry.name.startswith("reasoning_gym") or target.exists()):
                target.symlink_to(entry)
    return place / "bin" / "python"


def said(python: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of `swarm-node WORDS`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [python, "-m", "swarm_node", *words],
        env={**kept, "COLUMNS": "400", **variables},
        cwd=python.parent,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow(reason="makes an environment, and runs two commands in it")
def test_the_program_runs_without_reasoning_gym(bare_python: Path) -> None:
    looked = [bare_python, "-c", "import importlib.util as u; print(u.find_spec('reasoning_gym'))"]
    assert subprocess.run(looked, capture_output=True, text=True).stdout == "None\n"
    code, shown = said(bare_python, "--help")
    assert (code, "join" in shown) == (0, True)
    code, shown = said(bare_python, "config", "--set", "environment.name=reasoning_gym")
    assert (code, "environment.name" in shown) == (0, True), shown


@pytest.mark.slow(reason="three commands, two of which load torch")
def test_a_start_without_reasoning_gym_is_refused_by_name(
    bare_python: Path, tmp_path: Path
) -> None:
    chosen = ("--set", "environment.name=reasoning_gym")
    code, shown = said(bare_python, "env", "check", "reasoning_gym")
    assert (code, NEEDED in shown) == (1, True), shown
    code, shown = said(bare_python, "join", "--model", "tiny", "--home", str(tmp_path), *chosen)
    assert (code, "'.[reasoning-gym]'" in shown) == (1, True), shown
    assert "Traceback" not in shown
    code, shown = said(bare_python, "doctor", "--model", "tiny", "--home", str(tmp_path), *chosen)
    assert (code, "environment.name" in shown) == (1, True), shown


@pytest.mark.slow(reason="makes an environment")
def test_a_peers_environment_is_named_by_its_version_without_the_package(bare_python: Path) -> None:
    program = (
        "from swarm_node.environments.presets import environment_name as n\n"
        "from swarm_node.environments.splits.split import with_split\n"
        "print(n('reasoning_gym', with_split('0.1.25-2-abc')))\n"
    )
    done = subprocess.run([bare_python, "-c", program], capture_output=True, text=True)
    assert done.stdout == "reasoning_gym 0.1.25-2-abc\n", done.stderr


def test_pins_of_the_refusal_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = re.findall(r"[\w-]+==[\d.]+", refusal("reasoning_gym"))
    constraints = (ROOT / "constraints.txt").read_text().replace("_", "-")
    assert project["optional-dependencies"]["reasoning-gym"] == [pins[0]]
    assert all(f"\n{pin}\n" in constraints for pin in pins)
    named = [re.findall(r"\.\[([\w-]+)\]", extra.remedy) for extra in EXTRAS.values()]
    assert all(extras[0] in project["optional-dependencies"] for extras in named)
    assert not any("reasoning" in dependency for dependency in project["dependencies"])
    page = (ROOT / "docs" / "environments.md").read_text()
    assert f"pip install --no-deps {' '.join(pins)}" in page


def test_what_is_installed_is_found() -> None:
    assert "reasoning_gym" in installed_extras()


@pytest.mark.slow(reason="a process of its own imports the package")
def test_the_data_set_that_needs_pycosat_says_so() -> None:
    """In a process of its own, which has not imported it, and where pycosat is hidden."""
    program = (
        "import sys\n"
        "sys.modules['pycosat'] = None  # as if it were not installed\n"
        "from swarm_node.environments.reasoning_gym.environment import choosable, create\n"
        "from swarm_node.errors import ConfigError\n"
        "for preset in ('chat', 'sapo'):\n"
        "    create(preset=preset)\n"
        "print(len(choosable()), 'zebra_puzzles' in choosable())\n"
        "try:\n"
        "    create(datasets={'zebra_puzzles': {}})\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    counted, told = done.stdout.splitlines()
    assert counted == "96 False"
    assert "datasets.zebra_puzzles" in told
    assert "install pycosat" in told
