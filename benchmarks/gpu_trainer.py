"""Speed of the trainer on a GPU: tokens per second, share of the device's limit, peak memory.

    python benchmarks/gpu_trainer.py [--model qwen2.5-0.5b] [--rows 64] [--tokens 1024]
                                     [--processes 2,4] [--peak-tflops 989]

Rows are all of `--tokens` tokens, three quarters of them completion, so nothing is padding. The
limit is the speed of one large matrix product in the same type on the same device in the same
process; with `--peak-tflops` the maker's figure for bfloat16 is printed beside it. Counted are the
operations that the gradient needs (2 per weight and token forward, 4 backward, 2 of these where the
weight is frozen; the output head at completion tokens only; attention over the causal half), not
layers that are run again. Memory is that of the fullest device, as torch's allocator knows it. Each
variant runs in processes of its own. Several processes get the same rows: their speed-up is against
one process in bfloat16. Made for CUDA; without it all of it runs on the CPU (try `--model tiny
--rows 8 --tokens 128`), where peak memory is the resident set's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import tell
from plan import batch_of

#: name: settings of the trainer.
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, checkpointing": {"dtype": "bfloat16", "activation_checkpointing": True},
    "bfloat16, 8-bit moments": {"dtype": "bfloat16", "optimizer": "adamw8bit"},
    "bfloat16, LoRA 16": {"dtype": "bfloat16", "lora_rank": 16},
}


def operations(config: Any, rows: int, tokens: int, frozen: bool) -> float:
    """Floating-point operations of one update's forward and backward passes."""
    head = config.vocab_size * config.hidden_size
    embeddings = head if config.tie_word_embeddings else 2 * head
    body = config.weight_count - embeddings
    width = config.num_attention_heads * config.head_dim
    # Forward: products of queries with keys and of scores with values, for half of all pairs.
    attention = 2 * 2 * config.num_hidden_layers * width * tokens**2 / 2
    completion = tokens - tokens // 4
    per_weight = 4 if frozen else 6
    return float(rows * (per_weight * (body * tokens + head * completion) + 3 * attention))


def matmul_limit(device: str, half: bool) -> float:
    """Operations per second of one large product."""
    import torch

    size = 8192 if device.startswith("cuda") else 1024
    dtype = torch.bfloat16 if half else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    rates = []
    for _ in range(6):
        synchronize(device)
        started = time.perf_counter()
        for _ in range(5):
            a @ b
        synchronize(device)
        rates.append(5 * 2 * size**3 / (time.perf_counter() - started))
    return statistics.median(rates[1:])


def synchronize(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def child(arguments: argparse.Namespace, settings: dict[str, Any], directory: Path) -> None:
    """Measure one variant as one of its processes; the first prints a JSON object."""
    import torch
    from defaults import trainer_settings

    from swarm_node.policy.models.model import resolve
    from swarm_node.policy.training.processes.sharded import Group
    from swarm_node.policy.training.update.ranks import ALONE, Ranks
    from swarm_node.policy.training.update.trainer import TrainerCore

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    ranks: Ranks = Group(directory) if settings["processes"] > 1 else ALONE
    path = resolve(arguments.model)
    core = TrainerCore(path, trainer_settings(**settings), ranks=ranks)
    config, device = core.model.config, core.placement.device
    batch = batch_of(config.vocab_size, arguments.rows * arguments.tokens, arguments.tokens)
    seconds = []
    for _ in range(arguments.repetitions + 2):  # the first two make moments and choose kernels
        synchronize(device)
        started = time.perf_counter()
        assert core.update(batch).skipped is None
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    if device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated() / 2**30
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    peaks = [0.0] * ranks.count
    peaks[ranks.index] = peak
    figures = {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
        "seconds": statistics.median(seconds[2:]),
        "operations": operations(
            config, arguments.rows, arguments.tokens, bool(core.settings.lora_rank)
        ),
        "peak_gib": max(ranks.sums(peaks)),
        "limit": matmul_limit(device, core.placement.half),
    }
    if not ranks.index:
        print(json.dumps(figures), flush=True)


def measure(arguments: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """Run one variant. Return the figures of its first process."""
    from swarm_node.policy.training.processes.launching import launch_ranks, rank_environment

    program = [__file__, "--model", arguments.model, "--child", json.dumps(settings)]
    for name in ("rows", "tokens", "repetitions"):
        program += [f"--{name}", str(getattr(arguments, name))]
    with tempfile.TemporaryDirectory() as work:
        command = [*program, "--directory", work]
        if settings["processes"] > 1:
            program += ["--directory"]
            command = list(launch_ranks(Path(work), settings["processes"], program))
        child_process = subprocess.run(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            text=True,
            env={"OMP_NUM_THREADS": "1", **os.environ, **rank_environment()},
        )
    if child_process.returncode:
        raise RuntimeError(f"{settings} failed: what went wrong is above")
    figures: dict[str, Any] = json.loads(child_process.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--processes", default="", help="numbers of processes, such as 2,4")
    parser.add_argument("--peak-tflops", type=float, default=0.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments, json.loads(arguments.child), Path(arguments.directory))
        return
    import importlib.util

    common = {"device": "auto", "micro_batch_tokens": 16 * arguments.tokens}
    counts = [int(count) for count in arguments.processes.split(",") if count]
    variants = [(name, {**common, "processes": 1, **one}) for name, one in VARIANTS.items()]
    for count in counts:
        settings = {**common, **VARIANTS["bfloat16"], "processes": count}
        variants.append((f"bfloat16, {count} processes", settings))
    print(f"{'variant':26} {'tokens/s':>10} {'of limit':>9} {'peak GiB':>9}")
    baseline: float | None = None
    for name, settings in variants:
        if settings.get("optimizer") and importlib.util.find_spec("bitsandbytes") is None:
            print(f"{name:26} not run: pip install '.[gpu]'")
            continue
        figures = measure(arguments, settings)
        rate = arguments.rows * arguments.tokens / figures["seconds"]
        reached = figures["operations"] / figures["seconds"] / settings["processes"]
        line = (
            f"{name:26} {rate:10.0f} {reached / figures['limit']:9.1%} {figures['peak_gib']:9.2f}"
        )
        if arguments.peak_tflops and settings["dtype"] == "bfloat16":
            line += f"  MFU {reached / (arguments.peak_tflops * 1e12):.1%}"
        if name == "bfloat16":
            baseline = figures["seconds"]
        elif baseline is not None:
            line += f"  x {baseline / figures['seconds']:.2f} of bfloat16"
        print(f"{line}  ({figures['device']})", flush=True)
        tell(
            variant=name,
            tokens_per_s=round(rate),
            share_of_limit=reached / figures["limit"],
            **figures,
        )


if __name__ == "__main__":
    main()
