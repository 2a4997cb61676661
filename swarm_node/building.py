"""`swarm-node model build-tiny`: wires the corpus of the environments to the model's builder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from swarm_node.environments.reasoning_gym import corpus
from swarm_node.errors import ModelError
from swarm_node.policy.build_tiny import STEPS, CorpusItem, build_tiny


def build_with_progress(out: Path, seed: int, steps: int | None) -> None:
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

        build_tiny(out, tiny_corpus(seed), seed=seed, steps=total, progress=progress)
    print(f"wrote {out}; use it with `swarm-node join --model {out}`")


def tiny_corpus(seed: int) -> Iterator[CorpusItem]:
    """Questions and answers of the nine families the tiny model knows."""
    return (CorpusItem(*item) for item in corpus("short", seed))
