"""Duration of a weight sync while the engine is full and more answers wait.

    python benchmarks/vllm_sync.py [--places 16] [--groups 12] [--new 384] [--turns 5]

Tiny model on vLLM, on this machine's GPU or else its CPU. A call asks for more groups than the
engine has places for. Each turn measures one call alone; then it starts the same call again, and
after a tenth of the call's time new weights are loaded. Printed are the time of that sync relative
to the call alone, and the engine's faults with a quarter of a call as the limit of a sync.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import torch
from endless import endless
from figures import tell

from swarm_node.policy.models.model import resolve
from swarm_node.policy.placement import hardware, place
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import Deadlines, plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.weights.store import WeightStore

GROUP = 8


async def main(places: int, groups: int, new: int, turns: int) -> None:
    torch.set_num_threads(1)
    model, codec = endless(resolve("tiny"))
    placement = place("auto", "auto", hardware())
    plan = plan_engine(model.config, placement=placement, max_rows=places, max_new_tokens=new)
    sampler = VllmSampler(model.config, codec, plan)
    requests = [
        SampleRequest(tuple(range(5 + n % 100, 45 + n % 100)), GROUP, n, new) for n in range(groups)
    ]
    ratios, syncs = [], []
    with tempfile.TemporaryDirectory() as directory:
        store, canary = WeightStore(Path(directory)), measure_canary(model).to_metadata()

        async def sync(version: int) -> float:
            weights = await asyncio.to_thread(store.publish, version, model.hf_state(), canary)
            start = time.perf_counter()
            await sampler.load(weights, version)
            return time.perf_counter() - start

        try:
            await sync(0)
            await sampler.sample(requests)
            for turn in range(1, turns + 1):
                start = time.perf_counter()
                await sampler.sample(requests)
                call = time.perf_counter() - start
                if turn == turns:
                    sampler._deadlines = Deadlines(sync=call / 4)
                async with asyncio.TaskGroup() as task_group:
                    task_group.create_task(sampler.sample(requests))
                    await asyncio.sleep(call / 10)
                    syncs.append(await sync(turn))
                ratios.append(syncs[-1] / call)
                print(f"call {call:6.2f} s   sync {syncs[-1]:6.3f} s   ratio {ratios[-1]:.3f}")
        finally:
            await sampler.close()
    print(
        f"{groups * GROUP} answers of {new} tokens, {places} places: sync/call "
        f"{statistics.median(ratios):.3f} (median of {turns}), faults {dict(sampler.faults)}"
    )
    tell(sync_seconds=syncs, of_a_call=ratios, faults=dict(sampler.faults))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--new", type=int, default=384)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.places, arguments.groups, arguments.new, arguments.turns))
