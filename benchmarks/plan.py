"""Planned memory against used memory, part by part, on a CPU.

    python benchmarks/plan.py [--tokens N] [--models tiny 67m] [--variants NAME ...]

The tiny model, and a random one of Qwen2.5's shape (hidden 512, 10 layers, vocabulary 32,768,
67 million weights), trained on two micro-batches of N tokens. Two measurements of each case:

- By part, in a process of its own with one thread: `weights` is the resident set after loading less
  that before. `training` is the peak of the third update above it (gradients, moments,
  activations). `sampler` is the peak of loading a sampler and drawing 64 answers, its weights
  included. A model of next to nothing does all this first, so that no library is counted. malloc
  returns large blocks (MALLOC_MMAP_THRESHOLD_), so resident memory is held memory.
- `trainer process`: the peak of the node's real trainer process (`ProcessTrainer`, malloc as it is)
  in the third update, which publishes its weights, less that of one with a model of next to
  nothing. Of two processes, the larger counts.

The kernel's peak counters are reset before each peak.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MODELS: dict[str, dict[str, Any] | None] = {
    "tiny": None,
    "67m": {
        "vocab_size": 32_768,
        "hidden_size": 512,
        "intermediate_size": 2816,
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "all weights, recomputed": {"checkpointing": True},
    "LoRA 32": {"lora_rank": 32},
    "LoRA 32, recomputed": {"lora_rank": 32, "checkpointing": True},
    "LoRA 32 in bfloat16": {"lora_rank": 32, "dtype": "bfloat16"},
    "all weights, two processes": {"processes": 2},
}
#: So small that what is resident beside it is libraries.
LEAST: dict[str, Any] = {
    **{"vocab_size": 320, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1},
    **{"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 2048},
    "tie_word_embeddings": True,
}
ROW = 256
ROWS, NEW = 64, 32
_MIB = 2**20


def make_directory(target: Path, config: Any, dtype: Any = None) -> Path:
    """A random model of `config` with the tiny model's tokenizer, unless it is there already."""
    import torch
    from random_model import write_weights

    from swarm_node.policy.models.model import resolve

    if (target / "model.safetensors").exists():
        return target
    shutil.copytree(resolve("tiny"), target, ignore=shutil.ignore_patterns("*.safetensors"))
    (target / "config.json").write_text(json.dumps({**config.to_hf(), "eos_token_id": 2}))
    write_weights(target / "model.safetensors", config, dtype or torch.float32)
    return target


def batch_of(vocabulary: int, tokens: int, row: int = ROW) -> Any:
    """Rows of `row` tokens, three quarters of them completion, `tokens` in all; good and bad."""
    import numpy as np

    from swarm_node.policy.experience.batch import Batch, TrainRow
    from swarm_node.rollout import Provenance

    rng = np.random.default_rng(0)
    rows = rng.integers(3, vocabulary, (tokens // row, row)).astype(np.uint32)
    return Batch(
        tuple(
            TrainRow(ids[: row // 4], ids[row // 4 :], None, (-1.0) ** n, Provenance.LOCAL)
            for n, ids in enumerate(rows)
        )
    )


def trainer_settings(training: Any, device: str) -> Any:
    import defaults

    return defaults.trainer_settings(
        lora_rank=training.lora_rank,
        activation_checkpointing=training.checkpointing,
        micro_batch_tokens=training.micro_batch_tokens,
        dtype=training.dtype,
        device=device,
        processes=training.processes,
    )


class Gauge(NamedTuple):
    """`held` returns the bytes in use now, `peak` the most while a function runs."""

    held: Callable[[], int]
    peak: Callable[[Callable[[], Any]], int]


def phases(directory: Path, training: Any, device: str, gauge: Gauge) -> dict[str, int]:
    """Bytes of each part, measured."""
    part_bytes = training_phases(directory, training, device, gauge)
    return {**part_bytes, "sampler": sampling(directory, training.dtype, device, gauge)}


def training_phases(directory: Path, training: Any, device: str, gauge: Gauge) -> dict[str, int]:
    """Measure all parts but the sampler; the trainer is gone afterwards."""
    from swarm_node.policy.training.update.trainer import TrainerCore

    settings = trainer_settings(training, device)
    start_bytes = gauge.held()
    core = TrainerCore(directory, settings)
    loaded_bytes = gauge.held()
    # Two micro-batches: the second one meets the gradients of the first.
    batch = batch_of(core.model.config.vocab_size, 2 * training.micro_batch_tokens)

    def update() -> None:
        assert core.update(batch).skipped is None

    update()
    update()
    return {"weights": loaded_bytes - start_bytes, "training": gauge.peak(update) - loaded_bytes}


def sampling(directory: Path, dtype: str, device: str, gauge: Gauge) -> int:
    """The peak of loading the built-in sampler and drawing `ROWS` answers of `NEW` tokens after
    prompts of the planned length."""
    from swarm_node.policy.placement import Placement
    from swarm_node.policy.sampling.torch_sampler import TorchSampler

    placement = Placement(device, "bfloat16" if dtype == "bfloat16" else "float32")

    async def draw() -> None:
        sampler = TorchSampler.from_directory(directory, placement)
        await sampler.sample(requests_of())
        await sampler.close()

    start_bytes = gauge.held()
    return gauge.peak(lambda: asyncio.run(draw())) - start_bytes


def requests_of(new: int = NEW, rows: int = ROWS) -> list[Any]:
    from swarm_node.policy.memory.footprint import PROMPT_TOKENS
    from swarm_node.policy.sampling.sampler import SampleRequest

    return [
        SampleRequest(
            prompt_ids=tuple((7 * n + m) % 250 + 3 for m in range(PROMPT_TOKENS)),
            n=8,
            max_new_tokens=new,
            temperature=1.0,
            seed=n,
        )
        for n in range(rows // 8)
    ]


def estimated(config: Any, training: Any, device: str) -> dict[str, int]:
    from swarm_node.policy.memory.footprint import footprint

    kind = "cpu" if device == "cpu" else "cuda"
    parts = footprint(config, training, device=kind, rows=ROWS, max_new_tokens=NEW)  # type: ignore[arg-type]
    return {
        "weights": parts.trainer_weights,
        "training": parts.optimizer + parts.activations,
        "sampler": parts.sampler,
    }


def estimated_trainer(config: Any, training: Any) -> int:
    """Bytes of the trainer alone. It copies published weights after the activations are freed."""
    from swarm_node.policy.memory.footprint import footprint

    parts = footprint(config, training, device="cpu", rows=1, max_new_tokens=1)
    return parts.trainer_weights + parts.optimizer + max(parts.activations, parts.published)


def resident() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _status("self", "VmRSS")


def resident_peak(run: Callable[[], Any]) -> int:
    _reset_peak("self")
    run()
    return _status("self", "VmHWM")


def _reset_peak(process: str) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")  # VmHWM starts again from VmRSS


def _status(process: str, name: str) -> int:
    rows = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == f"{name}:") * 1024


def by_part(directory: Path, baseline: Path, training: Any) -> dict[str, int]:
    import torch

    torch.set_num_threads(1)
    gauge = Gauge(resident, resident_peak)
    phases(baseline, training, "cpu", gauge)
    return phases(directory, training, "cpu", gauge)


async def process_peak(directory: Path, training: Any) -> int:
    """The most that a real trainer process has resident in its third update."""
    from swarm_node.policy.models.config import ModelConfig
    from swarm_node.policy.training.processes.process import ProcessTrainer

    vocabulary = ModelConfig.from_directory(directory).vocab_size
    batch = batch_of(vocabulary, 2 * training.micro_batch_tokens * training.processes)
    with tempfile.TemporaryDirectory() as work:
        places = Path(work) / "checkpoints", Path(work) / "weights"
        for place in places:
            place.mkdir()
        trainer = ProcessTrainer(directory, *places, trainer_settings(training, "cpu"))
        await trainer.start()
        try:
            await trainer.update(batch)
            await trainer.update(batch)
            processes = workers(trainer.pid)
            for process in processes:
                _reset_peak(process)
            await trainer.update(batch)
            return max(_status(process, "VmHWM") for process in processes)
        finally:
            await trainer.close()


def workers(pid: int | None) -> list[str]:
    """The processes that train: those of a launcher, or the one with this id."""
    import psutil

    from swarm_node.policy.training.processes.launching import RANK_MODULE

    children = psutil.Process(pid).children(recursive=True)
    ranks = [str(process.pid) for process in children if RANK_MODULE in process.cmdline()]
    return ranks or [str(pid)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    from swarm_node.policy.memory.footprint import TrainingMethod
    from swarm_node.policy.models.config import ModelConfig
    from swarm_node.policy.models.model import resolve

    if arguments.child:
        directory, baseline, variant = arguments.child
        training = TrainingMethod(micro_batch_tokens=arguments.tokens, **VARIANTS[variant])
        print(json.dumps(by_part(Path(directory), Path(baseline), training)))
        return
    print("estimated / measured, and MiB measured")
    with tempfile.TemporaryDirectory() as work:
        baseline = make_directory(Path(work) / "least", ModelConfig(**LEAST))
        for name in arguments.models:
            shape = MODELS[name]
            directory = resolve("tiny")
            if shape is not None:
                directory = make_directory(Path(work) / name, ModelConfig(**shape))
            for variant in arguments.variants:
                training = TrainingMethod(micro_batch_tokens=arguments.tokens, **VARIANTS[variant])
                run_case(f"{name}, {variant}", directory, baseline, variant, training)


def run_case(title: str, directory: Path, baseline: Path, variant: str, training: Any) -> None:
    from swarm_node.policy.models.config import ModelConfig

    if training.processes == 1:
        command = [sys.executable, __file__, "--tokens", str(training.micro_batch_tokens)]
        command += ["--child", str(directory), str(baseline), variant]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
        result = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        estimates = estimated(ModelConfig.from_directory(directory), training, "cpu")
        report(title, estimates, json.loads(result.stdout.splitlines()[-1]))
    else:
        print(title)
    peak, libraries = (
        asyncio.run(process_peak(place, training)) for place in (directory, baseline)
    )
    estimate = estimated_trainer(ModelConfig.from_directory(directory), training)
    trainer_peak = peak - libraries
    print(
        f"{'':28} trainer process {estimate / trainer_peak:.2f} ({trainer_peak / _MIB:.0f} over "
        f"{libraries / _MIB:.0f}), whole {(estimate + libraries) / peak:.2f}",
        flush=True,
    )


def report(title: str, estimates: dict[str, int], sizes: dict[str, int]) -> None:
    """One line: the ratio of each part, and of their sum."""
    cells = [
        f"{part} {estimates[part] / max(sizes[part], 1):.2f} ({sizes[part] / _MIB:.0f})"
        for part in sizes
    ]
    total = sum(estimates.values()) / max(sum(sizes.values()), 1)
    print(f"{title:28} {', '.join(cells)}, sum {total:.2f}", flush=True)


if __name__ == "__main__":
    main()
