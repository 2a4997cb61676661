"""A trainer of adapters and vLLM: memory with one base and with two, and vLLM's time to sample.

    python benchmarks/one_base.py [--model qwen2.5-0.5b] [--dtype bfloat16]

The weights are random, of the real shape. Memory is the proportional set size of trainer and
engine, which counts once what both map: the peak of the engine's start, and after 8 answers of 16
tokens. It runs on a CPU, where the base is shared through a file.
tests/integration/test_vllm_gpu.py tries CUDA IPC.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from defaults import trainer_settings
from node_process import Memory, cpu_seconds
from real_shapes import RANK, make_model

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.shapes import known_shape
from swarm_node.policy.placement import Placement
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import Deadlines, plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.processes.worker import TrainerHost

ASKED = SampleRequest(tuple(range(1000, 1040)), n=8, seed=3, max_new_tokens=16)
PATIENT = Deadlines(start=3600.0, sync=3600.0)


async def measure(model: Path, work: Path, dtype: str, *, shares_base: bool) -> None:
    config, placement = (
        ModelConfig.from_directory(model),
        Placement("cpu", "bfloat16" if dtype == "bfloat16" else "float32"),
    )
    settings = trainer_settings(
        lora_rank=RANK, dtype=dtype, device="cpu", published="shared" if shares_base else "adapter"
    )
    (work / "weights").mkdir()
    host = TrainerHost(model, work / "checkpoints", work / "weights", settings)
    plan = plan_engine(config, placement=placement, max_rows=8, max_new_tokens=16, lora_rank=RANK)
    plan = replace(plan, shares_base=shares_base)
    trainer_mib, peak = Memory.of(os.getpid()).pss, Memory()
    sampler = VllmSampler.from_directory(model, plan, deadlines=PATIENT)
    try:
        async with asyncio.TaskGroup() as group:
            load = group.create_task(sampler.load(host.weights_path, 0))
            while not load.done():
                peak.raise_to(Memory.of(os.getpid()))
                await asyncio.wait([load], timeout=0.2)
        await sampler.sample([ASKED])
        assert sampler.pid is not None
        assert sampler.last_sync is not None
        cpu_start = cpu_seconds(sampler.pid)
        await sampler.sample([replace(ASKED, seed=4)])
        cpu_time, total_mib = cpu_seconds(sampler.pid) - cpu_start, Memory.of(os.getpid()).pss
    finally:
        await sampler.close()
    print(
        f"{'one base' if shares_base else 'two bases'}: trainer alone {trainer_mib:,.0f} MiB, "
        f"with the engine {total_mib:,.0f}, at its start {peak.pss:,.0f}; "
        f"canary {sampler.last_sync.difference:.2g}; "
        f"{cpu_time:.1f} CPU s a group; {sampler.last_start}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-0.5b")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--models", type=Path, default=Path("build/real-shapes"))
    arguments = parser.parse_args()
    shape = known_shape(arguments.model)
    assert shape is not None, "swarm-node plan lists the names"
    torch.set_num_threads(1)
    model = make_model(arguments.models / arguments.model, shape)
    print(f"{arguments.model}, {arguments.dtype}, LoRA {RANK}")
    for shares_base in (True, False):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as work:
            asyncio.run(measure(model, Path(work), arguments.dtype, shares_base=shares_base))


if __name__ == "__main__":
    main()
