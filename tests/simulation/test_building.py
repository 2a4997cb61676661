"""A model that an experiment starts from is built once, and never half."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from swarm_node.policy.models.build_tiny import LAST_NOISE, Noise, Recipe
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.simulation import building

RECIPE = Recipe("small", steps=1)


def test_an_interrupted_build_is_not_taken_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(out: Path, *_: object, **__: object) -> None:
        out.mkdir(parents=True)
        (out / "config.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "build_tiny", interrupted)
    with pytest.raises(KeyboardInterrupt):
        building.build_once(RECIPE, tmp_path)
    monkeypatch.undo()
    path = building.build_once(RECIPE, tmp_path)
    assert path.name == "base-small-phrases-0.04-0.05-0.15-1-0"
    assert resolve(str(path)) == path
    assert [*tmp_path.iterdir()] == [path]
    written = (path / "model.safetensors").stat().st_mtime_ns
    assert building.build_once(RECIPE, tmp_path) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == written


def test_most_first_turns_of_a_dialogue_are_right_and_few_last_ones() -> None:
    items = list(islice(building.multi_turn_corpus(0, LAST_NOISE), 2000))
    asked = [item for item in items if item.family == "calc"]
    heard = [item for item in asked if item.later_turns]
    assert len(heard) > 0.85 * len(asked)
    right = sum(item.later_turns[0] == item.later_turns[1] for item in heard) / len(heard)
    assert abs(right - LAST_NOISE.bare_share) < 0.03
    clean = list(islice(building.multi_turn_corpus(0, Noise(1.0, 0.0, 0.0)), 400))
    assert all(
        i.later_turns[0] == i.later_turns[1] for i in clean if i.family == "calc" and i.later_turns
    )


@pytest.mark.slow(reason="builds a model")
def test_a_model_of_dialogues_is_built_by_its_recipe(tmp_path: Path) -> None:
    building.build_with_progress(tmp_path / "talk", Recipe(steps=1, corpus="multi-turn"))
    codec = Codec.from_directory(resolve(str(tmp_path / "talk")))
    assert len(codec.bridge("higher")) == len(codec.bridge("lower")) == 3
