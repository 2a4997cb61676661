"""Tasksets of the verifiers package as an environment; the package itself is optional."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from environments.tasks import ref_to
from lasting import started

from swarm_node.environments.adapters.verifiers_tasks import create
from swarm_node.errors import ConfigError

TASKSET = """
import verifiers.v1 as vf

__all__ = ["SumTaskset"]


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == str(self.data.answer))


class SumConfig(vf.TasksetConfig):
    terms: int = 40


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for n in range(self.config.terms):
            yield SumTask(SumData(prompt=f"{n} + {n}?", answer=2 * n), self.config.task)
"""
BOXED = TASKSET.replace("    @vf.reward", "    NEEDS_CONTAINER = True\n\n    @vf.reward")

needs_verifiers = pytest.mark.skipif(
    importlib.util.find_spec("verifiers") is None, reason="pip install '.[verifiers]'"
)


@pytest.fixture
def tasksets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tasksets that can be imported here and in child processes."""
    (tmp_path / "swarm_sums.py").write_text(TASKSET)
    (tmp_path / "swarm_boxed.py").write_text(BOXED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_without_the_package_it_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['verifiers'] = None  # as if it were not installed\n"
        "from swarm_node.environments.registry import create_environment\n"
        "from swarm_node.errors import ConfigError\n"
        "try:\n"
        "    create_environment('swarm_node.environments.adapters.verifiers_tasks:create', "
        "{'taskset': 'x', 'runs_no_code': True})\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "[verifiers]" in done.stdout, done.stderr


@pytest.mark.parametrize("word", [False, "true", 1])
def test_nothing_of_a_taskset_is_loaded_until_its_owner_vouches_for_it(word: object) -> None:
    with pytest.raises(ConfigError, match=r"options\.runs_no_code"):
        create("swarm_sums", runs_no_code=word)  # type: ignore[arg-type]


@needs_verifiers
@pytest.mark.filterwarnings("default")  # of that package's own imports
def test_a_taskset_is_sampled_and_judged(tasksets: Path) -> None:
    from swarm_node.errors import UnknownTaskError
    from swarm_node.rollout import HELD_OUT_SEED

    first, again = (create("swarm_sums", runs_no_code=True) for _ in range(2))
    smaller = create("swarm_sums", {"terms": 9}, runs_no_code=True)
    assert first.version == again.version != smaller.version
    prompts: dict[bool, set[str]] = {False: set(), True: set()}
    for seed in (*range(200), *range(HELD_OUT_SEED, HELD_OUT_SEED + 200)):
        ref = ref_to(first, seed=seed)
        task = first.derive(ref)
        prompts[ref.held_out].add(first.render(task))
    assert not prompts[False] & prompts[True]
    assert len(prompts[False] | prompts[True]) == 40
    right = str(2 * int(first.render(task).split()[0]))
    assert (first.score(task, f" {right}\n"), first.score(task, right + "1")) == (1.0, 0.0)
    with pytest.raises(UnknownTaskError, match="same files"):
        smaller.derive(ref)
    for name, options, message in (
        ("swarm_boxed", {}, "need a container"),
        ("swarm_sums", {"colour": 1}, "colour"),
        ("no_such_taskset", {}, "not found"),
    ):
        with pytest.raises(ConfigError, match=message):
            create(name, options, runs_no_code=True)


@needs_verifiers
async def test_a_taskset_runs_in_the_environments_process(tasksets: Path) -> None:
    from swarm_node.environments.host import ProcessEnvironmentHost

    host = ProcessEnvironmentHost(
        "swarm_node.environments.adapters.verifiers_tasks:create",
        {"taskset": "swarm_sums", "runs_no_code": True},
    )
    async with started(host) as info:
        ref = ref_to(info)
        (prompt,) = await host.render([ref])
        right = str(2 * int(prompt.split()[0]))
        judged = await host.score(ref, [right, "x"])
        assert (judged.rewards, judged.faults) == ((1.0, 0.0), 0)
