"""The memory that is planned for against the memory that is used, on a GPU with real shapes.

    python benchmarks/gpu_plan.py [--models qwen2.5-0.5b qwen2.5-1.5b] [--tokens 2048]

For one CUDA device. Random weights of the real shapes, made here: nothing is downloaded. Each case
runs in a process of its own.

- By part, as in benchmarks/plan.py, but measured by torch's allocator (what is allocated, and its
  peak). `context` is what the device lost beside what torch reserved, planned as half of `reserve`
  (one process of two). A case that is planned not to fit is left out.
- `as planned`: a real trainer process and a sampler with the settings that `join` would choose
  here, at work at the same time, against the plan's total. What the allocators reserved counts,
  fragments included, as no other process could have it. Limit: the memory that was free.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from plan import (
    NEW,
    VARIANTS,
    Gauge,
    batch_of,
    estimated,
    make_directory,
    phases,
    report,
    requests_of,
)

_GIB, _MIB = 1 << 30, 1 << 20
_AS_PLANNED, _DEVICE = "as planned", "cuda:0"


def training_of(variant: str, tokens: int) -> Any:
    """Matrix products of a GPU are bfloat16."""
    from swarm_node.policy.memory.footprint import Training

    chosen = {**VARIANTS[variant], "dtype": "bfloat16"}
    return Training(micro_batch_tokens=tokens, **chosen)


def free_memory() -> int:
    """Bytes, by nvidia-smi: asking torch would put a context on the device."""
    from swarm_node.node.fit import gpu_memory

    memory = gpu_memory()
    if memory is None:
        raise SystemExit("no GPU that nvidia-smi knows: this needs one")
    return memory.free


def by_part(directory: Path, variant: str, tokens: int) -> list[Any]:
    """Planned and measured bytes of each part; those of the context; reserved by peak."""
    import torch

    from swarm_node.policy.models.config import Qwen2Config

    before = free_memory()
    torch.zeros(1, device=_DEVICE)

    def held() -> int:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def peak(run: Callable[[], Any]) -> int:
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    training = training_of(variant, tokens)
    found = phases(directory, training, _DEVICE, Gauge(held, peak))
    planned = estimated(Qwen2Config.from_directory(directory), training, _DEVICE)
    context = before - free_memory() - torch.cuda.memory_reserved()
    fragments = torch.cuda.memory_reserved() / max(torch.cuda.max_memory_allocated(), 1)
    return [planned, found, context, fragments]


async def as_planned(directory: Path) -> list[Any]:
    """Bytes planned, taken and free; and the plan in words."""
    from swarm_node.config import load_settings
    from swarm_node.node.derive import trainer_settings
    from swarm_node.node.fit import fit, this_machine
    from swarm_node.policy.models.config import Qwen2Config
    from swarm_node.policy.sampling.torch_sampler import TorchSampler
    from swarm_node.policy.training.process import ProcessTrainer

    settings = load_settings({"sampling.max_new_tokens": NEW}, environ={})
    shape = Qwen2Config.from_directory(directory)
    before = free_memory()
    found = fit(settings, shape, this_machine(settings))
    where, plan = found.where, found.plan
    assert plan is not None
    batch = batch_of(shape.vocab_size, 2 * plan.training.micro_batch_tokens)
    with tempfile.TemporaryDirectory() as work:
        places = Path(work) / "checkpoints", Path(work) / "weights"
        for place in places:
            place.mkdir()
        # The built-in sampler takes whole weights.
        training = replace(trainer_settings(settings, found), published="merged")
        trainer = ProcessTrainer(directory, *places, training)
        sampler = TorchSampler.from_directory(directory, where, max_rows=plan.rows)
        try:
            weights, version = await trainer.start()
            for turn in range(3):
                await sampler.load(weights, version)
                requests = [replace(one, seed=one.seed + turn) for one in requests_of()]
                result, _ = await asyncio.gather(trainer.update(batch), sampler.sample(requests))
                weights, version = result.weights, result.stats.version
            # Allocators keep what they once reserved, so that this is the peak.
            taken = before - free_memory()
        finally:
            await trainer.close()
            await sampler.close()
    return [plan.total, taken, before, plan.described()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["qwen2.5-0.5b", "qwen2.5-1.5b"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        directory, case = Path(arguments.child[0]), arguments.child[1]
        if case == _AS_PLANNED:
            found = asyncio.run(as_planned(directory))
        else:
            found = by_part(directory, case, arguments.tokens)
        print(json.dumps(found))
        return
    import torch

    from swarm_node.cli.plan import shape_of
    from swarm_node.policy.memory.plan import SPARE, Job, make_plan

    free = free_memory()
    print(f"{free / _GIB:.1f} GiB free; estimated / measured, and MiB measured")
    with tempfile.TemporaryDirectory() as work:
        for name in arguments.models:
            shape = shape_of(name)
            directory = make_directory(Path(work) / name, shape, torch.bfloat16)
            for variant in VARIANTS:
                if variant.endswith("bfloat16"):
                    continue  # on a GPU the same as LoRA
                planned = estimated(shape, training_of(variant, arguments.tokens), _DEVICE)
                if sum(planned.values()) > free * (1 - SPARE):
                    print(f"{name}, {variant}: planned not to fit", flush=True)
                else:
                    show_parts(name, directory, variant, arguments.tokens)
            if make_plan(shape, Job(max_new_tokens=NEW), free) is not None:
                show_plan(name, directory)


def show_parts(name: str, directory: Path, variant: str, tokens: int) -> None:
    found = run_child(directory, variant, tokens)
    if found is None:
        return
    report(f"{name}, {variant}", *found[:2])
    print(
        f"{'':28} context {found[2] / _MIB:.0f} MiB (512 planned), reserved / peak {found[3]:.2f}"
    )


def show_plan(name: str, directory: Path) -> None:
    found = run_child(directory, _AS_PLANNED, 0)
    if found is None:
        return
    planned, taken, free, words = found
    print(
        f"{name}, {_AS_PLANNED}: {planned / taken:.2f} of {taken / _GIB:.1f} GiB taken, "
        f"{free / _GIB:.1f} were free ({words})",
        flush=True,
    )


def run_child(directory: Path, case: str, tokens: int) -> list[Any] | None:
    """What a case printed; None when it failed, out of memory say, which is said."""
    command = [sys.executable, __file__, "--tokens", str(tokens)]
    command += ["--child", str(directory), case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.splitlines() or ["?"])[-1]
        print(f"{directory.name}, {case}: failed: {last[:200]}", flush=True)
        return None
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
