"""The gradient loop in little memory: layers run again, and micro-batches that do not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from builders import ROOT, train_rows, trainer_settings, update_with_gradient, write_model

from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.update.ranks import Ranks
from swarm_node.policy.training.update.trainer import TrainerCore

torch.set_num_threads(1)
SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)


def saved_bytes(model: CausalLM) -> tuple[int, dict[str, torch.Tensor]]:
    """What the forward pass keeps for the backward pass, and the gradient."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = completion_logprobs(model, train_rows(), 1.0).sum()
    total.backward()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held = sum(size for place, size in kept.items() if place not in weights)
    return held, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_layers_run_again_give_the_same_gradient_from_less_memory(random_qwen2: Path) -> None:
    kept = CausalLM.from_directory(random_qwen2)
    again = CausalLM.from_directory(random_qwen2)
    again.recompute = True
    (large, expected), (small, got) = saved_bytes(kept), saved_bytes(again)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in got)
    assert small < 0.6 * large


@dataclass
class One(Ranks):
    """Process number `index` of `count`, which adds nothing of the others."""

    index: int
    count: int


def gradient(core: TrainerCore) -> dict[str, torch.Tensor]:
    return update_with_gradient(core, train_rows(3))[1]


def test_the_gradients_of_all_processes_add_up_to_that_of_one(random_qwen2: Path) -> None:
    """Also where a process has fewer micro-batches than another, or none."""
    settings = replace(SETTINGS, max_grad_norm=1e9, micro_batch_tokens=1)
    alone = gradient(TrainerCore(random_qwen2, settings))
    for count in (2, 4):
        shares = [
            gradient(TrainerCore(random_qwen2, settings, ranks=One(index, count)))
            for index in range(count)
        ]
        for name, expected in alone.items():
            added = sum((share[name] for share in shares), torch.zeros(()))
            torch.testing.assert_close(added, expected, rtol=1e-3, atol=1e-6)


#: Trains in a process that may not grow by more than `megabytes`: what does not fit, does not.
IN_LITTLE_MEMORY = """
import json, logging, resource, sys
from dataclasses import replace
import numpy as np, torch
from pathlib import Path
from swarm_node.errors import ModelError
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.rollout import Provenance

logging.basicConfig(level=logging.WARNING)
torch.set_num_threads(1)
directory, megabytes, length = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
settings = TrainerSettings.from_plain(json.loads(sys.argv[4]))
rng = np.random.default_rng(0)
batch = Batch(tuple(
    TrainRow(
        rng.integers(0, 63, 4).astype(np.uint32),
        rng.integers(0, 63, length).astype(np.uint32),
        None, (-1.0) ** n, Provenance.LOCAL,
    )
    for n in range(16)
))
plenty = TrainerCore(directory, settings)
expected = plenty.update(batch) if megabytes else None
for recompute in (False, True):  # moments, kernels and imports are there before the limit is
    core = TrainerCore(directory, replace(settings, activation_checkpointing=recompute))
    core.update(Batch(batch.rows[:1]))
core = TrainerCore(directory, settings)
pages = int(Path("/proc/self/statm").read_text().split()[0])
free = pages * resource.getpagesize() + (megabytes << 20)
resource.setrlimit(resource.RLIMIT_AS, (free, free))
try:
    stats = core.update(batch)
except ModelError as error:
    print("ModelError", error)
    sys.exit()
assert stats.skipped is None and stats.rows == 16, stats
again = core.update(batch)
assert again.halvings == 0, "what did not fit once is not tried again"
assert abs(stats.grad_norm - expected.grad_norm) < 1e-4 * expected.grad_norm, (stats, expected)
assert abs(stats.loss - expected.loss) < 1e-5, (stats, expected)
print("halvings", stats.halvings, "tokens", stats.micro_batch_tokens, core.model.recompute)
"""


def trained(directory: Path, megabytes: int, length: int) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-c", IN_LITTLE_MEMORY, str(directory), str(megabytes), str(length)),
            json.dumps(trainer_settings(warmup_updates=0, micro_batch_tokens=1 << 20).plain()),
        ],
        capture_output=True,
        text=True,
        check=False,
        # Freed memory goes back at once, so that the limit is one on what is in use.
        env={
            "OMP_NUM_THREADS": "1",
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "PYTHONPATH": str(ROOT),
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers: the activations of 16 long rows take more than the limits below."""
    return write_model(
        tmp_path_factory.mktemp("long"),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        max_position_embeddings=1024,
    )


@pytest.mark.slow(reason="starts a process that imports torch and runs out of memory")
@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space")
def test_micro_batches_that_do_not_fit_are_halved_and_the_result_is_the_same(
    long_model: Path,
) -> None:
    words = trained(long_model, megabytes=48, length=300).split()
    assert words[0] == "halvings"
    assert int(words[1]) >= 1
    assert 304 <= int(words[3]) < 16 * 304
    assert words[4] == "False"


@pytest.mark.slow(reason="starts a process that imports torch and runs out of memory")
@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space")
def test_activations_of_a_row_that_does_not_fit_alone_are_recomputed(long_model: Path) -> None:
    words = trained(long_model, megabytes=16, length=900).split()
    assert words[2:] == ["tokens", "904", "True"]


@pytest.mark.slow(reason="starts a process that imports torch and runs out of memory")
@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space")
def test_a_row_that_does_not_fit_alone_is_an_error_that_says_what_to_do(long_model: Path) -> None:
    said = trained(long_model, megabytes=0, length=900)
    assert said.startswith("ModelError ")
    assert "training.lora_rank" in said
