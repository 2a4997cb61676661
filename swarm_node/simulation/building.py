"""Builds tiny models from the questions of the environments."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from swarm_node.environments.bundled import drills, games
from swarm_node.errors import ModelError
from swarm_node.policy.models.build_tiny import (
    EARLIER_NOISE,
    CorpusItem,
    Noise,
    Recipe,
    build_tiny,
    spoilt,
)


def build_with_progress(out: Path, recipe: Recipe) -> None:
    """Build a tiny model at `out` with a progress bar.

    Raises:
        ModelError: `out` holds something already.
    """
    if out.exists() and any(out.iterdir()):
        raise ModelError(f"{out} is not empty", "choose another directory with --out")
    _build(out, recipe)
    print(f"wrote {out}; use it with `swarm-node join --model {out}`")


def build_once(recipe: Recipe, directory: Path, preset: str = "short") -> Path:
    """The model of a recipe for the tasks of a `preset`, below `directory`; built if it is not
    there yet."""
    noise = recipe.noise
    prefix = () if preset == "short" else (preset,)
    parts = (
        *prefix,
        recipe.size,
        recipe.tokenizer,
        noise.bare_share,
        noise.wrong_share,
        noise.evasive_share,
    )
    path = directory / "-".join(map(str, ("base", *parts, recipe.steps, recipe.seed)))
    if not path.exists():
        # An interrupted build must not leave half a model under the final name.
        temp_path = path.with_name(f"{path.name}.tmp")
        shutil.rmtree(temp_path, ignore_errors=True)
        _build(temp_path, recipe, preset)
        temp_path.replace(path)
        print(f"wrote {path}; use it with `swarm-node join --model {path}`")
    return path


def tiny_corpus(seed: int, preset: str = "short") -> Iterator[CorpusItem]:
    """Questions and answers of the families of a preset; the tiny model knows the shortest."""
    return (CorpusItem(*item) for item in drills.corpus(preset, seed))


def multi_turn_corpus(seed: int, noise: Noise) -> Iterator[CorpusItem]:
    """Multi-turn rollouts of the games, with the `noise` of their last turns."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret

    def spoil(right: str, wrong_text: str, is_earlier: bool) -> str:
        return spoilt(right, lambda: wrong_text, rng, EARLIER_NOISE if is_earlier else noise)

    for family, (question, answer, *later_turns) in games.corpus(seed, spoil):
        yield CorpusItem(family, question, answer, tuple(later_turns))


def _build(out: Path, recipe: Recipe, preset: str = "short") -> None:
    with Progress() as bar:
        task = bar.add_task("warm start", total=recipe.steps)

        def progress(step: int, _: int, loss: float) -> None:
            bar.update(task, completed=step, description=f"warm start, loss {loss:.3f}")

        single_turn = recipe.corpus == "single-turn"
        corpus = (
            tiny_corpus(recipe.seed, preset)
            if single_turn
            else multi_turn_corpus(recipe.seed, recipe.noise)
        )
        build_tiny(out, corpus, recipe, progress=progress)
