"""What log-probs in pieces cost at a real vocabulary: time and peak memory, to all at once.

    python benchmarks/head.py [--tokens 1024] [--hidden 896] [--vocabulary 151936] [--repetitions 3]

Forward and backward of the output head alone, trained, or frozen as under LoRA. Each variant runs
in a child process of its own, because only that tells its peak memory: the peak resident set less
what was there before. Time is that of the one thread's processor. Rounds alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

#: name: most logits at once, and whether the head is trained.
VARIANTS = {
    "trained, all at once": (1 << 62, True),
    "trained, 2^25 logits": (1 << 25, True),
    "frozen, all at once": (1 << 62, False),
    "frozen, 2^25 logits": (1 << 25, False),
    "frozen, 2^23 logits": (1 << 23, False),
}


def child(arguments: argparse.Namespace) -> None:
    """Measure one variant; prints a JSON object."""
    import torch

    from swarm_node.policy.training.head import head_logprobs

    torch.set_num_threads(1)
    hidden = torch.randn(arguments.tokens, arguments.hidden, requires_grad=True)
    head = torch.randn(arguments.vocabulary, arguments.hidden) / arguments.hidden**0.5
    wanted = torch.randint(arguments.vocabulary, (arguments.tokens,))
    most, trained = VARIANTS[arguments.child]
    head.requires_grad_(trained)
    piece = max(1, most // arguments.vocabulary)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    before = status("VmRSS")
    started = time.process_time()
    head_logprobs(head, hidden, wanted, 1.0, piece).sum().backward()  # type: ignore[no-untyped-call]
    seconds = time.process_time() - started
    peak = (status("VmHWM") - before) / 1024
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


def status(name: str) -> int:
    """KiB of this process, by the kernel's name."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) for row in rows if row[0] == f"{name}:")


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
    found: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for _ in range(arguments.repetitions):
        for name, results in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--child", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results.append(json.loads(done.stdout))
    middle = {
        name: {key: statistics.median(one[key] for one in results) for key in results[0]}
        for name, results in found.items()
    }
    whole = middle["trained, all at once"]
    for name, one in middle.items():
        print(
            f"{name:22} {one['seconds']:6.1f} CPU s (x {one['seconds'] / whole['seconds']:.2f}), "
            f"{one['peak_mib']:6.0f} MiB (x {one['peak_mib'] / whole['peak_mib']:.2f})"
        )


if __name__ == "__main__":
    main()
