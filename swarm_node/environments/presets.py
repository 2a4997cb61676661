"""The environments that ship with presets, as people know them: by the preset, not by a digest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, Final

from swarm_node.environments import drills
from swarm_node.environments.judging.processes import START_SECONDS, variables
from swarm_node.environments.reasoning_gym import environment as reasoning_gym
from swarm_node.environments.registry import available, unknown_name
from swarm_node.environments.split import described
from swarm_node.errors import ConfigError, instead, words_of
from swarm_node.process.bounded import bounded_run

#: The node itself never imports an environment.
_TRIAL: Final = (
    "import sys; from swarm_node.environments.registry import factory_of; "
    "from swarm_node.errors import ConfigError\n"
    "try: factory_of(sys.argv[1])\n"
    "except ConfigError as error: sys.exit(str(error))"
)

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


def check_name(name: str) -> None:
    """Refuse a name that no installed environment has, and a "module:factory" that a process like
    the environment's cannot import, before anything starts for it.

    Raises:
        ConfigError: the message says what there is, or why it cannot be imported.
    """
    if ":" not in name:
        if name not in available():
            raise unknown_name(name)
        return
    try:
        done = bounded_run([sys.executable, "-c", _TRIAL, name], START_SECONDS, variables())
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"environment.name: {name!r} cannot be tried ({words_of(error)}): try again when this "
            "machine is less busy"
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it ended the process"]
        if said[-1].startswith("environment.name: "):
            raise ConfigError(said[-1])
        raise ConfigError(f"environment.name: {name!r} cannot be imported ({said[-1]}): mend it")


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
            f"environment.options.preset: unknown {preset!r}{instead(preset, presets)}"
        )
    if {"families", "datasets"} & options.keys():
        return
    preset = _DEFAULTS[name] if preset is None else preset
    known = presets[preset]
    for family in families:
        if family not in known:
            raise ConfigError(
                f"environment.families: {preset} has no family {family!r}"
                f"{instead(family, known, 'use some of')}"
            )


def has_preset(name: str, preset: str) -> bool:
    """True if the environment `name` ships a preset of that name."""
    return preset in _PRESETS.get(name, {})
