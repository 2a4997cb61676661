"""Useful tokens per CPU second of the built-in sampler against transformers' `generate`.

Both sample the same questions with the same weights, at temperature 1, to the real end token, eight
completions per question; both return texts. Useful tokens are those of the answers, end token
included, padding not. Both compute in float32. The two take turns, so that a busy machine slows
both; medians are printed.

    python benchmarks/sampler.py [--model DIR] [--threads N] [--repetitions N] [--batch N …]
        [--new N] [--preset graded]

A preset names the drills to ask, worded as a node words them; without one the questions are those
that the tiny model was made for.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import transformers

from swarm_node.environments.bundled.drills import corpus, create
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import TaskRef

GROUP = 8
BATCHES = (8, 64, 256)
MAX_NEW_TOKENS = 24


def questions(count: int, preset: str | None) -> list[str]:
    """Questions of the families in turn, bare or as a node with this preset puts them."""
    if preset is None:
        return [question for _, question, _ in islice(corpus("short", 0), count)]
    drills = create(preset)
    families = islice(cycle(drills.families), count)
    refs = (TaskRef(drills.name, drills.version, name, seed) for seed, name in enumerate(families))
    return [drills.render(drills.derive(ref)) for ref in refs]


def left_padded(prompts: list[tuple[int, ...]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, i64[B, T] both, as `generate` takes them."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


def run_sampler(sampler: TorchSampler, new: int, prompts: list[tuple[int, ...]]) -> int:
    """Sample once; the number of useful tokens."""
    requests = [SampleRequest(prompt, GROUP, seed, new) for seed, prompt in enumerate(prompts)]
    groups = asyncio.run(sampler.sample(requests))
    return sum(len(completion.token_ids) for group in groups for completion in group)


@torch.inference_mode()
def run_generate(model: Any, codec: Codec, new: int, prompts: list[tuple[int, ...]]) -> int:
    """Sample once; the number of useful tokens."""
    ids, mask = left_padded(prompts, codec.pad_id)
    sequences = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=GROUP,
        max_new_tokens=new,
        pad_token_id=codec.pad_id,
        eos_token_id=sorted(codec.eos_ids),
    )
    answers = sequences[:, ids.shape[1] :].tolist()
    useful = 0
    for answer in answers:
        codec.decode(answer)
        ends = [place for place, token in enumerate(answer) if token in codec.eos_ids]
        useful += ends[0] + 1 if ends else len(answer)
    return useful


def tokens_per_second(run: Callable[[], int]) -> float:
    """Tokens per second of processor time, of all threads together."""
    start = time.process_time()
    tokens = run()
    return tokens / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help='model directory, or "tiny"')
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--new", type=int, default=MAX_NEW_TOKENS, help="longest answer")
    parser.add_argument("--preset", help="drills to ask, worded as a node words them")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="answers at once")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    new = arguments.new
    transformers.logging.set_verbosity_error()
    path: Path = resolve(arguments.model)
    codec = Codec.from_directory(path)
    sampler = TorchSampler.from_directory(path, threads=arguments.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, threads {arguments.threads}, "
        f"{GROUP} completions per question, at most {arguments.new} tokens, "
        f"median of {arguments.repetitions} alternating repetitions"
    )
    print(f"{'batch':>6} {'generate tok/s':>15} {'sampler tok/s':>15} {'ratio':>6}")
    for batch in arguments.batch:
        prompts = [
            codec.encode_prompt(text) for text in questions(batch // GROUP, arguments.preset)
        ]
        ours: list[float] = []
        theirs: list[float] = []
        # The first repetition warms both up and is not counted.
        for _ in range(arguments.repetitions + 1):
            ours.append(tokens_per_second(partial(run_sampler, sampler, new, prompts)))
            theirs.append(tokens_per_second(partial(run_generate, model, codec, new, prompts)))
        fast, slow = statistics.median(ours[1:]), statistics.median(theirs[1:])
        print(f"{batch:>6} {slow:>15,.0f} {fast:>15,.0f} {fast / slow:>6.2f}")
    asyncio.run(sampler.close())


if __name__ == "__main__":
    main()
