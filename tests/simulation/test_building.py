"""A model that an experiment starts from is built once, and never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm_node.policy.models.build_tiny import Recipe
from swarm_node.policy.models.model import resolve
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
