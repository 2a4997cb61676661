"""Planned memory against used memory, on a GPU with real shapes.

    python benchmarks/gpu_plan.py [--models qwen2.5-0.5b qwen2.5-1.5b] [--cases parts plan]
                                  [--gib 8 12] [--new 32] [--updates 3] [--set KEY=VALUE]

For one CUDA device. Random weights of the real shapes, made here: nothing is downloaded. Each case
runs in a process of its own. It fails (exit 1) where more is taken than planned with the spare 5%.

- `parts`: by part, as in benchmarks/plan.py, but measured by torch's allocator (what is allocated,
  and its peak). `context` is the device memory that is used and not reserved by torch, planned as
  half of `reserve` (one process of two). A case that is planned not to fit is left out.
- `plan`: a real trainer process and a built-in sampler that share the base of adapters, at work at
  the same time, against the plan's total. Settings are those of `join` here, and of `--set`. All
  used memory of the device counts, fragments included, as no other process could have it. With
  `--gib`, this process first takes memory until that many GB are free. A refusal counts as a
  failure.

Without CUDA all of it runs on the CPU, where the figures say little (try `--models tiny`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from figures import tell
from plan import (
    NEW,
    ROWS,
    VARIANTS,
    Gauge,
    batch_of,
    estimated,
    make_directory,
    phases,
    report,
    requests_of,
    resident,
    resident_peak,
)

_GIB, _MIB = 1 << 30, 1 << 20
#: Seconds of an update for which answers are drawn; all memory is taken when they begin.
_DRAWING = 20.0


def device() -> str:
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def training_of(variant: str, tokens: int) -> Any:
    """Matrix products of a GPU are bfloat16."""
    from swarm_node.policy.memory.footprint import TrainingMethod

    options = {**VARIANTS[variant], "dtype": "bfloat16"}
    return TrainingMethod(micro_batch_tokens=tokens, **options)


def leave(gib: float) -> tuple[Any, int]:
    """Fill the GPU until `gib` GiB are free (0 fills nothing): what holds the memory, and the
    bytes that are free. On a CPU, those of main memory."""
    import torch

    from swarm_node.policy.memory.free import available_memory

    if device() == "cpu":
        return None, available_memory()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    filler, target = None, int(gib * _GIB)
    if gib and free > target:
        filler = torch.empty(free - target, dtype=torch.uint8, device="cuda")
    return filler, torch.cuda.mem_get_info()[0]


def by_part(directory: Path, variant: str, tokens: int, free: int) -> list[Any]:
    """Planned and measured bytes of each part; those of the context; reserved by peak."""
    import torch

    from swarm_node.policy.models.config import ModelConfig

    on = device()
    training, shape = training_of(variant, tokens), ModelConfig.from_directory(directory)
    planned = estimated(shape, training, on)
    if on == "cpu":
        return [planned, phases(directory, training, on, Gauge(resident, resident_peak)), 0, 1.0]
    context = context_bytes(free)

    def held() -> int:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def peak(run: Callable[[], Any]) -> int:
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    part_bytes = phases(directory, training, on, Gauge(held, peak))
    torch.cuda.synchronize()
    context = max(context, free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved())
    fragments = torch.cuda.memory_reserved() / max(torch.cuda.max_memory_allocated(), 1)
    return [planned, part_bytes, context, fragments]


async def as_planned(directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Bytes planned and taken, the plan in words, and seconds of each update; or why there is no
    plan."""
    from swarm_node.errors import ModelError
    from swarm_node.policy.models.config import ModelConfig

    shape = ModelConfig.from_directory(directory)
    try:
        settings, fit = planned_for(shape, arguments)
    except ModelError as refusal:
        return {"refused": str(refusal)}
    total, rows, words = described(shape, fit, arguments.new)
    context = context_bytes(arguments.free)
    results, peak = await at_work(directory, shape, settings, fit, rows, arguments)
    return {
        "planned": total,
        "taken": peak,
        "context": context,
        "words": words,
        "seconds": [result.stats.seconds for result in results],
        "halvings": sum(result.stats.halvings for result in results),
        "skipped": [result.stats.skipped for result in results if result.stats.skipped],
    }


async def at_work(
    directory: Path, shape: Any, settings: Any, fit: Any, rows: int, arguments: argparse.Namespace
) -> tuple[list[Any], int]:
    """The results of the updates, and the most bytes that were taken meanwhile."""
    from swarm_node.node.start.derive import cache_shape, trainer_settings
    from swarm_node.policy.memory.footprint import PROMPT_TOKENS
    from swarm_node.policy.sampling.torch_sampler import TorchSampler
    from swarm_node.policy.training.processes.process import ProcessTrainer

    max_length = min(PROMPT_TOKENS + arguments.new, shape.max_position_embeddings)
    tokens = 2 * max(fit.training.micro_batch_tokens, max_length)
    batch = batch_of(shape.vocab_size, tokens, max_length)
    usage = memory_in_use(arguments.free)
    results, peak = [], 0
    with tempfile.TemporaryDirectory() as work:
        places = Path(work) / "checkpoints", Path(work) / "weights"
        for place in places:
            place.mkdir()
        trainer = ProcessTrainer(directory, *places, trainer_settings(settings, fit))
        sampler = TorchSampler.from_directory(
            directory,
            fit.placement,
            max_rows=rows,
            shape=cache_shape(settings, shape, fit),
            shares=fit.shares_base,
        )
        try:
            weights, version = await trainer.start()
            for turn in range(arguments.updates):
                await sampler.load(weights, version)
                templates = requests_of(arguments.new, max(ROWS, rows))
                requests = [replace(request, seed=request.seed + turn) for request in templates]
                async with asyncio.TaskGroup() as tasks:
                    sample_task = tasks.create_task(sampler.sample(requests))
                    update_task = tasks.create_task(trainer.update(batch))
                    while not update_task.done():
                        await asyncio.wait({update_task}, timeout=0.05)
                        peak = max(peak, usage())
                    if not (await asyncio.wait({sample_task}, timeout=_DRAWING))[0]:
                        sample_task.cancel()
                peak = max(peak, usage())
                results.append(update_task.result())
                weights, version = results[-1].weights, results[-1].stats.version
        finally:
            await trainer.close()
            await sampler.close()
    return results, peak


def planned_for(shape: Any, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The settings, and how `join` would use what is free here."""
    from swarm_node.config import load_settings, parse_assignments
    from swarm_node.node.preflight.defaults import demand_of, for_model
    from swarm_node.node.preflight.doctor import this_machine
    from swarm_node.policy.planning.fit import GpuMemory, fit

    overrides = {"sampling.engine": "torch", "sampling.max_new_tokens": arguments.new}
    base_settings = load_settings({**overrides, **parse_assignments(arguments.set)}, environ={})
    settings = for_model(base_settings, shape)
    machine = this_machine(settings)
    if machine.gpu is not None:
        machine = replace(machine, gpu=GpuMemory(arguments.free, arguments.free))
    return settings, fit(demand_of(settings, shape), machine)


def described(shape: Any, fit: Any, new: int) -> tuple[int, int, str]:
    """Bytes planned, answers at once, and the plan in words; there is no plan of a CPU."""
    from swarm_node.policy.memory.footprint import footprint

    if fit.plan is not None:
        return fit.plan.total, fit.plan.rows, fit.plan.describe()
    options = {"rows": ROWS, "max_new_tokens": new, "one_base": fit.shares_base}
    parts = footprint(shape, fit.training, device="cpu", **options)
    return parts.total(), ROWS, f"CPU, LoRA rank {fit.training.lora_rank}"


def context_bytes(free: int) -> int:
    """Bytes of this process's CUDA context: what it took of `free` for more than tensors, once
    kernels were loaded, which happens when each is first launched. 0 on a CPU."""
    import torch

    if device() == "cpu":
        return 0
    launch_kernels()
    torch.cuda.synchronize()
    return free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()


def launch_kernels() -> None:
    """Launch a few kernels of each kind that a trainer does: products, attention, the optimizer."""
    import torch
    import torch.nn.functional as F

    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.ones(512, 512, device=device(), dtype=dtype, requires_grad=True)
        heads = F.linear(torch.ones(1, 256, 512, device=device(), dtype=dtype), weight)
        query = heads.view(1, 256, 8, 64).transpose(1, 2)
        output = F.scaled_dot_product_attention(query, query, query, is_causal=True)
        F.silu(output.float()).log_softmax(-1).sum().backward()  # type: ignore[no-untyped-call]
        torch.optim.AdamW([weight], fused=True).step()


def memory_in_use(free: int) -> Callable[[], int]:
    """Counts the bytes that this process and its children took since `free` were free."""
    import psutil
    import torch

    def of_tree() -> int:
        root, total = psutil.Process(), 0
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    if device() != "cpu":
        return lambda: free - torch.cuda.mem_get_info()[0]
    start_bytes = of_tree()
    return lambda: of_tree() - start_bytes


def main() -> None:
    arguments = parsed()
    if arguments.child:
        directory, case = Path(arguments.child[0]), arguments.child[1]
        if case == "plan":
            print(json.dumps(asyncio.run(as_planned(directory, arguments))))
        else:
            print(json.dumps(by_part(directory, case, arguments.tokens, arguments.free)))
        return
    import torch

    from swarm_node.policy.memory.plan import SPARE
    from swarm_node.policy.models.config import ModelConfig
    from swarm_node.policy.models.model import resolve
    from swarm_node.policy.models.shapes import known_shape

    is_ok = True
    with tempfile.TemporaryDirectory() as work:
        for name in arguments.models:
            shape = known_shape(name) or ModelConfig.from_directory(resolve(name))
            place = (arguments.keep or Path(work)) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            directory = make_directory(place, shape, torch.bfloat16)
            for size in arguments.gib if "plan" in arguments.cases else ():
                filler, arguments.free = leave(size)
                arguments.size = size
                is_ok &= show_plan(name, directory, arguments)
                del filler
            _, arguments.free = leave(0)
            for variant in VARIANTS if "parts" in arguments.cases else ():
                if variant.endswith("bfloat16"):
                    continue  # on a GPU the same as LoRA
                planned = estimated(shape, training_of(variant, arguments.tokens), device())
                if sum(planned.values()) > arguments.free * (1 - SPARE):
                    print(f"{name}, {variant}: planned not to fit", flush=True)
                else:
                    is_ok &= show_parts(name, directory, variant, arguments)
    sys.exit(not is_ok)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["qwen2.5-0.5b", "qwen2.5-1.5b"])
    parser.add_argument("--cases", nargs="*", default=["parts", "plan"], choices=("parts", "plan"))
    parser.add_argument("--gib", nargs="+", type=float, default=[0.0], help="GB; 0: as it is")
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch, by part")
    parser.add_argument("--new", type=int, default=NEW)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="directory for models, which are not made again")
    parser.add_argument("--free", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def show_parts(name: str, directory: Path, variant: str, arguments: argparse.Namespace) -> bool:
    result = run_child(directory, variant, arguments)
    if result is None:
        return False
    report(f"{name}, {variant}", *result[:2])
    print(
        f"{'':28} context {result[2] / _MIB:.0f} MiB (512 planned), reserved / peak {result[3]:.2f}"
    )
    planned_mib, taken_mib = (
        {part: size / _MIB for part, size in byte_counts.items()} for byte_counts in result[:2]
    )
    tell(model=name, variant=variant, planned_mib=planned_mib, taken_mib=taken_mib)
    tell(model=name, variant=variant, context_mib=result[2] / _MIB, reserved_by_peak=result[3])
    return True


def show_plan(name: str, directory: Path, arguments: argparse.Namespace) -> bool:
    """One line; whether it went as planned. A CPU's libraries are not planned for."""
    from swarm_node.policy.memory.footprint import CONTEXT
    from swarm_node.policy.memory.plan import SPARE

    result = run_child(directory, "plan", arguments)
    if result is None:
        return False
    title = f"{name}, {arguments.free / _GIB:.2f} GiB free, {arguments.new} new tokens"
    if "refused" in result:
        print(f"{title}: refused: {result['refused']}", flush=True)
        tell(model=name, gib=arguments.size, new=arguments.new, refused=result["refused"])
        return False
    # Contexts differ by GPU: the plan's 512 MiB stand for each of the two that were measured.
    peak, budget = result["taken"], result["planned"]
    if result["context"]:
        peak += 2 * (CONTEXT - result["context"])
    is_ok = not result["halvings"] and not result["skipped"]
    is_ok &= device() == "cpu" or peak * (1 - SPARE) <= budget
    print(
        f"{title}: {budget / _MIB:,.0f} MiB planned, {peak / _MIB:,.0f} taken, ratio "
        f"{budget / peak:.2f}, {statistics.median(result['seconds']):.2f} s an update, "
        f"{result['halvings']} halvings{'' if is_ok else ', NOT AS PLANNED'} ({result['words']})",
        flush=True,
    )
    tell(
        **{"model": name, "free_mib": arguments.free / _MIB, "new": arguments.new, "well": is_ok},
        **{"gib": arguments.size, "planned_mib": budget / _MIB, "taken_mib": peak / _MIB},
        **{"context_mib": result["context"] / _MIB, "seconds": result["seconds"]},
        **{"halvings": result["halvings"], "plan": result["words"], "set": arguments.set},
    )
    return is_ok


def run_child(directory: Path, case: str, arguments: argparse.Namespace) -> Any:
    """The output of a case; None if it failed, which is printed."""
    command = [sys.executable, __file__, "--child", str(directory), case]
    for name in ("tokens", "new", "updates", "free"):
        command += [f"--{name}", str(getattr(arguments, name))]
    if arguments.set:
        command += ["--set", *arguments.set]
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", **os.environ}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        print(f"{directory.name}, {case}: failed:\n{result.stderr[-3000:]}", flush=True)
        return None
    return json.loads(result.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
