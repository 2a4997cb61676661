"""The memory that is planned for against the memory that is used, on a GPU with real shapes.

    python benchmarks/gpu_plan.py [--models qwen2.5-0.5b qwen2.5-1.5b] [--tokens 2048]

For one CUDA device. Random weights of the real shapes, made here: nothing is downloaded. Each case
runs in a process of its own and is measured by torch's allocator (what is allocated, and its peak);
`context` is what the device lost beside what torch reserved, planned as half of `reserve` (one
process of two). A case that is planned not to fit is left out. Rival: the card's own memory; the
last line says what plan this card gets and what its peak really is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plan import VARIANTS, estimated, make_directory, phases, report

_GIB = 1 << 30


def training_of(variant: str, tokens: int) -> Any:
    """On a GPU adapters lie on a bfloat16 base."""
    from swarm_node.policy.footprint import Training

    chosen = dict(VARIANTS[variant])
    if chosen.get("lora_rank"):
        chosen["base"] = "bfloat16"
    return Training(micro_batch_tokens=tokens, **chosen)


def child(directory: Path, variant: str, tokens: int) -> None:
    import torch

    from swarm_node.policy.model_files import Qwen2Config

    free, _ = torch.cuda.mem_get_info()
    torch.zeros(1, device="cuda")

    def held() -> int:
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    def peak(run: Callable[[], Any]) -> int:
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    training = training_of(variant, tokens)
    found = phases(directory, training, "cuda", held, peak)
    planned = estimated(Qwen2Config.from_directory(directory), training, "cuda")
    torch.cuda.synchronize()
    context = free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    fragments = torch.cuda.memory_reserved() / max(torch.cuda.max_memory_allocated(), 1)
    print(json.dumps([planned, found, context, fragments]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["qwen2.5-0.5b", "qwen2.5-1.5b"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(Path(arguments.child[0]), arguments.child[1], arguments.tokens)
        return
    from swarm_node.planning import gpu_memory, shape_of
    from swarm_node.policy.plan import SPARE, Job, make_plan

    found = gpu_memory()
    if found is None:
        raise SystemExit("no GPU that nvidia-smi knows: this needs one")
    vram = found.free
    print(f"{vram / _GIB:.1f} GiB free; estimated / measured, and MiB measured")
    with tempfile.TemporaryDirectory() as work:
        for name in arguments.models:
            import torch

            shape = shape_of(name)
            directory = make_directory(Path(work) / name, shape, torch.bfloat16)
            plan = make_plan(shape, Job(), vram)
            for variant in VARIANTS:
                training = training_of(variant, arguments.tokens)
                if variant.endswith("bfloat16"):
                    continue  # on a GPU the same as the one before it
                needed = estimated(shape, training, "cuda")
                if sum(needed.values()) > vram * (1 - SPARE):
                    print(f"{name}, {variant}: planned not to fit, {sum(needed.values()):,} B")
                    continue
                run_case(name, directory, variant, arguments.tokens)
            if plan is not None:
                print(f"{name} here: {plan.described()}, {plan.total / _GIB:.1f} GiB planned")


def run_case(name: str, directory: Path, variant: str, tokens: int) -> None:
    command = [sys.executable, __file__, "--tokens", str(tokens)]
    command += ["--child", str(directory), variant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name}, {variant}: failed: {done.stderr.splitlines()[-1][:200]}", flush=True)
        return
    planned, found, context, fragments = json.loads(done.stdout.splitlines()[-1])
    report(f"{name}, {variant}", planned, found)
    print(
        f"{'':32} context {context / 2**20:.0f} MiB (512 planned), reserved / peak {fragments:.2f}"
    )


if __name__ == "__main__":
    main()
