"""Worth of the trainer's economies: padding, log-probs in pieces, layers run again, LoRA.

    python benchmarks/trainer.py [--rows N] [--repetitions N]

One random model of Qwen2.5's shape (hidden 256, 8 layers, vocabulary 32,768, tied) trains on N rows
of 512 tokens, three quarters of them completion. For padding, 4 N rows have log-normal lengths
(median 90, 8 to 1024). For shared prompts, 4 N rows are eight answers of 64 tokens to each prompt
of 384. Each variant runs in a child process of its own, because only that tells its peak memory:
the peak resident set of the child less what it had before the first update, optimizer state
included. Rivals: the same update without the economy; for padding, micro-batches filled up to their
budget; for shared prompts, every row by itself. Time is that of the one thread's processor, which a
busy machine stretches less than wall time.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plan import make_directory

CONFIG: dict[str, Any] = {
    "vocab_size": 32_768,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
#: name: settings of the trainer, log-probs in pieces, micro-batches up to their budget.
VARIANTS: dict[str, dict[str, Any]] = {
    "all weights, full log-probs": {"full": True},
    "all weights": {},
    "all weights, checkpointing": {"settings": {"activation_checkpointing": True}},
    "LoRA 16": {"settings": {"lora_rank": 16}},
    "LoRA 16, checkpointing": {"settings": {"lora_rank": 16, "activation_checkpointing": True}},
    "long tail, filled": {"tail": True, "filled": True},
    "long tail": {"tail": True},
    "groups of 8, apart": {"grouped": True, "apart": True},
    "groups of 8": {"grouped": True},
}


def filled(rows: Sequence[Any], token_budget: int, share: bool = True) -> list[list[int]]:
    """The rival: as many rows as the budget takes, longest first."""
    groups: list[list[int]] = []
    max_length = 0
    for index in sorted(range(len(rows)), key=lambda index: -len(rows[index])):
        if groups and max_length * (len(groups[-1]) + 1) <= token_budget:
            groups[-1].append(index)
        else:
            groups.append([index])
            max_length = len(rows[index])
    return groups


def child(directory: Path, name: str, count: int, repetitions: int) -> None:
    """Measure one variant; prints a JSON object."""
    import numpy as np
    import torch
    from defaults import trainer_settings

    from swarm_node.policy.experience.batch import Batch
    from swarm_node.policy.training.objective import logprobs, packing
    from swarm_node.policy.training.update import ranks
    from swarm_node.policy.training.update.trainer import TrainerCore

    variant = VARIANTS[name]
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    if variant.get("grouped"):
        rows = [row for _ in range(count // 2) for row in make_rows(rng, [448] * 8, 384)]
    else:
        lengths = np.full(count, 512)
        if variant.get("tail"):
            lengths = np.clip(rng.lognormal(4.5, 0.9, 4 * count), 8, 1024).astype(int)
        rows = [row for length in lengths.tolist() for row in make_rows(rng, [length], length // 4)]
    if variant.get("full"):  # default arguments: the one place that decides when to cut
        logprobs.completion_logprobs.__defaults__ = (1 << 62,)
    if variant.get("filled"):
        ranks.micro_batches = filled  # type: ignore[attr-defined]
    if variant.get("apart"):
        vars(packing)["WORTHWHILE"] = 0.0  # the name by which it is imported there
    core = TrainerCore(directory, trainer_settings(**variant.get("settings", {})))
    start_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repetitions + 1):  # the first makes the moments and is not timed
        start = time.process_time()
        assert core.update(Batch(tuple(rows))).skipped is None
        seconds.append(time.process_time() - start)
    state = core.state(b"", {})
    tensors = [*state.weights.values(), *state.optimizer.values()]
    result = {
        "seconds": statistics.median(seconds[1:]),
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start_rss) / 1024,
        "checkpoint_mib": sum(t.numel() * t.element_size() for t in tensors) / 2**20,
    }
    print(json.dumps(result))


def make_rows(rng: Any, lengths: Sequence[int], prompt: int) -> list[Any]:
    """Rows of random tokens that share a prompt, good and bad in turn."""
    import numpy as np

    from swarm_node.policy.experience.batch import TrainRow
    from swarm_node.rollout import Provenance

    def tokens(count: int) -> Any:
        return rng.integers(0, CONFIG["vocab_size"], count).astype(np.uint32)

    question = tokens(prompt)
    return [
        TrainRow(question, tokens(length - prompt), None, (-1.0) ** (n + length), Provenance.LOCAL)
        for n, length in enumerate(lengths)
    ]


def print_padding(budget: int = 8192, draws: int = 20) -> None:
    """Padding's share of what is computed, over random batches; no model is run."""
    import numpy as np

    from swarm_node.policy.training.objective.packing import micro_batches

    rng = np.random.default_rng(0)
    for count in (16, 64, 256):
        tokens, padded_counts, parts = 0, {"filled": 0, "ours": 0}, {"filled": 0, "ours": 0}
        for _ in range(draws):
            lengths = np.clip(rng.lognormal(4.5, 0.9, count), 8, 1024).astype(int).tolist()
            rows = [row for length in lengths for row in make_rows(rng, [length], length // 4)]
            tokens += sum(lengths)
            for name, packer in (("filled", filled), ("ours", micro_batches)):
                groups = packer(rows, budget)
                parts[name] += len(groups)
                padded_counts[name] += sum(len(group) * len(rows[group[0]]) for group in groups)
        print(
            f"padding, {count:3} long-tailed rows:  "
            + ", ".join(
                f"{name} {1 - tokens / padded_counts[name]:.1%} in {parts[name] / draws:.1f} parts"
                for name in padded_counts
            )
        )


def measure(directory: Path, name: str, count: int, repetitions: int) -> dict[str, float]:
    """Run one variant in a child process."""
    command = [sys.executable, __file__, "--rows", str(count)]
    command += ["--repetitions", str(repetitions), "--child", str(directory), name]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        directory, name = arguments.child
        child(Path(directory), name, arguments.rows, arguments.repetitions)
        return
    from swarm_node.policy.models.config import ModelConfig

    print_padding()
    with tempfile.TemporaryDirectory() as work:
        directory = make_directory(Path(work) / "model", ModelConfig(**CONFIG))
        print(f"{'variant':30} {'CPU s':>8} {'peak MiB':>9} {'checkpoint MiB':>15}")
        rows = {}
        for name in VARIANTS:
            rows[name] = row = measure(directory, name, arguments.rows, arguments.repetitions)
            figures = f"{row['seconds']:8.2f} {row['peak_mib']:9.0f} {row['checkpoint_mib']:15.1f}"
            print(f"{name:30} {figures}", flush=True)
    for title, variant, rival in (
        ("log-probs in pieces to full", "all weights", "all weights, full log-probs"),
        ("checkpointing to none", "all weights, checkpointing", "all weights"),
        ("LoRA to all weights", "LoRA 16", "all weights"),
        ("LoRA, checkpointing to all", "LoRA 16, checkpointing", "all weights"),
        ("long tail: ours to filled", "long tail", "long tail, filled"),
        ("prompts shared to apart", "groups of 8", "groups of 8, apart"),
    ):
        a, b = rows[variant], rows[rival]
        print(
            f"{title:30} time x {a['seconds'] / b['seconds']:.2f}, "
            f"peak memory x {a['peak_mib'] / b['peak_mib']:.2f}, "
            f"checkpoint x {a['checkpoint_mib'] / b['checkpoint_mib']:.2f}"
        )


if __name__ == "__main__":
    main()
