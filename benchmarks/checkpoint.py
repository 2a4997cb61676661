"""Stall of training by a checkpoint, and duration of the checkpoint.

    python benchmarks/checkpoint.py [--repetitions N] [--home DIR]

Two random models: one of Qwen2.5-0.5B's shape, of which LoRA 32 is trained in bfloat16, and one of
113 million weights, all trained in float32. Each is measured in a process of its own. "written" is
a checkpoint that training waits for, as it was before a thread wrote them. "stall" is the wait of
the update loop for a checkpoint that a thread writes: at its start, and before the next step, until
the copy is complete. "beside" is the ratio of an update during copy and write to an update alone:
they share the processor. Medians; all times are wall times, on the disk of `--home`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.shapes import known_shape

ROWS, PROMPT, ANSWER = 8, 64, 64
#: name: shape, settings of the trainer.
ARMS: dict[str, tuple[ModelConfig | None, dict[str, Any]]] = {
    "0.5B, LoRA 32": (
        known_shape("qwen2.5-0.5b"),
        {"lora_rank": 32, "dtype": "bfloat16", "published": "adapter"},
    ),
    "113 million, all weights": (
        ModelConfig(32_768, 768, 3072, 10, 12, 4, tie_word_embeddings=True),
        {},
    ),
}


def child(name: str, place: Path, repetitions: int) -> None:
    """Measure one arm; prints a JSON object."""
    import numpy as np
    import torch
    from defaults import trainer_settings

    from swarm_node.policy.experience.batch import Batch, TrainRow
    from swarm_node.policy.training.processes.worker import TrainerHost
    from swarm_node.rollout import Provenance

    torch.set_num_threads(1)
    shape, settings = ARMS[name]
    assert shape is not None
    write_model(shape, place)
    rng = np.random.default_rng(0)

    def tokens(count: int) -> Any:
        return rng.integers(0, shape.vocab_size, count).astype(np.uint32)

    rows = [
        TrainRow(tokens(PROMPT), tokens(ANSWER), None, (-1.0) ** n, Provenance.LOCAL)
        for n in range(ROWS)
    ]
    batch, weights_path = Batch(tuple(rows)), place / "weights"
    weights_path.mkdir()
    host = TrainerHost(
        place, place / "checkpoints", weights_path, trainer_settings(**settings), digest=b"d" * 32
    )
    wait_seconds = [0.0]
    wait = host.core.before_step

    def timed() -> None:
        start = time.perf_counter()
        wait()
        wait_seconds[0] += time.perf_counter() - start

    host.core.before_step = timed
    times: dict[str, list[float]] = {"written": [], "stall": [], "alone": [], "beside": []}
    host.update(batch)  # makes the moments
    for _ in range(repetitions):
        times["alone"].append(seconds(lambda: host.update(batch)))
        times["written"].append(seconds(lambda: host.checkpoint({})))
        host.update(batch)
        wait_seconds[0] = 0.0
        call_seconds = seconds(lambda: host.checkpoint({}, wait=False))
        times["beside"].append(seconds(lambda: host.update(batch)))
        times["stall"].append(call_seconds + wait_seconds[0])
    size = host.core.state(b"", {}).bytes
    host.close()
    print(json.dumps({"mb": size / 1e6, **{k: statistics.median(v) for k, v in times.items()}}))


def seconds(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def write_model(shape: ModelConfig, place: Path) -> None:
    """A random model of this shape, in bfloat16."""
    import torch
    from safetensors.torch import save_file

    from swarm_node.policy.models.decoder.causal_lm import CausalLM

    (place / "config.json").write_text(json.dumps(shape.to_hf()))
    model = CausalLM(shape, generator=torch.Generator().manual_seed(5))
    save_file(model.hf_state(torch.bfloat16), place / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]), options.repetitions)
        return
    print("| trained | MB | written, s | stall, s | ratio (goal 0.10) | update alone / beside, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ARMS:
        with tempfile.TemporaryDirectory(dir=options.home) as place:
            command = [sys.executable, __file__, "--child", name, place]
            command += ["--repetitions", str(options.repetitions)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(result.stdout)
        print(
            f"| {name} | {row['mb']:,.0f} | {row['written']:.2f} | {row['stall']:.3f} | "
            f"{row['stall'] / row['written']:.3f} | "
            f"{row['alone']:.1f} / {row['beside']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
