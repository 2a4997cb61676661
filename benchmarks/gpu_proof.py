"""Measurements that only gpu_proof.sh needs: facts, doctor, attention's kernels, decoding.

    python benchmarks/gpu_proof.py facts | doctor | attention | decoding [--models NAME …]
                                   [--rows N …] [--keep DIR]

One JSON object a line. Without CUDA all of it runs on the CPU, and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
from figures import tell
from plan import make_directory

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.attention import causal, within
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.placement import Placement, hardware, place
from swarm_node.policy.sampling.decoding import CacheShape
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
LENGTHS = (512, 2048, 8192) if ON_GPU else (512, 1024)
ANSWERS = 8
#: Answers at once, tokens of each and of its prompt.
BATCHES, NEW, PROMPT = ((8, 64, 256), 256, 256) if ON_GPU else ((8, 16), 16, 32)


#: Blocks of main memory, 12 GiB: more than a node with adapters asks for (free.py).
_GROWN_BLOCKS = 48


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)
    tell(**figures)


def shape_of(name: str) -> ModelConfig:
    return known_shape(name) or ModelConfig.from_directory(resolve(name))


#: Packages whose versions or seconds of import decide what a machine can do.
_PACKAGES: tuple[str, ...] = (
    "torch",
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "peft",
    "bitsandbytes",
)
_PACKAGES += ("hivemind", "numpy", "protobuf", "grpcio", "triton", "vllm")
_IMPORTED = ("torch", "transformers", "peft", "hivemind", "swarm_node.cli.main")
_SMI = "name,driver_version,compute_mode,mig.mode.current,persistence_mode,memory.total"


#: Uses main memory in blocks of 256 MiB, and waits for up to five seconds where little is left.
_USE = """
import sys, time, psutil
held, waited = [], 0
while len(held) < int(sys.argv[1]) and waited < 20:
    if psutil.virtual_memory().available < 1 << 29:
        waited += 1
        time.sleep(0.25)
    else:
        held.append(b"1" * (1 << 28))
"""


def memory_after_growth(blocks: int) -> int:
    """Use main memory for a moment, and return the bytes that are available then. That of some
    virtual machines starts small and grows as it is used, and a node first asks what is free."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", _USE, str(blocks)], timeout=30)
    return int(psutil.virtual_memory().available)


def facts(_: argparse.Namespace) -> bool:
    """Report the machine on which the other figures were measured. False if the GPU's compute mode
    is exclusive: a node has several processes."""
    machine_facts: dict[str, Any] = {"python": sys.version.split()[0], "kernel": platform.release()}
    machine_facts |= {"cuda": torch.version.cuda, "device": "CPU", "cores": os.cpu_count()}
    machine_facts |= {"memory_bytes": psutil.virtual_memory().available}
    machine_facts |= {"shared_bytes": shutil.disk_usage("/dev/shm").free}
    machine_facts |= {"temporary_bytes": shutil.disk_usage(tempfile.gettempdir()).free}
    machine_facts |= {"versions": {name: version_of(name) for name in _PACKAGES}}
    well = True
    if ON_GPU:
        machine_facts |= {"grown_bytes": memory_after_growth(_GROWN_BLOCKS)}
        gpu = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info()
        machine_facts |= {"device": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}
        machine_facts |= {"free_bytes": free, "total_bytes": total, "bfloat16": hardware().bfloat16}
    if ON_GPU and (command := shutil.which("nvidia-smi")):
        query = [command, f"--query-gpu={_SMI}", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()
        machine_facts["nvidia_smi"] = dict(zip(_SMI.split(","), answer.split(", "), strict=False))
        well = "Exclusive" not in answer
        if not well:
            print("FAIL because the GPU's compute mode is exclusive: set it to Default")
    say(**machine_facts)
    return well


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def imports() -> bool:
    """Seconds to import each module that a node's processes need, in a process of its own."""
    well = True
    for name in _IMPORTED:
        began = time.perf_counter()
        import_process = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True
        )
        say(
            module=name,
            import_seconds=round(time.perf_counter() - began, 1),
            code=import_process.returncode,
        )
        if import_process.returncode:
            print(import_process.stderr.decode(errors="replace")[-1000:])
            print(f"FAIL because {name} cannot be imported")
            well = False
    return well


def doctor(_: argparse.Namespace) -> bool:
    """Seconds of imports; what `swarm-node doctor` says, and the seconds of that and its probe.
    False where a module cannot be imported, where doctor does not answer, and where processes
    cannot share the GPU's memory: plans then hold a second base."""
    well = imports()
    began = time.perf_counter()
    # Its exit code is no verdict here: a machine without network has errors of its own.
    command = [sys.executable, "-m", "swarm_node", "doctor", "--json"]
    doctor_process = subprocess.run(command, capture_output=True, text=True)
    seconds = round(time.perf_counter() - began, 1)
    if not doctor_process.stdout:
        print(f"{doctor_process.stderr[-2000:]}\nFAIL because doctor did not answer")
        return False
    report = json.loads(doctor_process.stdout)
    say(seconds=seconds, **report)
    if unshared := report["facts"]["seen"]["unshared"]:
        print(f"FAIL because processes do not share the GPU's memory: {unshared}")
    return well and not unshared


def attention(arguments: argparse.Namespace) -> bool:
    """The operators of forward and backward passes, by torch's profiler: none holds all scores."""
    well = True
    for name in arguments.models:
        shape = shape_of(name)
        for dtype in (torch.float32, torch.bfloat16):
            for length in LENGTHS:
                for how in ("rows alone", "shared prompt"):
                    operator_figures = attention_operators(
                        shape, dtype, length, how == "shared prompt"
                    )
                    bad = any("math" in one for one in operator_figures["operators"])
                    well &= not bad and bool(operator_figures["operators"])
                    say(
                        model=name,
                        dtype=str(dtype),
                        tokens=length,
                        how=how,
                        **operator_figures,
                        bad=bad,
                    )
    return well


def attention_operators(
    shape: ModelConfig, dtype: torch.dtype, length: int, shared: bool
) -> dict[str, Any]:
    """One layer's attention for `length` tokens: operators, and on a GPU KiB per token at its
    peak."""
    query, key, value = (
        torch.randn(1, length, heads, shape.head_dim, device=DEVICE, dtype=dtype).requires_grad_()
        for heads in (shape.num_attention_heads, *(shape.num_key_value_heads,) * 2)
    )
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = causal
    if shared:  # a prompt as long as all of its answers
        prompt, each = length // 2, length // 2 // ANSWERS
        numbers = torch.arange(ANSWERS).repeat_interleave(each) + 1
        segments = torch.cat([torch.zeros(prompt, dtype=torch.int64), numbers])[None]
        attend, _ = within(segments, DEVICE)
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attend(query, key, value).sum().backward()  # type: ignore[no-untyped-call]
    names = {event.key for event in profile.key_averages()}
    chosen = sorted(one for one in names if "_attention" in one or "varlen" in one)
    # The operator that picks among them is no kernel.
    operators = [one for one in chosen if not one.endswith("scaled_dot_product_attention")]
    if not ON_GPU:
        return {"operators": operators, "device": "CPU"}
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return {"operators": operators, "kib_per_token": round(peak / length / 1024, 1)}


def copy_rate() -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.empty((1 << 30) if ON_GPU else (1 << 26), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        started = time.perf_counter()
        target.copy_(source)
        if ON_GPU:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * source.numel() / best


def decoding(arguments: argparse.Namespace) -> bool:
    """Tokens per second of the built-in sampler, and of a sampler that only waits for memory: each
    step it reads all weights, and the keys and values of half of the answers' tokens."""
    rate, where, well = copy_rate(), place("auto", "auto", hardware()), True
    width = 2 if where.half else 4
    with tempfile.TemporaryDirectory() as work:
        for name in arguments.models:
            shape = shape_of(name)
            (arguments.keep or Path(work)).mkdir(parents=True, exist_ok=True)
            directory = make_directory((arguments.keep or Path(work)) / name, shape, torch.bfloat16)
            token = 2 * shape.num_hidden_layers * shape.key_value_size * width
            for rows, graphs in product(
                arguments.rows or BATCHES, (True, False) if ON_GPU else (False,)
            ):
                cache = CacheShape(rows, PROMPT + NEW) if graphs else None
                step_bytes = width * shape.weight_count + rows * (PROMPT + NEW / 2) * token
                tokens_per_second, faults = asyncio.run(
                    sampling_rate(directory, where, rows, cache)
                )
                limit = rows * rate / step_bytes
                say(
                    **{"model": name, "rows": rows, "new": NEW, "device": where.device},
                    **{
                        "graphs": graphs,
                        "tokens_per_s": round(tokens_per_second),
                        "limit": round(limit),
                    },
                    **{"share": round(tokens_per_second / limit, 3), "faults": faults},
                )
                if faults:
                    print(f"FAIL because of faults while {name} decoded {rows} rows: {faults}")
                    well = False
    return well


async def sampling_rate(
    directory: Path, where: Placement, rows: int, cache: CacheShape | None
) -> tuple[float, dict[str, int]]:
    """The best of three tries, after one that warms up, in tokens per second; and faults. With a
    `cache` the sampler decodes by CUDA graphs."""
    sampler, rates = TorchSampler.from_directory(directory, where, shape=cache), []
    try:
        for turn in range(4):
            requests = [
                SampleRequest(tuple(range(3 + n, 3 + n + PROMPT)), ANSWERS, 100 * turn + n, NEW)
                for n in range(rows // ANSWERS)
            ]
            started = time.perf_counter()
            groups = await sampler.sample(requests)
            tokens = sum(len(one.token_ids) for group in groups for one in group)
            rates.append(tokens / (time.perf_counter() - started))
    finally:
        await sampler.close()
    return max(rates[1:]), dict(sampler.faults)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("facts", "doctor", "attention", "decoding"))
    parser.add_argument("--models", nargs="+", default=["tiny"])
    parser.add_argument("--keep", type=Path, help="directory for models, which are not made again")
    parser.add_argument("--rows", nargs="+", type=int, help="answers at once, of decoding")
    arguments = parser.parse_args()
    steps = {"facts": facts, "doctor": doctor, "attention": attention, "decoding": decoding}
    measure = steps[arguments.what]
    sys.exit(not measure(arguments))
