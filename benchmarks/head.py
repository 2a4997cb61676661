"""Cost of log-probs in pieces at a real vocabulary: time and peak memory, against all at once.

    python benchmarks/head.py [--tokens 1024] [--hidden 896] [--vocabulary 151936] [--repetitions 3]

Forward and backward of the output head alone, trained, or frozen as under LoRA. "torch" is linear
and cross_entropy with all logits at once, and then with the entropy; "ours" has the entropy always,
and holds at most the logits in `PIECES`. "chunked" is linear_cross_entropy of torch 2.13, which
returns no entropy. Each variant runs in a child process of its own, because only that tells its
peak memory: the peak resident set less what was there before. Time is that of the one thread's
processor. Rounds alternate. On a GPU, in bfloat16, memory is by torch's allocator, and time is wall
time of a second run. There liger-kernel's fused loss, which is a mean and no log-probs, is a
further variant where installed; its head is frozen.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from figures import tell

#: Most logits at once of "ours".
PIECES = {"ours at once": 1 << 62, **{f"ours 2^{n}": 1 << n for n in (25, 24, 23)}}
LIGER, CHUNKED = "liger-kernel", "chunked"
WHOLE = ("torch", "torch, entropy")


def child(arguments: argparse.Namespace) -> None:
    """Measure one variant; prints a JSON object."""
    import torch

    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16} if on_gpu else {}
    hidden = torch.randn(arguments.tokens, arguments.hidden, **kind).requires_grad_()
    head = torch.randn(arguments.vocabulary, arguments.hidden, **kind) / arguments.hidden**0.5
    head.requires_grad_(arguments.child.startswith("trained"))
    target_ids = torch.randint(arguments.vocabulary, (arguments.tokens,), device=hidden.device)
    if on_gpu:
        once(arguments, hidden, head, target_ids)  # kernels are chosen, or compiled
        hidden.grad = head.grad = None
        torch.cuda.reset_peak_memory_stats()
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        once(arguments, hidden, head, target_ids)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    else:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
        before, started = status("VmRSS"), time.process_time()
        once(arguments, hidden, head, target_ids)
        seconds = time.process_time() - started
        peak = (status("VmHWM") - before) / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


def once(arguments: argparse.Namespace, hidden: Any, head: Any, target_ids: Any) -> None:
    """Forward and backward of hidden [T, H] for the tokens `target_ids` i64[T], head [V, H]."""
    import torch
    import torch.nn.functional as F

    kind = arguments.child.partition(" ")[2]
    if kind == LIGER:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        LigerFusedLinearCrossEntropyLoss()(head, hidden, target_ids).backward()
    elif kind == CHUNKED:
        options = torch.nn.LinearCrossEntropyOptions()
        losses = F.linear_cross_entropy(hidden, head, target_ids, reduction="none", options=options)
        losses.sum().backward()  # type: ignore[no-untyped-call]
    elif kind in WHOLE:
        logps = F.linear(hidden, head).float().log_softmax(-1)
        if kind != WHOLE[0]:
            with torch.no_grad():
                (-(logps.exp() * logps).sum(-1)).mean()
        # As F.cross_entropy does.
        F.nll_loss(logps, target_ids, reduction="sum").backward()  # type: ignore[no-untyped-call]
    else:
        from swarm_node.policy.training.objective.head import head_logprobs

        piece = max(1, PIECES[kind] // arguments.vocabulary)
        logps = head_logprobs(head, hidden, target_ids, 1.0, piece)[0]
        logps.sum().backward()  # type: ignore[no-untyped-call]


def status(name: str) -> int:
    """KiB of this process, by the kernel's name."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == f"{name}:")


def variants() -> list[str]:
    """Those that run here."""
    import torch

    kinds = [*WHOLE, *PIECES]
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        kinds.append(CHUNKED)
    variant_names = [f"{head} {kind}" for head in ("trained", "frozen") for kind in kinds]
    fused = torch.cuda.is_available() and importlib.util.find_spec("liger_kernel") is not None
    return variant_names + [f"frozen {LIGER}"] * fused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    results_of_variant: dict[str, list[dict[str, float]]] = {name: [] for name in variants()}
    for _ in range(arguments.repetitions):
        for name, results in results_of_variant.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--child", name]
            child_process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results.append(json.loads(child_process.stdout))
    middle = {
        name: {key: statistics.median(one[key] for one in results) for key in results[0]}
        for name, results in results_of_variant.items()
    }
    whole = middle["trained torch"]
    for name, one in middle.items():
        print(
            f"{name:22} {one['seconds']:8.3f} s (x {one['seconds'] / whole['seconds']:.2f}), "
            f"{one['peak_mib']:6.0f} MiB (x {one['peak_mib'] / whole['peak_mib']:.2f})"
        )
        tell(variant=name, tokens=arguments.tokens, **one, beside=whole)


if __name__ == "__main__":
    main()
