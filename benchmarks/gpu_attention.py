"""Training on prompts that answers share, and on rows of their own, of lengths that differ from
update to update: torch's choice of attention kernel beside flash attention.

    python benchmarks/gpu_attention.py --model DIR [--updates 6] [--groups 8]

On Hopper torch 2.11 prefers cuDNN's attention, which builds a plan for every new shape (a second
each on a B200, modelscope/FunASR#3704); consumer GPUs take flash attention. With
TORCH_CUDNN_SDPA_DEPRIORITIZED=1 every GPU does. Each choice is a process: LoRA 32 in bfloat16, the
same batches twice, so that the second pass has no new shapes. It fails where an update is skipped
or micro-batches are halved, and where answers that share a long prompt are not packed with it.
Without CUDA it runs on the CPU, where there is one choice.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import trainer_settings
from figures import tell

from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.training.objective.packing import sequences
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.rollout import Provenance

ON_GPU = torch.cuda.is_available()
DEPRIORITIZED = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
#: Case: tokens of a prompt, and of an answer in the mean.
CASES = {"shared prompts": (512, 64), "rows of their own": (64, 256)}
ANSWERS, LONGEST = 8, 512


def batch_of(case: str, vocabulary: int, groups: int, seed: int) -> Batch:
    """Groups of answers of random lengths, half of them good, which differ by `seed`."""
    prompt, mean = CASES[case] if ON_GPU else tuple(part // 16 for part in CASES[case])
    rng, rows = np.random.default_rng(seed), []
    for group in range(groups):
        prompt_ids = rng.integers(3, vocabulary, prompt).astype(np.uint32)
        for number in range(ANSWERS):
            size = int(min(1 + rng.geometric(1 / mean), LONGEST))
            answer = rng.integers(3, vocabulary, size).astype(np.uint32)
            rows.append(
                TrainRow(prompt_ids, answer, None, (-1.0) ** number, Provenance.LOCAL, group=group)
            )
    return Batch(tuple(rows))


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of each case in this process."""
    settings = {"lora_rank": 32, "micro_batch_tokens": 8192, "device": "auto", "dtype": "auto"}
    core = TrainerCore(arguments.model, trainer_settings(**settings))
    return [measure_case(core, case, arguments) for case in CASES]


def measure_case(core: TrainerCore, case: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each update in the first pass over the batches and in the second; tokens and
    sequences of all batches; and the peak of torch's allocator in MiB, 0 on a CPU."""
    vocabulary, halvings = core.model.config.vocab_size, 0
    batches = [batch_of(case, vocabulary, arguments.groups, n) for n in range(arguments.updates)]
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    passes: list[list[float]] = []
    for _ in range(2):
        seconds = []
        for batch in batches:
            start = time.perf_counter()
            stats = core.update(batch)
            seconds.append(time.perf_counter() - start)
            assert stats.skipped is None, stats.skipped
            halvings += stats.halvings
            tell(case=case, flash=DEPRIORITIZED in os.environ, update_s=seconds[-1])
        passes.append(seconds)
    return {
        "case": case,
        "first_pass_s": passes[0],
        "second_pass_s": passes[1],
        "tokens": sum(len(row) for batch in batches for row in batch.rows),
        "rows": sum(len(batch.rows) for batch in batches),
        "sequences": sum(len(sequences(batch.rows)) for batch in batches),
        "halvings": halvings,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if ON_GPU else 0.0,
    }


def run_child(arguments: argparse.Namespace, flash: bool) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "--model", str(arguments.model), "--child"]
    command += ["--updates", str(arguments.updates), "--groups", str(arguments.groups)]
    environment = {key: value for key, value in os.environ.items() if key != DEPRIORITIZED}
    environment |= {DEPRIORITIZED: "1"} if flash else {}
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return list(json.loads(result.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    faults = []
    for flash in (False, True) if ON_GPU else (False,):
        choice = "flash" if flash else "torch's choice"
        for figures in run_child(arguments, flash):
            case = figures["case"]
            first, second = (statistics.median(figures[f"{n}_pass_s"]) for n in ("first", "second"))
            tell(attention=choice, **figures)
            print(
                f"{case}, {choice}: {first:.2f} s an update of new shapes, {second:.2f} s of "
                f"known, {figures['rows']} rows in {figures['sequences']} sequences, "
                f"{figures['peak_mib']:,.0f} MiB",
                flush=True,
            )
            if figures["halvings"]:
                faults.append(f"{case}, {choice}: micro-batches were halved")
            if case == "shared prompts" and figures["sequences"] == figures["rows"]:
                faults.append("answers were not packed with the prompt that they share")
    if faults:
        print("FAIL because " + "; ".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
