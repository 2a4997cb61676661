"""Tokens per CPU-second of the built-in sampler that refills places of rows that ended.

Three arms sample the same rows with the same seeds, each in a process of its own, in turn, so that
a busy machine slows all of them. `refilled` is the sampler as it is. `batches` is the same code,
but a batch begins when the one before has ended. `before` is the sampler of an older checkout, if
one is named. CPU time is that of the sampling thread. The arms' tokens are compared.

    python benchmarks/refill.py [--case tiny|0.5b] [--before DIR] [--pairs N]

`tiny` answers questions to the real end token. `0.5b` has the layers of qwen2.5-0.5b with random
weights, but only `--share` of them and of the vocabulary, so that each part of a step keeps its
share; lengths are log-normal (`--median`, sigma 1, 4 tokens to `--longest`).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

GROUP, LAYERS = 8, 24


def made(arguments: argparse.Namespace) -> tuple[Any, Any, list[Any]]:
    """The model, its codec, and the requests, by prompts."""
    import torch

    from swarm_node.environments.bundled.drills import corpus
    from swarm_node.policy.models.decoder.causal_lm import CausalLM
    from swarm_node.policy.models.model import resolve
    from swarm_node.policy.models.shapes import known_shape
    from swarm_node.policy.models.text.codec import Codec, load_tokenizer
    from swarm_node.policy.sampling.sampler import SampleRequest

    torch.set_num_threads(1)
    path, rng = resolve("tiny"), np.random.default_rng(1)
    codec = Codec.from_directory(path)
    if arguments.case == "tiny":
        prompts = [
            codec.encode_prompt(text)
            for _, text, _ in islice(corpus("short", 0), arguments.rows // 4)
        ]
        requests = [SampleRequest(prompt, 4, n, 24) for n, prompt in enumerate(prompts)]
        return CausalLM.from_directory(path), codec, sorted(requests, key=_by_prompt)
    whole = known_shape("qwen2.5-0.5b")
    assert whole is not None
    shape = replace(
        whole,
        num_hidden_layers=LAYERS // arguments.share,
        vocab_size=whole.vocab_size // arguments.share,
    )
    model = CausalLM(shape, generator=torch.Generator().manual_seed(0))
    requests = []
    for _ in range(arguments.rows // GROUP):
        prompt = tuple(rng.integers(5, shape.vocab_size, int(rng.integers(60, 160))).tolist())
        answer_lengths = rng.lognormal(np.log(arguments.median), 1.0, GROUP)
        for length in np.clip(answer_lengths, 4, arguments.longest).astype(int):
            requests.append(SampleRequest(prompt, 1, len(requests), int(length)))
    codec = Codec(load_tokenizer(path), shape.vocab_size, [codec.eos_id])
    return model, codec, sorted(requests, key=_by_prompt)


def _by_prompt(request: Any) -> tuple[int, tuple[int, ...]]:
    return len(request.prompt_ids), request.prompt_ids


def serve(arguments: argparse.Namespace) -> None:
    """Sample all rows once for each line of standard input, and print what it took."""
    from swarm_node.policy.sampling.torch_sampler import TorchSampler

    model, codec, requests = made(arguments)
    sampler = TorchSampler(model, codec, max_rows=arguments.places, inline=True)
    size = len(requests)
    if arguments.arm == "batches":
        size = arguments.places // requests[0].n
    asyncio.run(sampler.sample([replace(requests[0], max_new_tokens=2)]))  # warms up
    for _ in sys.stdin:
        digest, tokens, took = hashlib.sha256(), 0, 0.0
        for first in range(0, len(requests), size):
            began = time.thread_time()
            groups = asyncio.run(sampler.sample(requests[first : first + size]))
            took += time.thread_time() - began
            for completion in (each for group in groups for each in group):
                tokens += len(completion.token_ids)
                digest.update(completion.token_ids.tobytes())
        figures = {"tokens": tokens, "cpu": took, "digest": digest.hexdigest()[:16]}
        print(json.dumps(figures), flush=True)


class Arm:
    """A process that samples when it is asked."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name = name
        keys = ("case", "share", "places", "rows", "median", "longest")
        options = [f"--{key}={getattr(arguments, key)}" for key in keys]
        tree = {"PYTHONPATH": arguments.before} if name == "before" else {}
        self._process = subprocess.Popen(
            [sys.executable, __file__, f"--arm={name}", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **tree},
            text=True,
        )

    def run(self) -> dict[str, Any]:
        """What one round took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        figures: dict[str, Any] = json.loads(self._process.stdout.readline())
        return figures

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=("tiny", "0.5b"), default="0.5b")
    parser.add_argument("--before", default="", help="checkout of an older version")
    parser.add_argument("--pairs", type=int, default=3, help="rounds of all arms")
    parser.add_argument("--places", type=int, default=64, help="rows at once")
    parser.add_argument("--rows", type=int, default=256, help="rows in all")
    parser.add_argument("--median", type=float, default=90, help="tokens of an answer, 0.5b")
    parser.add_argument("--longest", type=int, default=512, help="tokens of an answer, 0.5b")
    parser.add_argument("--share", type=int, default=24, help="one in so many layers")
    parser.add_argument("--arm", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.arm:
        serve(arguments)
        return
    names = ["refilled", "batches", *(["before"] if arguments.before else [])]
    arms = [Arm(name, arguments) for name in names]
    print(
        f"{arguments.case}, {arguments.rows} rows, {arguments.places} at once, one thread"
        + (f", 1/{arguments.share} of layers and vocabulary" * (arguments.case == "0.5b"))
    )
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(arguments.pairs):
        figures_of_arm = {arm.name: arm.run() for arm in arms}
        for name, each in figures_of_arm.items():
            rates[name].append(each["tokens"] / each["cpu"])
        line = {name: round(values[-1], 1) for name, values in rates.items()}
        same = len({each["digest"] for each in figures_of_arm.values()}) == 1
        print(
            json.dumps({"tokens": figures_of_arm["refilled"]["tokens"], "same": same, **line}),
            flush=True,
        )
    for arm in arms:
        arm.close()
    for name in names[1:]:
        ratios = [
            ours / theirs for ours, theirs in zip(rates["refilled"], rates[name], strict=True)
        ]
        print(
            f"refilled / {name}: median {statistics.median(ratios):.2f}, "
            f"{min(ratios):.2f} to {max(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
