"""Two real trainer processes that share one policy, launched as on a machine with two GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from builders import trainer_settings, write_model
from safetensors.torch import load_file
from trainers import closing
from transports import until

from swarm_node.errors import ChildError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.launching import rank_environment
from swarm_node.policy.training.processes.process import ProcessTrainer, Trainer
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.training.update.stats import UpdateStats
from swarm_node.process import ReportedError
from swarm_node.rollout import Provenance

torch.set_num_threads(1)
#: Micro-batches so small that the two processes have several, and not equally many.
# At this temperature some of the peers' answers are unlikely after few own ones.
SETTINGS = trainer_settings(
    warmup_updates=0, learning_rate=1e-2, micro_batch_tokens=40, temperature=2.0
)
UPDATES = 5
pytestmark = pytest.mark.slow(reason="starts processes that import torch and train together")
AS_RESUMED = pytest.mark.nightly(reason="test_resume.py compares one update of two with one's")


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    # The second prompt is worth computing once for its answers, the others are not.
    prompts = [rng.integers(0, 63, size).astype(np.uint32) for size in (3, 18, 1)]
    rows = []
    for n in range(7):
        length = int(rng.integers(2, 20)) if n // 3 != 1 else int(rng.integers(2, 6))
        own = n % 2 == 0
        rows.append(
            TrainRow(
                prompts[n // 3],
                rng.integers(0, 63, length).astype(np.uint32),
                rng.normal(-1.5, 0.3, length).astype(np.float32) if own else None,
                float(rng.normal()),
                Provenance.LOCAL if own else Provenance.SAME_MODEL,
                group=n // 3,
            )
        )
    return Batch(tuple(rows))


def trainer(model: Path, home: Path, name: str, settings: TrainerSettings) -> Trainer:
    weights = home / f"weights-of-{name}"
    weights.mkdir(mode=0o700)
    kind = ProcessTrainer if settings.processes > 1 else InlineTrainer
    return kind(model, home / "checkpoints", weights, settings)


async def curve(
    of: Trainer, seeds: Sequence[int], store: bool = False
) -> tuple[list[UpdateStats], Path]:
    """The statistics of an update per seed, and a copy of the weights after them."""
    async with closing(of):
        path, _ = await of.start()
        done = []
        for seed in seeds:
            result = await of.update(batch(seed))
            done.append(result.stats)
            path = result.weights
        kept = path.parent.parent / f"{path.parent.name}.safetensors"
        kept.write_bytes(path.read_bytes())
        if store:
            await of.checkpoint({"seeds": len(seeds)})
        return done, kept


def assert_alike(
    ours: tuple[list[UpdateStats], Path], theirs: tuple[list[UpdateStats], Path]
) -> None:
    for one, other in zip(ours[0], theirs[0], strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-5)
        assert one.grad_norm == pytest.approx(other.grad_norm, abs=1e-5, rel=1e-4)
        for name in ("version", "rows", "informative", "implausible", "unlikely", "skipped"):
            assert getattr(one, name) == getattr(other, name)
        assert one.mismatch_kl == pytest.approx(other.mismatch_kl, abs=1e-4)
        assert one.entropy == pytest.approx(other.entropy, rel=1e-4)
    left, right = load_file(ours[1]), load_file(theirs[1])
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=AS_RESUMED),
        {"loss": "tba", "activation_checkpointing": True},
        {"lora_rank": 4},
    ],
    ids=["all weights", "with a reference", "an adapter"],
)
async def test_two_processes_learn_as_one_does(
    random_qwen2: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    alone = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    one = await curve(trainer(random_qwen2, tmp_path, "one", alone), range(UPDATES))
    both = replace(alone, processes=2)
    two = await curve(trainer(random_qwen2, tmp_path, "two", both), range(UPDATES))
    assert len(two[0]) == UPDATES
    assert any(stats.unlikely for stats in one[0])
    assert_alike(two, one)


@AS_RESUMED
async def test_each_goes_on_from_the_checkpoint_of_the_other(
    random_qwen2: Path, tmp_path: Path
) -> None:
    both = replace(SETTINGS, processes=2)
    for home in ("straight", "there", "back"):
        (tmp_path / home).mkdir()
    straight = await curve(trainer(random_qwen2, tmp_path / "straight", "one", SETTINGS), range(4))
    for home, kinds in (("there", (both, SETTINGS)), ("back", (SETTINGS, both))):
        for name, settings, seeds in zip("ab", kinds, ((0, 1), (2, 3)), strict=True):
            running = trainer(random_qwen2, tmp_path / home, name, settings)
            done, weights = await curve(running, seeds, store=True)
            assert_alike((done, weights), ([straight[0][seed] for seed in seeds], weights))
        assert_alike((done, weights), (straight[0][2:], straight[1]))


async def test_a_damaged_checkpoint_is_an_error_that_all_live_on_after(
    random_qwen2: Path, tmp_path: Path
) -> None:
    running = trainer(random_qwen2, tmp_path, "two", replace(SETTINGS, processes=2))
    damaged = tmp_path / "checkpoints" / "v0000000001"
    damaged.mkdir(parents=True)

    async with closing(running):
        with pytest.raises(ReportedError, match="verifies"):
            await running.start()
        with pytest.raises(ReportedError, match="be Start"):
            await running.update(batch(0))


#: Prints how far the peak of the resident memory rises while a model is loaded.
LOADING = """
import re, sys
from pathlib import Path
import torch
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.training.processes.sharded import Group

def resident(kind):
    return int(re.search(kind + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

small, large, meeting = map(Path, sys.argv[1:])
group = Group(meeting)
group.load_sharded(small, ON_CPU)  # imports what loading needs
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = resident("VmRSS")
model = group.load_sharded(large, ON_CPU)
print(resident("VmHWM") - before)
group.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_process_reads_its_part_only(random_qwen2: Path, tmp_path: Path) -> None:
    for name in ("large", "meeting"):
        (tmp_path / name).mkdir()
    large = write_model(
        tmp_path / "large", hidden_size=768, intermediate_size=3072, num_hidden_layers=4
    )
    size = (large / "model.safetensors").stat().st_size
    both = [
        subprocess.Popen(
            [sys.executable, "-c", LOADING, random_qwen2, large, tmp_path / "meeting"],
            env={**os.environ, **rank_environment(), "RANK": str(index), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
        )
        for index in range(2)
    ]
    for process in both:
        told, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        # Half of the file is mapped and half of the weights are held; it was all of both.
        assert 0.5 * size < int(told) < 1.25 * size


def rank(of: ProcessTrainer, index: int) -> psutil.Process:
    """Process number `index` of those that train; the launcher for -1."""
    assert of.pid is not None
    launcher = psutil.Process(of.pid)
    if index < 0:
        return launcher
    return next(
        process for process in launcher.children() if process.environ().get("RANK") == str(index)
    )


@pytest.mark.parametrize(
    "victims",
    [(1, -1), pytest.param((0,), marks=pytest.mark.nightly(reason="the same with another rank"))],
    ids=["the second and the launcher", "the first"],
)
async def test_when_one_is_killed_all_end_and_start_again_from_the_checkpoint(
    random_qwen2: Path, tmp_path: Path, victims: tuple[int, ...]
) -> None:
    running = trainer(random_qwen2, tmp_path, "two", replace(SETTINGS, processes=2))
    assert isinstance(running, ProcessTrainer)

    async def kill(victim: int) -> None:
        old = [rank(running, index) for index in (-1, 0, 1)]
        # Stopped, it cannot have answered before the kill.
        os.kill(old[1].pid, signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(fails(running))
            await asyncio.sleep(0)
            os.kill(old[1 + victim].pid, signal.SIGKILL)
            # Those of a dead launcher are ended a moment later, and must not answer until then.
            await until(lambda: ended(old[1 if victim < 0 else 1 + victim]))
            with contextlib.suppress(ProcessLookupError):
                os.kill(old[1].pid, signal.SIGCONT)
        assert "died" in failing.result()
        gone, alive = psutil.wait_procs(old, timeout=60)
        assert (len(gone), alive) == (3, [])

    async with closing(running):
        await running.start()
        path = (await running.update(batch(0))).weights
        stored = {name: value.clone() for name, value in load_file(path).items()}
        await running.checkpoint({"drawn": 5})
        with pytest.raises(ChildError, match="extra state"):  # an error, and all live on
            await running.checkpoint({"blob": b"x" * (1 << 21)})
        for version, victim in enumerate(victims, start=2):
            assert (await running.update(batch(1))).stats.version == version
            await kill(victim)
            path, published = await running.start()
            assert published == running.version == version
            assert running.extra == {"drawn": 5}
            resumed = load_file(path)
            assert all(torch.equal(resumed[name], stored[name]) for name in stored)
        assert (await running.update(batch(2))).stats.version == 2 + len(victims)
    assert not (tmp_path / "weights-of-two").exists()


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def fails(of: Trainer) -> str:
    with pytest.raises(ChildError) as caught:
        await of.update(batch(3))
    return str(caught.value)


@pytest.mark.nightly(reason="test_gradient.py halves micro-batches in one process")
async def test_out_of_memory_it_goes_on_with_smaller_micro_batches(
    random_qwen2: Path, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, processes=2, micro_batch_tokens=1 << 20)
    running = trainer(random_qwen2, tmp_path, "two", settings)
    assert isinstance(running, ProcessTrainer)
    ids = np.arange(1, 40, dtype=np.uint32)
    large = Batch(
        tuple(TrainRow(ids[:4], ids, None, (-1.0) ** n, Provenance.LOCAL) for n in range(1000))
    )

    async with closing(running):
        await running.start()
        await running.update(batch(0))
        second = rank(running, 1)
        free = second.memory_info().vms + (48 << 20)
        resource.prlimit(second.pid, resource.RLIMIT_AS, (free, free))
        with pytest.raises(ChildError, match="died"):
            await running.update(large)
        await running.start()
        stats = (await running.update(large)).stats
        assert stats.rows == 1000
        assert 1000 < stats.micro_batch_tokens < 30_000
