"""`swarm-node model build-tiny`: wires the corpus of the environments to the model's builder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from swarm_node.environments.reasoning_gym import corpus as environment_corpus
from swarm_node.errors import ModelError
from swarm_node.policy.build_tiny import SHIPPED_NOISE, STEPS, CorpusItem, Noise, build_tiny


def build_with_progress(
    out: Path, seed: int, steps: int | None, noise: Noise = SHIPPED_NOISE
) -> None:
    """Build the tiny model at `out` with a progress bar.

    Raises:
        ModelError: `out` holds something already.
    """
    if out.exists() and any(out.iterdir()):
        raise ModelError(f"{out} is not empty; choose another directory with --out")
    total = STEPS if steps is None else steps
    with Progress() as bar:
        task = bar.add_task("warm start", total=total)

        def progress(step: int, _: int, loss: float) -> None:
            bar.update(task, completed=step, description=f"warm start, loss {loss:.3f}")

        corpus = tiny_corpus(seed)
        build_tiny(out, corpus, seed=seed, steps=total, noise=noise, progress=progress)
    print(f"wrote {out}; use it with `swarm-node join --model {out}`")


def tiny_corpus(seed: int) -> Iterator[CorpusItem]:
    """Questions and answers of the nine families the tiny model knows."""
    return (CorpusItem(*item) for item in environment_corpus("short", seed))
