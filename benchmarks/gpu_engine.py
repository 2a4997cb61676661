"""vLLM behind the node, bare vLLM and the built-in sampler; weight syncs and memory.

    python benchmarks/gpu_engine.py --model DIR [--rows 256] [--new 256]

Made for one CUDA device with `pip install '.[vllm]'`; without one it runs on the CPU,
where its figures say little. Rival of the sampler: vLLM's own `LLM.generate` with the same engine
arguments in a process of its own, same prompts, same lengths. Training has gpu_trainer.py.
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
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from endless import endless
from figures import tell

from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import Placement, hardware, place
from swarm_node.policy.sampling.decoding import CacheShape
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.sampling.vllm.engine import (
    EnginePlan,
    engine_arguments,
    engine_environment,
    plan_engine,
)
from swarm_node.policy.sampling.vllm.sampler import Sync, VllmSampler
from swarm_node.policy.sampling.vllm.view import HeadPadding, write_view
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.weights.device import DeviceBuffers
from swarm_node.policy.weights.store import WeightStore

GROUP = 8
PROMPT = 64
#: Reads the engine's arguments, groups and tokens per answer from stdin, as the sampler sets them.
BARE = """
import json, sys, time
from vllm import LLM, SamplingParams
given = json.load(sys.stdin)
llm = LLM(**given["arguments"])
parameters = SamplingParams(n=given["group"], max_tokens=given["new"], temperature=1.0, logprobs=0,
                            ignore_eos=True, detokenize=False)
prompts = [{"prompt_token_ids": ids} for ids in given["prompts"]]
rates = []
for _ in range(given["repetitions"] + 1):
    start = time.perf_counter()
    done = llm.generate(prompts, parameters, use_tqdm=False)
    tokens = sum(len(answer.token_ids) for one in done for answer in one.outputs)
    rates.append(tokens / (time.perf_counter() - start))
    llm.reset_prefix_cache()
print("RATES", json.dumps(rates[1:]))
"""


def prompts_of(count: int, vocab_size: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    return [tuple(row) for row in rng.integers(3, vocab_size, (count, PROMPT)).tolist()]


def bare_rates(
    plan: EnginePlan, view: Path, prompts: list[tuple[int, ...]], new: int, repetitions: int
) -> list[float]:
    """Tokens per second of vLLM by itself; its weights are arbitrary, which costs the same."""
    request = {
        "arguments": engine_arguments(plan, view),
        "group": GROUP,
        "new": new,
        "prompts": prompts,
        "repetitions": repetitions,
    }
    result = subprocess.run(
        [sys.executable, "-c", BARE],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={**os.environ, **engine_environment(plan)},
        check=True,
    )
    line = next(line for line in result.stdout.splitlines() if line.startswith("RATES"))
    rates: list[float] = json.loads(line.removeprefix("RATES"))
    return rates


async def sampler_rates(
    sampler: Sampler, prompts: list[tuple[int, ...]], new: int, repetitions: int
) -> list[float]:
    rates = []
    for turn in range(repetitions + 1):
        requests = [
            SampleRequest(prompt, GROUP, turn * len(prompts) + n, new)
            for n, prompt in enumerate(prompts)
        ]
        start = time.perf_counter()
        groups = await sampler.sample(requests)
        tokens = sum(len(completion.token_ids) for group in groups for completion in group)
        rates.append(tokens / (time.perf_counter() - start))
    return rates[1:]


async def built_in_rates(
    path: Path, codec: Codec, placement: Placement, plan: EnginePlan, arguments: argparse.Namespace
) -> None:
    """The built-in sampler by CUDA graphs, and by the same steps launched one by one."""
    prompts = prompts_of(arguments.rows // GROUP, codec.vocab_size)
    shape = CacheShape(plan.max_rows, -(-(PROMPT + arguments.new) // 8) * 8)
    for mode, cache_shape in (("graphs", shape), ("eager", None)):
        if mode == "graphs" and placement.device == "cpu":
            continue
        sampler = TorchSampler.from_directory(path, placement, codec=codec, shape=cache_shape)
        try:
            rates = await sampler_rates(sampler, prompts, arguments.new, arguments.repetitions)
        finally:
            await sampler.close()
        rate = statistics.median(rates)
        print(f"built in   {rate:.0f} tok/s ({mode}; {dict(sampler.faults)})")
        tell(sampler="built in", how=mode, tokens_per_s=round(rate), faults=dict(sampler.faults))


def memory_mib(pid: int) -> float:
    """Resident memory of a process and all it started, MiB."""
    top = psutil.Process(pid)
    return float(sum(p.memory_info().rss for p in [top, *top.children(recursive=True)])) / 2**20


async def sync_times(
    sampler: VllmSampler,
    store: WeightStore,
    model: CausalLM,
    first: int,
    buffers: DeviceBuffers | None,
) -> list[Sync]:
    """Three syncs after one that warms up, through files or, with `buffers`, the GPU's memory."""
    syncs = []
    for version in range(first, first + 4):
        header, weights = measure_canary(model).to_metadata(), model.hf_state()
        if buffers is None:
            file = store.publish(version, weights, header)
        else:
            file = store.publish(version, {}, header | buffers.put(weights))
        await sampler.load(file, version)
        assert sampler.last_sync is not None
        syncs.append(sampler.last_sync)
    return syncs[1:]


def print_syncs(mode: str, syncs: list[Sync]) -> None:
    total, pause = (
        statistics.median(getattr(sync, part) for sync in syncs) for part in ("seconds", "paused")
    )
    print(
        f"sync       {total * 1e3:.0f} ms in all, {pause * 1e3:.0f} ms without generation ({mode})"
    )
    difference = max(sync.difference for sync in syncs)
    print(f"canary     mean difference {difference:.2g}")
    tell(sync=mode, seconds=total, paused_seconds=pause, canary=difference)


async def measure(arguments: argparse.Namespace) -> None:
    path = resolve(arguments.model)
    model, codec = endless(path)
    placement = place("auto", "auto", hardware())
    plan = plan_engine(
        model.config, placement=placement, max_rows=arguments.rows, max_new_tokens=arguments.new
    )
    prompts = prompts_of(arguments.rows // GROUP, model.config.vocab_size)
    sampler = VllmSampler(model.config, codec, plan)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        store = WeightStore(Path(directory))
        try:
            print_syncs("files", await sync_times(sampler, store, model, 0, None))
            if placement.device != "cpu":
                print_syncs(
                    "ipc", await sync_times(sampler, store, model, 4, DeviceBuffers(placement))
                )
            node_rates = await sampler_rates(sampler, prompts, arguments.new, arguments.repetitions)
            assert sampler.pid is not None
            resident = memory_mib(sampler.pid)
            view = Path(directory) / "view"
            view.mkdir()
            padding = HeadPadding(model.config.head_dim, plan.head_size)
            write_view(model.config, padding, view)
        finally:
            await sampler.close()
        vllm_rates = bare_rates(plan, view, prompts, arguments.new, arguments.repetitions)
    vllm_rate, node_rate = statistics.median(vllm_rates), statistics.median(node_rates)
    print(
        f"device {placement.device}, {plan.dtype}, {arguments.rows} rows of {arguments.new} tokens"
    )
    print(
        f"sampling   node {node_rate:.0f} tok/s, bare vLLM {vllm_rate:.0f} tok/s, "
        f"ratio {node_rate / vllm_rate:.2f}"
    )
    print(f"memory     engine {resident:.0f} MiB resident")
    tell(
        sampler="vLLM",
        tokens_per_s=round(node_rate),
        bare_tokens_per_s=round(vllm_rate),
        resident_mib=resident,
    )
    if placement.device != "cpu":
        free, total = torch.cuda.mem_get_info()
        print(f"           device {(total - free) / 2**30:.1f} of {total / 2**30:.1f} GiB in use")
    await built_in_rates(path, codec, placement, plan, arguments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--repetitions", type=int, default=5)
    asyncio.run(measure(parser.parse_args()))
