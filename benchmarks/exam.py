"""An examination that nobody trains on: a language model before and after it learnt in a node.

    python benchmarks/exam.py --model FILE.gguf --file test.jsonl [--minutes 10] [--seed 0]
                              [--home DIR] [--limit N] [--new 256] [--results FILE]

`swarm-node join` trains by its defaults for `--minutes`, or a `--home` has a newest checkpoint
already. Then the model as it was, and that checkpoint, answer each question of the file once, at
the temperature of training: share of right answers (scoring "math") with Wilson's 95% interval. By
its defaults a node trains on drills and sees none of them; a `--home` may have trained on others.

So that a model that learnt sums does not lose its language unseen, both also read the paragraphs of
this project's pages, which are no part of any training here: perplexity by token, and the 95%
interval of the ratio over paragraphs (a bootstrap).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from node_process import NodeProcess
from tokenizers import Tokenizer

from swarm_node.library.measuring import CheckpointRates, Progress, measure
from swarm_node.library.pass_rates import wilson
from swarm_node.node.home.home import Home
from swarm_node.policy.models.loading import load_model, make_adapter
from swarm_node.policy.models.model import resolve
from swarm_node.policy.training.checkpoints.export import newest_state

REPOSITORY = Path(__file__).resolve().parent.parent
#: Letters of a paragraph that counts, and tokens of it that are read.
LETTERS, TOKENS = 200, 256
RESAMPLES = 2000
STOP_SECONDS = 600.0


def paragraphs() -> list[str]:
    """Paragraphs of plain text of the pages: no headings, tables, lists or code."""
    texts = []
    for page in sorted((REPOSITORY / "docs").rglob("*.md")):
        for number, part in enumerate(page.read_text(encoding="utf-8").split("```")):
            if number % 2 == 0:
                texts += [" ".join(block.split()) for block in part.split("\n\n")]
    return [text for text in texts if len(text) >= LETTERS and text[0].isalpha()]


def losses(model: Path, home: Path | None, texts: Sequence[str]) -> list[tuple[float, int]]:
    """Sum of the negative log-likelihoods of each text's tokens but the first, in nats, and their
    number, by the model or by the newest checkpoint of `home`."""
    tokenizer, policy = Tokenizer.from_file(str(model / "tokenizer.json")), load_model(model)
    if home is not None:
        state = newest_state(Home(home).checkpoints, model)
        rank = int(state.settings.get("lora_rank", 0))
        if rank:
            make_adapter(policy, rank).load_state(state.weights)
        else:
            policy.load_hf_state(state.weights)
    sums = []
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids[:TOKENS]])
            logits = policy(ids[:, :-1]).float()
            nats = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="sum")
            sums.append((float(nats), ids.shape[1] - 1))
    return sums


def perplexities(
    base_losses: list[tuple[float, int]], trained_losses: list[tuple[float, int]]
) -> dict[str, Any]:
    """Perplexity before and after, and their ratio with its interval."""
    old, new = (np.array([nats for nats, _ in pairs]) for pairs in (base_losses, trained_losses))
    count = np.array([tokens for _, tokens in base_losses])
    rng = np.random.default_rng(0)
    indices = rng.integers(0, len(count), (RESAMPLES, len(count)))
    ratios = np.exp((new[indices].sum(1) - old[indices].sum(1)) / count[indices].sum(1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {
        "paragraphs": len(count),
        "tokens": int(count.sum()),
        "before": round(math.exp(old.sum() / count.sum()), 3),
        "after": round(math.exp(new.sum() / count.sum()), 3),
        "ratio": round(math.exp((new.sum() - old.sum()) / count.sum()), 4),
        "low": round(low, 4),
        "high": round(high, 4),
    }


def right(rates: CheckpointRates) -> dict[str, Any]:
    """Right answers of all questions of a file, whatever part of it a node would train on."""
    parts = [part for part in (rates.held_out, rates.train) if part is not None]
    tasks = sum(part.tasks for part in parts)
    correct = round(sum(part.tasks * part.pass_1.rate for part in parts))
    low, high = wilson(correct / tasks, tasks)
    return {"right": correct, "of": tasks, "share": correct / tasks, "low": low, "high": high}


def train(model: str, seed: int, minutes: float, directory: Path) -> dict[str, Any]:
    """Train in a node alone by its defaults; its home is in `directory`."""
    node = NodeProcess(directory, [f"model={model}", f"run.seed={seed}"])
    try:
        node.launch()
        time.sleep(60 * minutes)
        status = node.status()
    finally:
        node.stop(STOP_SECONDS)
    return {"minutes": minutes, "updates": status.steps}


def tell(progress: Progress) -> None:
    print(f"{progress.checkpoint}: {progress.finished_tasks} of {progress.tasks}", file=sys.stderr)


def examine(arguments: argparse.Namespace, home: Path) -> Iterator[tuple[str, Any]]:
    settings = {
        "environment.options.scoring": "math",
        "sampling.max_new_tokens": arguments.new,
    }
    for name, checkpoint in (("before", "base"), ("after", None)):
        report = asyncio.run(
            measure(
                str(arguments.file),
                checkpoint,
                completions=1,
                limit=arguments.limit,
                home=home,
                model=arguments.model,
                overrides=settings,
                tell=tell,
            )
        )
        yield name, right(report.checkpoints[0])
    model, texts = resolve(arguments.model), paragraphs()
    yield "perplexity", perplexities(losses(model, None, texts), losses(model, home, texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--file", type=Path, required=True, help="questions with answers")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, help="of a node that has trained; it may not run")
    parser.add_argument("--limit", type=int, help="questions of each part of the file")
    parser.add_argument("--new", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--results", type=Path, help="append the result as a line of JSON")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        result: dict[str, Any] = {"model": Path(arguments.model).name, "file": arguments.file.name}
        if arguments.home is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="exam-")))
            result["seed"] = arguments.seed
            result |= train(arguments.model, arguments.seed, arguments.minutes, directory)
            arguments.home = directory / "node"
        for name, value in examine(arguments, arguments.home):
            result[name] = value
            print(f"{name}: {json.dumps(value)}", flush=True)
        if arguments.results is not None:
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
