"""The environments that ship with presets, as people know them: by the preset, not by a digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swarm_node.environments import drills
from swarm_node.environments.reasoning_gym import environment as reasoning_gym
from swarm_node.environments.split import described

_VERSIONS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "drills": drills.preset_versions,
    "reasoning_gym": reasoning_gym.preset_versions,
}
_PRESETS: Mapping[str, Mapping[str, object]] = {
    "drills": drills.PRESETS,
    "reasoning_gym": reasoning_gym.PRESETS,
}


def environment_name(name: str, version: str) -> str:
    """An environment as people know it, with its preset in place of a digest. One of another
    release says so."""
    own, space, release = described(version).partition(" ")
    known = _VERSIONS[name]().get(own, own) if name in _VERSIONS else own
    return f"{name} {known}{space}{release}"


def has_preset(name: str, preset: str) -> bool:
    """True if the environment `name` ships a preset of that name."""
    return preset in _PRESETS.get(name, {})
