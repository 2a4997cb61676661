"""A node that trains adapters of a model of real shape: its peak memory against the plan, and its
updates a second of the processor in several number types.

    python benchmarks/real_shapes.py [--model qwen2.5-0.5b] [--engine torch] [--new 512]
                                     [--groups 1] [--kind story] [--rank 16] [--updates 5]
                                     [--limit-gb 16] [--device cpu] [--dtype float32 bfloat16]

The weights are random, in bfloat16 as the hub has them; the vocabulary has its 151,936 entries. Or
`--model` is a directory with a real model.
Questions are those of `hashed_questions.py`: 8 answers of `--new` tokens a group, `--groups` an
update. The node is whole: `swarm-node join`, with its trainer, sampler and network. Memory is the
peak of the tree's proportional set size. The plan is the one that `join` makes and prints, which on
a CPU counts code and libraries too.
With several number types (`--dtype`) a node runs in each, and the last line compares their updates
a second of the processor, of the whole tree. `--model least` is the model of next to nothing.
With `--limit-gb`, as root on cgroup v1 or v2, the kernel ends the node when it takes more. On a GPU
(`--device cuda`) memory is the GPU's, as nvidia-smi says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from figures import step_file, tell
from hashed_questions import QUESTIONS
from node_process import Memory, NodeProcess, cpu_seconds
from random_model import write_weights
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from swarm_node.errors import SwarmNodeError
from swarm_node.node.preflight.probe import gpu_memory
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.shapes import known_shape

GROUP, RANK = 8, 16
#: Seconds for a node to start; half a billion weights in float32 take minutes on a busy CPU.
_GPU_WAIT, _CPU_WAIT = 150.0, 3600.0
_NAMED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: The first token that is no letter.
_FIRST_WORD = 256
LEAST = ModelConfig(
    *(151_936, 16, 16, 1, 1, 1, 1e6), max_position_embeddings=4096, tie_word_embeddings=True
)


def shape_named(name: str) -> ModelConfig:
    """The shape of a short name of `swarm-node plan`, or of `least`, the smallest.

    Raises:
        SystemExit: there is no such name.
    """
    shape = LEAST if name == "least" else known_shape(name)
    if shape is None:
        raise SystemExit(f"no shape is called {name}: docs/models.md has the names")
    return shape


def make_model(target: Path, shape: ModelConfig, mean_answer: int = 0) -> Path:
    """A model of random weights with a tokenizer of as many entries as the hub's. With a
    `mean_answer`, so many tokens end an answer that answers have that length in the mean, the
    distribution being nearly uniform; else nearly none ends before the limit."""
    if (target / "model.safetensors").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*letters, *(f"Ġw{n}" for n in range(151_640 - len(letters)))]
    tokenizer = Tokenizer(models.BPE({entry: n for n, entry in enumerate(entries)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_NAMED[1:2]),
        chat_template=_TEMPLATE,
    )
    fast.save_pretrained(target)
    end = fast.convert_tokens_to_ids("<|im_end|>")
    more = range(shape.vocab_size // mean_answer if mean_answer else 0)
    ends = [end, *(_FIRST_WORD + number for number in more)]
    (target / "config.json").write_text(json.dumps({**shape.to_hf(), "eos_token_id": ends}))
    write_weights(target / "model.safetensors", shape, torch.bfloat16)
    return target


@contextmanager
def limited(gigabytes: float) -> Iterator[None]:
    """Run this process and what it starts in a control group with so much memory; 0 is no limit."""
    if not gigabytes:
        yield
        return
    old = Path("/sys/fs/cgroup/memory")
    root, name = (
        (old, "memory.limit_in_bytes") if old.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    )
    group = root / "swarm-node-benchmark"
    group.mkdir(exist_ok=True)
    (group / name).write_text(str(int(gigabytes * 1e9)))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def settings_of(model: Path, arguments: argparse.Namespace, dtype: str, new: int) -> dict[str, Any]:
    """The settings of a node that makes `--groups` of `new` tokens an answer for each update."""
    return {
        "model": model,
        "environment.name": "hashed_questions:create",
        "environment.options.kind": arguments.kind,
        "sampling.engine": arguments.engine,
        "sampling.group_size": GROUP,
        "sampling.max_concurrent_groups": arguments.groups,
        "sampling.max_new_tokens": new,
        "experience.local": arguments.groups,
        "experience.external": 0,
        "training.lora_rank": arguments.rank,
        "training.dtype": dtype,
        "run.eval_seconds": 86400,
        "run.eval_tasks": 1,
        "run.save_steps": 1000,
        "run.threads": arguments.threads,
        "run.device": arguments.device,
        "log_format": "json",
    }


def run(
    model: Path, arguments: argparse.Namespace, dtype: str, updates: int, new: int
) -> dict[str, Any]:
    """Peak PSS in MiB (on a GPU, of its used memory), and CPU and wall seconds per update after the
    first, of a node that makes `updates`."""
    settings = settings_of(model, arguments, dtype, new)
    before = gpu_memory() if arguments.device != "cpu" else None
    with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as directory:
        node = NodeProcess(
            Path(directory),
            [f"{key}={value}" for key, value in settings.items()],
            log_file=step_file(f"{model.name}-{dtype}-{new}.node.log"),
        )
        peak, lost = Memory(), 0
        marks: list[tuple[int, float, float]] = []
        try:
            node.start(_GPU_WAIT if before else _CPU_WAIT)
            plan = planned(node)
            pid, update_count = node.process.pid, -1
            while update_count < updates:
                peak.raise_to(Memory.of(pid))
                if before and (here := gpu_memory()):
                    lost = max(lost, before.free - here.free)
                if node.process.poll() is not None:
                    raise RuntimeError(node.log.read_text()[-2000:])
                now, faults = update_count, {}
                with contextlib.suppress(SwarmNodeError):  # too busy to answer
                    snapshot = node.status()
                    now, faults = snapshot.steps, snapshot.faults
                if now != update_count:
                    update_count = now
                    marks.append((update_count, cpu_seconds(pid), time.monotonic()))
                    so_far = {
                        "updates": update_count,
                        "cpu_seconds": marks[-1][1],
                        "faults": faults,
                    }
                    so_far["peak_mib"] = lost / 2**20 if before else peak.pss
                    tell(model=model.name, planned_mib=plan, **so_far)
                    print(so_far, file=sys.stderr, flush=True)
                time.sleep(0.5)
        finally:
            node.stop()
    each = per_update(marks)
    return {
        "mib": lost / 2**20 if before else peak.pss,
        "cpu_seconds": each[0],
        "seconds": each[1],
        "updates": update_count,
        "planned": plan,
        "faults": faults,
    }


def per_update(marks: list[tuple[int, float, float]]) -> tuple[float, float]:
    """CPU and wall seconds of an update, from marks of updates, CPU and wall time; NaN if no update
    after the first was seen to end."""
    first = next((mark for mark in marks if mark[0]), marks[-1])
    last, nothing = marks[-1], float("nan")
    count = last[0] - first[0]
    if not count:
        return nothing, nothing
    return (last[1] - first[1]) / count, (last[2] - first[2]) / count


def planned(node: NodeProcess) -> float:
    """MiB of the plan that the node made, from its first lines."""
    return float(next(e["bytes"] for e in node.events() if e["event"] == "memory")) / 2**20


def import_environments() -> None:
    """Let the processes that are started import this folder's modules, as environments, beside all
    that this one can."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--engine", default="torch", choices=("torch", "vllm"))
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--kind", choices=QUESTIONS, default="story")
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    types = ("auto", "float32", "bfloat16")
    parser.add_argument("--dtype", nargs="+", default=["auto"], choices=types)
    parser.add_argument("--limit-gb", type=float, default=0.0)
    parser.add_argument("--models", type=Path, default=Path("build/real-shapes"))
    arguments = parser.parse_args()
    import_environments()
    directory = Path(arguments.model)
    if not directory.is_dir():
        directory = make_model(arguments.models / arguments.model, shape_named(arguments.model))
    figures_of_dtype = {}
    with limited(arguments.limit_gb):
        for dtype in arguments.dtype:
            figures_of_dtype[dtype] = run(
                directory, arguments, dtype, arguments.updates, arguments.new
            )
            show(arguments, dtype, figures_of_dtype[dtype])
    first, *others = figures_of_dtype.items()
    for dtype, figures in others:
        ratio = first[1]["cpu_seconds"] / figures["cpu_seconds"]
        print(f"updates a CPU second in {dtype}: {ratio:.2f} of those in {first[0]}")


def show(arguments: argparse.Namespace, dtype: str, figures: dict[str, Any]) -> None:
    """Print the figures of one node."""
    measured, plan = figures["mib"], figures["planned"]
    limit = f", at most {arguments.limit_gb:g} GB of memory" * bool(arguments.limit_gb)
    trained = f"LoRA {arguments.rank}" if arguments.rank else "all weights"
    what = f"{arguments.model}, {trained}, {arguments.engine}, {dtype}"
    print(f"{what}, {arguments.groups} groups of {GROUP} answers of {arguments.new}{limit}")
    print(f"planned MiB {plan:,.0f}, measured {measured:,.0f}, ratio {plan / measured:.2f}")
    tell(
        model=arguments.model,
        engine=arguments.engine,
        dtype=dtype,
        new=arguments.new,
        planned_mib=plan,
        measured_mib=measured,
        updates=figures["updates"],
        faults=figures["faults"],
        update_seconds=figures["seconds"],
        update_cpu_seconds=figures["cpu_seconds"],
    )
    print(
        f"{figures['updates']} updates, {figures['cpu_seconds']:.1f} CPU s and "
        f"{figures['seconds']:.1f} s each",
        flush=True,
    )


if __name__ == "__main__":
    main()
