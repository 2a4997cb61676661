"""Keys and values that outlive new weights, beside computing them anew.

    python benchmarks/kept_cache.py [--rates 3e-4 3e-3] [--updates 1 8] [--new 96]

The tiny model learns on its own answers. Then 64 answers are sampled, and half-way through they go
on with the weights of some updates later: with the keys and values of the old weights (kept), or
with all of them computed anew. Printed are, for the tokens after that and in nats, differences
between the log-probs that were sampled with and those of a full forward pass with the new weights:
mean and largest size, and mean; how far the updates moved the log-probs of these tokens; and the
seconds of computing anew, in steps of decoding.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from figures import tell
from numpy.typing import NDArray

from swarm_node.config import load_settings
from swarm_node.node.start import derive
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.sampling.decoding import Decoder
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.rollout import Provenance

ROWS, GROUP, PROMPT = 64, 8, 40


class Sampled(NamedTuple):
    """Answers as a batch, with log-probs f32[N, T]; the first token after the new weights; and the
    seconds of computing anew and of the median step."""

    batch: Batch
    logprobs: NDArray[np.float32]
    after: int
    anew: float
    step: float


@torch.inference_mode()
def sample(
    old: CausalLM, new: CausalLM, new_tokens: int, seed: int, *, keep_cache: bool
) -> Sampled:
    """64 answers of `old` that go on with `new`."""
    model, generator = copied(old), torch.Generator().manual_seed(seed)
    prompts = torch.arange(PROMPT) + 5 + torch.arange(seed, seed + ROWS // GROUP)[:, None] % 97
    text = prompts.repeat_interleave(GROUP, 0)
    decoder, indices = Decoder(model), torch.arange(ROWS)
    logits = decoder.begin(text, torch.ones_like(text).bool(), indices, new_tokens + 1)
    logprobs, steps, rebuild_s, switch = list[torch.Tensor](), list[float](), 0.0, new_tokens // 2
    for index in range(new_tokens):
        logp = logits.log_softmax(-1)
        tokens = torch.multinomial(logp.exp(), 1, generator=generator)
        logprobs.append(logp.gather(1, tokens))
        text = torch.cat([text, tokens], 1)
        start = time.perf_counter()
        if index + 1 == switch:
            model.load_hf_state(new.hf_state())
        if index + 1 == switch and not keep_cache:
            decoder = Decoder(model)
            logits = decoder.begin(text, torch.ones_like(text).bool(), indices, new_tokens + 1)
            rebuild_s = time.perf_counter() - start
        else:
            logits = decoder.step(tokens[:, 0])
            steps.append(time.perf_counter() - start)
    stated_logp = torch.cat(logprobs, 1).numpy()
    rows = [
        TrainRow(
            row[:PROMPT].astype(np.uint32),
            row[PROMPT:].astype(np.uint32),
            logp,
            (-1.0) ** index,  # answers that are good and bad by turns
            Provenance.LOCAL,
        )
        for index, (row, logp) in enumerate(zip(text.numpy(), stated_logp, strict=True))
    ]
    return Sampled(Batch(tuple(rows)), stated_logp, switch, rebuild_s, statistics.median(steps))


@torch.no_grad()
def stated(model: CausalLM, answers: Sampled) -> NDArray[np.float32]:
    """Log-probs under `model` of the tokens after the new weights, by a full forward pass."""
    rows = [completion_logprobs(model, [row], 1.0).numpy() for row in answers.batch.rows]
    return np.stack(rows)[:, answers.after :]


def copied(model: CausalLM) -> CausalLM:
    twin = CausalLM(model.config)
    twin.load_hf_state({name: part.clone() for name, part in model.hf_state().items()})
    return twin


def compare(rate: float, updates: int, new_tokens: int, place: Path) -> None:
    """Print both arms for one learning rate and number of updates."""
    settings = derive.trainer_settings(load_settings({"run.device": "cpu"}, environ={}))
    settings = replace(settings, learning_rate=rate, warmup_updates=0)
    (place / "weights").mkdir(parents=True)
    host = TrainerHost(resolve("tiny"), place / "checkpoints", place / "weights", settings)
    new = host.core.model
    assert isinstance(new, CausalLM)
    warmup_batch = sample(new, new, new_tokens, 1, keep_cache=True).batch
    host.update(warmup_batch)  # so that the optimizer has moments
    old = copied(new)
    for _ in range(updates):
        host.update(warmup_batch)
    for keep_cache in (False, True):
        answers = sample(old, new, new_tokens, 500, keep_cache=keep_cache)
        logp = stated(new, answers)
        gap = answers.logprobs[:, answers.after :] - logp
        shift = float(np.abs(logp - stated(old, answers)).mean())
        sizes = float(np.abs(gap).mean()), float(np.abs(gap).max()), float(gap.mean()), shift
        cost = answers.anew / answers.step
        print(
            f"{rate:8g} {updates:7}  {'kept' if keep_cache else 'anew'}  "
            + " ".join(f"{size:9.2e}" for size in sizes)
            + f" {cost:6.1f}",
            flush=True,
        )
        tell(rate=rate, updates=updates, kept=keep_cache, nats=sizes, steps_of_anew=cost)


def main(rates: Sequence[float], updates: Sequence[int], new_tokens: int) -> None:
    torch.set_num_threads(1)
    print("    rate updates cache   mean |d|   max |d|    mean d     moved  steps")
    with tempfile.TemporaryDirectory() as directory:
        for rate in rates:
            for count in updates:
                compare(rate, count, new_tokens, Path(directory) / f"{rate}-{count}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 3e-3])
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new", type=int, default=96)
    arguments = parser.parse_args()
    main(arguments.rates, arguments.updates, arguments.new)
