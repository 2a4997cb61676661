"""With a real child process, a real model and real kills."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import completion, same_tensors, trainer_settings, verified
from safetensors.torch import load_file
from trainers import closing

from swarm_node.errors import CheckpointError, ChildError, WeightsError
from swarm_node.policy.experience.batch import Batch, build_batch
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.training.checkpoints.checkpoint import read
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.process import ProcessTrainer
from swarm_node.policy.weights.canary import read_canary
from swarm_node.rollout import Provenance, VerifiedGroup

torch.set_num_threads(1)
SETTINGS = trainer_settings()
#: What the node says of the model, which no trainer hashes again.
DIGEST = b"d" * 32


def encode(text: str) -> list[int]:
    return [ord(letter) % 60 for letter in text]


def groups(seed: int) -> list[VerifiedGroup]:
    rng = np.random.default_rng(seed)
    return [group(rng, provenance) for provenance in Provenance]


def group(rng: np.random.Generator, provenance: Provenance) -> VerifiedGroup:
    completions = []
    for length in range(3, 7):
        ids = rng.integers(0, 60, length).tolist()
        answer = completion(ids, "an answer"[:length])
        completions.append(replace(answer, logprobs=np.full(length, -4.0, np.float32)))
    return verified(provenance=provenance, completions=completions, rewards=(0.0, 1.0, 0.0, 0.5))


def batch_of(seed: int) -> Batch:
    return build_batch(groups(seed), encode, encode, eos_id=63)


def loaded(path: Path) -> dict[str, torch.Tensor]:
    """A copy: the file goes away when the trainer is closed."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def places(home: Path, name: str) -> tuple[Path, Path]:
    """Of the checkpoints and the weights of a trainer."""
    weights = home / f"weights-of-{name}"
    weights.mkdir(mode=0o700)
    return home / f"checkpoints-of-{name}", weights


def process_trainer(model: Path, home: Path, name: str = "a") -> ProcessTrainer:
    return ProcessTrainer(model, *places(home, name), SETTINGS, digest=DIGEST)


def inline_trainer(model: Path, home: Path, name: str) -> InlineTrainer:
    return InlineTrainer(model, *places(home, name), SETTINGS, digest=DIGEST)


@pytest.mark.slow(reason="starts a trainer process, which imports torch")
async def test_an_update_publishes_new_weights_under_a_new_version(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(process_trainer(random_qwen2, tmp_path)) as trainer:
        path, version = await trainer.start()
        assert version == trainer.version == 0
        base = loaded(random_qwen2 / "model.safetensors")
        assert same_tensors(loaded(path), base)
        result = await trainer.update(batch_of(1))
        assert result.stats.skipped is None
        assert result.stats.version == trainer.version == 1
        # Four of our own, and of the two others' only the two that were good.
        assert result.stats.informative == 8
        assert not same_tensors(loaded(result.weights), base)
        changed = CausalLM.from_directory(random_qwen2)
        changed.load_hf_state(loaded(result.weights))
        assert read_canary(result.weights) == measure_canary(changed)
        assert read_canary(result.weights) != read_canary(path)
        idle = await trainer.update(Batch(()))
        assert idle.stats.skipped is not None
        assert (idle.weights, trainer.version) == (result.weights, 1)
    assert not (tmp_path / "weights-of-a").exists()
    assert trainer.pid is None


@pytest.mark.parametrize(
    ("published", "given", "expected"),
    [
        ("merged", "", "expandable_segments:True"),
        ("merged", "max_split_size_mb:64", "max_split_size_mb:64"),
        ("shared", "", "expandable_segments:True"),
        (
            "shared",
            "max_split_size_mb:64,expandable_segments:True",
            "max_split_size_mb:64,expandable_segments:True,expandable_segments:False",
        ),
    ],
)
def test_an_owners_allocator_settings_stay_but_that_shared_memory_never_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: str, given: str, expected: str
) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", given)
    settings = replace(SETTINGS, device="cuda", lora_rank=4, published=published)
    trainer = ProcessTrainer(tmp_path, tmp_path, tmp_path, settings)
    env = trainer._child._env
    assert env["PYTORCH_CUDA_ALLOC_CONF"] == env["PYTORCH_ALLOC_CONF"] == expected


@pytest.mark.slow(reason="starts a trainer process, which imports torch")
async def test_weights_that_cannot_be_written_are_an_error_that_no_restart_hides(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(process_trainer(random_qwen2, tmp_path)) as trainer:
        path, _ = await trainer.start()
        shutil.rmtree(path.parent)
        with pytest.raises(WeightsError, match=r"weights-of-a.*TMPDIR"):
            await trainer.update(batch_of(1))
        with pytest.raises(WeightsError, match=r"weights-of-a.*TMPDIR"):
            await trainer.start()


@pytest.mark.slow(reason="starts two trainer processes, which import torch")
async def test_a_killed_child_is_restarted_from_its_checkpoint_with_a_version_that_never_falls(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(process_trainer(random_qwen2, tmp_path)) as trainer:
        await trainer.start()
        stored = loaded((await trainer.update(batch_of(1))).weights)
        assert read(await trainer.checkpoint({"drawn": 5})).model == DIGEST
        await trainer.update(batch_of(2))
        first = trainer.pid
        assert first is not None
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(fails_as_child(trainer))
            # Stopped, the child cannot have answered before the kill reaches it.
            os.kill(first, signal.SIGSTOP)
            await asyncio.sleep(0)
            os.kill(first, signal.SIGKILL)
        assert "died" in failing.result()
        with pytest.raises(ChildError, match="not running"):
            await trainer.update(batch_of(3))
        path, version = await trainer.start()
        assert trainer.pid not in (None, first)
        assert version == trainer.version == 2
        assert trainer.extra == {"drawn": 5}
        assert same_tensors(loaded(path), stored)
        result = await trainer.update(batch_of(3))
        assert result.stats.version == 3
        assert loaded(result.weights)


@pytest.mark.slow(reason="starts four trainer processes, which import torch")
async def test_killed_while_it_writes_it_resumes_from_what_was_acknowledged_or_newer(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(process_trainer(random_qwen2, tmp_path)) as trainer:
        await trainer.start()
        for kill in range(3):
            await trainer.update(batch_of(kill))
            await trainer.checkpoint({"acknowledged": kill})
            path = (await trainer.update(batch_of(kill + 1))).weights
            written = await trainer.checkpoint({"begun": kill}, wait=False)
            assert trainer.pid is not None
            await asyncio.sleep(0.005 * kill)
            os.kill(trainer.pid, signal.SIGKILL)
            await trainer.start()
            assert trainer.extra == (
                {"begun": kill} if written.exists() else {"acknowledged": kill}
            )
        assert loaded(path)


@pytest.mark.slow(reason="starts a trainer process, which imports torch")
async def test_a_full_disk_costs_the_checkpoint_and_not_the_trainer(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(process_trainer(random_qwen2, tmp_path)) as trainer:
        await trainer.start()
        await trainer.update(batch_of(1))
        kept = await trainer.checkpoint({})
        assert trainer.pid is not None
        resource.prlimit(trainer.pid, resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))
        await trainer.checkpoint({}, wait=False)
        with pytest.raises(ChildError, match="too large"):
            await trainer.checkpoint({})
        resource.prlimit(
            trainer.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        result = await trainer.update(batch_of(2))
        assert result.stats.version == 2
        assert result.checkpoint_fault is not None
        assert "too large" in result.checkpoint_fault
        assert (await trainer.update(batch_of(3))).checkpoint_fault is None
        assert list((tmp_path / "checkpoints-of-a").iterdir()) == [kept]
        assert loaded(result.weights)


async def fails_as_child(trainer: ProcessTrainer) -> str:
    with pytest.raises(ChildError) as caught:
        await trainer.update(batch_of(3))
    return str(caught.value)


@pytest.mark.slow(reason="starts trainer processes, which import torch")
async def test_resumed_in_a_process_it_trains_as_in_line_without_having_stopped(
    random_qwen2: Path, tmp_path: Path
) -> None:
    straight = inline_trainer(random_qwen2, tmp_path, "straight")
    stopped = process_trainer(random_qwen2, tmp_path, "stopped")
    async with closing(straight), closing(stopped):
        for trainer in (straight, stopped):
            await trainer.start()
        for seed in (1, 2, 3):
            if seed == 3:
                await stopped.checkpoint({})
                await stopped.start()
            wanted = await straight.update(batch_of(seed))
            result = await stopped.update(batch_of(seed))
            assert result.stats.version == seed
            assert same_tensors(loaded(result.weights), loaded(wanted.weights))


async def test_a_new_trainer_on_the_same_checkpoints_resumes(
    random_qwen2: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    found = []
    for name in ("first", "second"):
        weights = tmp_path / name
        weights.mkdir()
        async with closing(InlineTrainer(random_qwen2, checkpoints, weights, SETTINGS)) as trainer:
            _, version = await trainer.start()
            await trainer.update(batch_of(1))
            await trainer.checkpoint({"name": name})
            found.append((version, trainer.extra))
    assert found == [(0, {}), (1, {"name": "first"})]


async def test_a_checkpoint_that_is_not_said_to_go_on_alone_is_waited_for(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(inline_trainer(random_qwen2, tmp_path, "a")) as trainer:
        await trainer.start()
        (tmp_path / "checkpoints-of-a").write_text("in the way")
        with pytest.raises(CheckpointError, match="cannot write"):
            await trainer.checkpoint({})


@pytest.mark.slow(reason="starts a trainer process, which imports torch")
async def test_an_error_in_the_child_is_reported_and_the_child_lives(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(process_trainer(random_qwen2, tmp_path)) as trainer:
        with pytest.raises(ChildError, match="not running"):
            await trainer.update(batch_of(1))
        await trainer.start()
        pid = trainer.pid
        with pytest.raises(ChildError, match="extra state"):
            await trainer.checkpoint({"blob": b"x" * (1 << 21)})
        assert (await trainer.update(batch_of(1))).stats.version == 1
        assert trainer.pid == pid


@pytest.mark.slow(reason="starts a trainer process, which imports torch")
async def test_a_model_that_is_not_there_is_reported(tmp_path: Path) -> None:
    async with closing(process_trainer(tmp_path / "missing", tmp_path)) as trainer:
        with pytest.raises(ChildError, match="ModelError"):
            await trainer.start()


async def test_damaged_checkpoints_stop_the_start_instead_of_starting_over(
    random_qwen2: Path, tmp_path: Path
) -> None:
    async with closing(inline_trainer(random_qwen2, tmp_path, "a")) as trainer:
        await trainer.start()
        path = await trainer.checkpoint({})
        (path / "state.msgpack").unlink()
        with pytest.raises(CheckpointError, match="no checkpoint"):
            await trainer.start()
