"""The environments that ship with presets, as people know them: by the preset, not by a digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from swarm_node.environments import drills
from swarm_node.environments.reasoning_gym import environment as reasoning_gym
from swarm_node.environments.split import described
from swarm_node.errors import ConfigError, meant

_VERSIONS: Mapping[str, Callable[[], Mapping[str, str]]] = {
    "drills": drills.preset_versions,
    "reasoning_gym": reasoning_gym.preset_versions,
}
_PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "drills": drills.PRESETS,
    "reasoning_gym": reasoning_gym.PRESETS,
}
#: The preset that each takes without one.
_DEFAULTS: Mapping[str, str] = {
    name: signature(create).parameters["preset"].default
    for name, create in (("drills", drills.create), ("reasoning_gym", reasoning_gym.create))
}


def environment_name(name: str, version: str) -> str:
    """An environment as people know it, with its preset in place of a digest. One of another
    release says so."""
    own, space, release = described(version).partition(" ")
    known = _VERSIONS[name]().get(own, own) if name in _VERSIONS else own
    return f"{name} {known}{space}{release}"


def check_choice(name: str, options: Mapping[str, Any], families: Sequence[str]) -> None:
    """Refuse a preset or a family that a shipped environment `name` does not have, before anything
    starts for it. What other environments have is known once they run.

    Raises:
        ConfigError: the message names what there is.
    """
    presets, preset = _PRESETS.get(name, {}), options.get("preset")
    if not presets or not isinstance(preset, str | None):
        return
    if preset is not None and preset not in presets:
        raise ConfigError(
            f"environment.options.preset: unknown {preset!r}{meant(preset, presets)}; "
            f"use one of {', '.join(presets)}"
        )
    if {"families", "datasets"} & options.keys():
        return
    preset = _DEFAULTS[name] if preset is None else preset
    known = presets[preset]
    for family in families:
        if family not in known:
            raise ConfigError(
                f"environment.families: {preset} has no family {family!r}{meant(family, known)}; "
                f"use some of {', '.join(known)}"
            )


def has_preset(name: str, preset: str) -> bool:
    """True if the environment `name` ships a preset of that name."""
    return preset in _PRESETS.get(name, {})
