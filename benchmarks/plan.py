"""The memory that is planned for against the memory that is used, part by part, on a CPU.

    python benchmarks/plan.py [--tokens N] [--models tiny 67m]

The tiny model, and a random one of Qwen2.5's shape (hidden 512, 10 layers, vocabulary 32,768,
67 million weights), trained on N tokens in one micro-batch. Each case runs in a process of its own
with one thread: `weights` is the resident set after loading less that before (torch and the trainer
imported), `optimizer` what two updates leave behind (gradients and moments), `activations` the
peak of the second update over that, `sampler` the peak of loading a sampler and drawing 64 answers,
its weights included. The kernel's peak counter is reset before each. malloc gives large blocks back
(MALLOC_MMAP_THRESHOLD_), so that what is resident is what is held.
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
from typing import Any

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
    "LoRA 32 on bfloat16": {"lora_rank": 32, "base": "bfloat16"},
}
ROW = 256
ROWS, NEW = 64, 32
_MIB = 2**20


def make_directory(target: Path, config: Any, dtype: Any = None) -> Path:
    """A random model of `config` with the tiny model's tokenizer."""
    import torch
    from safetensors.torch import save_file

    from swarm_node.policy.models import resolve
    from swarm_node.policy.qwen2 import Qwen2

    shutil.copytree(resolve("tiny"), target)
    model = Qwen2(config, generator=torch.Generator().manual_seed(0))
    (target / "config.json").write_text(json.dumps({**config.to_hf(), "eos_token_id": 2}))
    state = {name: part.to(dtype or part.dtype) for name, part in model.hf_state().items()}
    save_file(state, target / "model.safetensors")
    return target


def batch_of(vocabulary: int, tokens: int) -> Any:
    """Rows of `ROW` tokens, three quarters of them completion, `tokens` in all."""
    import numpy as np

    from swarm_node.policy.batch import Batch, TrainRow
    from swarm_node.rollout import Provenance

    rng = np.random.default_rng(0)
    return Batch(
        tuple(
            TrainRow(
                rng.integers(3, vocabulary, ROW // 4).astype(np.uint32),
                rng.integers(3, vocabulary, ROW - ROW // 4).astype(np.uint32),
                None,
                (-1.0) ** n,
                Provenance.OWN,
            )
            for n in range(tokens // ROW)
        )
    )


def phases(
    directory: Path,
    training: Any,
    device: str,
    held: Callable[[], int],
    peak: Callable[[Callable[[], Any]], int],
) -> dict[str, int]:
    """Bytes of each part, measured: `held` says what is in use now, `peak` the most while it runs
    what it is given."""
    found = training_phases(directory, training, device, held, peak)
    return {**found, "sampler": sampling(directory, device, held, peak)}


def training_phases(
    directory: Path,
    training: Any,
    device: str,
    held: Callable[[], int],
    peak: Callable[[Callable[[], Any]], int],
) -> dict[str, int]:
    """All but the sampler; the trainer is gone when it returns."""
    from swarm_node.policy.trainer import TrainerCore, TrainerSettings

    settings = TrainerSettings(
        lora_rank=training.lora_rank,
        activation_checkpointing=training.checkpointing,
        micro_batch_tokens=training.micro_batch_tokens,
        base=training.base,
        device="cuda" if device == "cuda" else "cpu",
    )
    if training.lora_rank:
        import peft  # noqa: F401 - not a part of the model
    start = held()
    core = TrainerCore(directory, settings)
    loaded = held()
    batch = batch_of(core.model.config.vocab_size, training.micro_batch_tokens)

    def update() -> None:
        assert core.update(batch).skipped is None

    update()
    update()
    trained = held()
    top = peak(update)
    return {
        "weights": loaded - start,
        "optimizer": trained - loaded,
        "activations": top - trained,
    }


def sampling(
    directory: Path, device: str, held: Callable[[], int], peak: Callable[[Callable[[], Any]], int]
) -> int:
    """The peak of loading the built-in sampler and drawing `ROWS` answers of `NEW` tokens after
    prompts of the planned length."""
    import torch

    from swarm_node.policy.footprint import PROMPT_TOKENS
    from swarm_node.policy.sampler import SampleRequest
    from swarm_node.policy.torch_sampler import TorchSampler

    dtype = torch.bfloat16 if device == "cuda" else torch.float32

    async def draw() -> None:
        sampler = TorchSampler.from_directory(directory, device=device, dtype=dtype)
        requests = [
            SampleRequest(
                prompt_ids=tuple((7 * n + m) % 250 + 3 for m in range(PROMPT_TOKENS)),
                n=8,
                max_new_tokens=NEW,
                temperature=1.0,
                seed=n,
            )
            for n in range(ROWS // 8)
        ]
        await sampler.sample(requests)
        await sampler.close()

    before = held()
    return peak(lambda: asyncio.run(draw())) - before


def estimated(config: Any, training: Any, device: str) -> dict[str, int]:
    from swarm_node.policy.footprint import footprint

    parts = footprint(config, training, device=device, rows=ROWS, max_new_tokens=NEW)  # type: ignore[arg-type]
    return {
        "weights": parts.trainer_weights,
        "optimizer": parts.optimizer,
        "activations": parts.activations,
        "sampler": parts.sampler,
    }


def resident() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _status("VmRSS")


def resident_peak(run: Callable[[], Any]) -> int:
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident
    run()
    return _status("VmHWM")


def _status(name: str) -> int:
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == f"{name}:") * 1024


def child(directory: Path, variant: str, tokens: int) -> None:
    import torch

    from swarm_node.policy import torch_sampler, trainer  # noqa: F401 - imported before measuring
    from swarm_node.policy.footprint import Training
    from swarm_node.policy.model_files import Qwen2Config

    torch.set_num_threads(1)
    training = Training(micro_batch_tokens=tokens, **VARIANTS[variant])
    found = phases(directory, training, "cpu", resident, resident_peak)
    config = Qwen2Config.from_directory(directory)
    print(json.dumps([estimated(config, training, "cpu"), found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(Path(arguments.child[0]), arguments.child[1], arguments.tokens)
        return
    from swarm_node.policy.model_files import Qwen2Config
    from swarm_node.policy.models import resolve

    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    print("estimated / measured, and MiB measured")
    with tempfile.TemporaryDirectory() as work:
        for name in arguments.models:
            shape = MODELS[name]
            directory = resolve("tiny")
            if shape is not None:
                directory = make_directory(Path(work) / name, Qwen2Config(**shape))
            for variant in VARIANTS:
                command = [sys.executable, __file__, "--tokens", str(arguments.tokens)]
                command += ["--child", str(directory), variant]
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                )
                report(f"{name}, {variant}", *json.loads(done.stdout.splitlines()[-1]))


def report(title: str, planned: dict[str, int], found: dict[str, int]) -> None:
    """One line: the ratio of each part, and of their sum."""
    cells = [
        f"{part} {planned[part] / max(found[part], 1):.2f} ({found[part] / _MIB:.0f})"
        for part in found
    ]
    total = sum(planned.values()) / max(sum(found.values()), 1)
    print(f"{title:32} {', '.join(cells)}, sum {total:.2f}", flush=True)


if __name__ == "__main__":
    main()
