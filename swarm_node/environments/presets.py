"""The environments that ship with presets, as people know them: by the preset, not by a digest."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import signature
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from swarm_node.environments.base import Environment
from swarm_node.environments.registry import (
    create_environment,
    factory_taking,
    require_environment,
)
from swarm_node.environments.splits.split import describe_version
from swarm_node.environments.splits.splitting import Asking
from swarm_node.environments.workers.processes import START_SECONDS, variables
from swarm_node.errors import ConfigError, instead, words_of
from swarm_node.process.bounded import bounded_run

#: The node itself never imports an environment.
_TRIAL: Final = """
import json, sys
from swarm_node.environments.registry import create_environment, factory_of
from swarm_node.errors import ConfigError
try:
    factory_of(sys.argv[1])
    print("imported", flush=True)
    made = create_environment(sys.argv[1], json.loads(sys.argv[2]))
    print("turns", made.turns, "lists" if made.lists else "makes", flush=True)
    print("prompt", made.longest_prompt(), flush=True)
except ConfigError as error:
    sys.exit(str(error))
"""
#: The environments that ship and need no other package. Others are asked.
_SHIPPED = frozenset({"drills", "jsonl", "games"})
#: Of these, lists of questions with right answers.
_LISTS = frozenset({"jsonl"})
#: Modules of those that have presets. A node imports only the one that it is asked about.
_WITH_PRESETS: Mapping[str, str] = {
    "drills": "swarm_node.environments.bundled.drills",
    "reasoning_gym": "swarm_node.environments.reasoning_gym.environment",
}


class _Module(Protocol):
    PRESETS: Mapping[str, Mapping[str, Any]]
    create: Callable[..., Environment]
    preset_versions: Callable[[], Mapping[str, str]]


class Tried(NamedTuple):
    """An environment that a node could import, and the most turns of its multi-turn rollouts.
    `lists` is true for a list of questions with right answers, which a start has scored:
    `right_answers.py`. `prompt_bytes` are the UTF-8 bytes of the longest of some prompts, 0 if none
    was made, and `shortest_prompt` is the shortest of those of the chosen families, "" likewise."""

    name: str
    turns: int
    lists: bool = False
    prompt_bytes: int = 0
    shortest_prompt: str = ""


def environment_name(name: str, version: str) -> str:
    """An environment as people know it, with its preset in place of a digest. One of another
    release says so."""
    label, space, release = describe_version(version).partition(" ")
    digest, *suffixes = label.split("+")  # of a system prompt and examples
    module = _with_presets(name)
    if module is not None:
        label = "+".join([module.preset_versions().get(digest, digest), *suffixes])
    return f"{name} {label}{space}{release}"


def _with_presets(name: str) -> _Module | None:
    if name not in _WITH_PRESETS:
        return None
    return cast(_Module, importlib.import_module(_WITH_PRESETS[name]))


def try_environment(name: str, options: Mapping[str, Any], *, asks: bool = False) -> Tried:
    """Refuse an environment that cannot be had, before anything starts for it. A name without a
    module must be that of an installed environment. It is imported and made in a process like the
    environment's, unless it ships and has no options, or is a list, whose rows a start has scored.
    With `asks`, a list is made too, for its prompts.

    Raises:
        ConfigError: the message says what there is, or why it cannot be had.
    """
    require_environment(name, options)
    if (name in _LISTS and not asks) or (name in _SHIPPED and not options):
        return Tried(name, _turns(name), name in _LISTS)
    command = [sys.executable, "-c", _TRIAL, name, msgspec.json.encode(options).decode()]
    try:
        process = bounded_run(command, START_SECONDS, variables())
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"environment.name: {name!r} cannot be tried ({words_of(error)}): try again when this "
            "machine is less busy"
        ) from error
    match = re.search(rb"^turns ([0-9]{1,2}) (lists|makes)$", process.stdout, re.MULTILINE)
    if match is None:
        lines = process.stderr.decode(errors="replace").strip().splitlines() or [
            "it ended the process"
        ]
        if lines[-1].startswith("environment."):
            raise ConfigError(lines[-1])
        step = "made" if b"imported\n" in process.stdout else "imported"
        raise ConfigError(f"environment.name: {name!r} cannot be {step} ({lines[-1]}): mend it")
    # Prompts that cannot be made are refused later, by the family.
    prompt_match = re.search(rb"^prompt ([0-9]{1,9})$", process.stdout, re.MULTILINE)
    return Tried(
        name, int(match[1]), match[2] == b"lists", int(prompt_match[1]) if prompt_match else 0
    )


def _turns(shipped: str) -> int:
    if shipped != "games":
        return 1
    from swarm_node.environments.bundled.games import TURNS

    return TURNS


def prompt_bytes(trial: Tried, options: Mapping[str, Any]) -> int:
    """Return the UTF-8 bytes of the longest of some prompts of an environment by its `trial`, 0
    if nobody knows. Generators that ship are asked here; `options` are those of the start, in which
    the model may have chosen a preset."""
    if trial.prompt_bytes or trial.name not in _SHIPPED or trial.name in _LISTS:
        return trial.prompt_bytes
    return create_environment(trial.name, options).longest_prompt()


def check_choice(name: str, options: Mapping[str, Any], families: Sequence[str]) -> None:
    """Refuse options, a preset or a family that a shipped environment `name` does not have, before
    anything starts for it. What other environments have is known once they run.

    Raises:
        ConfigError: the message names what there is.
    """
    Asking.of(options)
    if name in _SHIPPED:
        factory_taking(name, options)
    if name == "games":
        from swarm_node.environments.bundled.games import FAMILIES

        _check_families(name, families, FAMILIES)
    module, preset = _with_presets(name), options.get("preset")
    if module is None or not isinstance(preset, str | None):
        return
    presets = module.PRESETS
    if preset is not None and preset not in presets:
        raise ConfigError(
            f"environment.options.preset: unknown {preset!r}", *instead(preset, presets)
        )
    if {"families", "datasets"} & options.keys():
        return
    if preset is None:
        preset = signature(module.create).parameters["preset"].default
    _check_families(preset, families, presets[preset])


def _check_families(source: str, families: Sequence[str], known_families: Collection[str]) -> None:
    for family in families:
        if family not in known_families:
            raise ConfigError(
                f"environment.families: {source} has no family {family!r}",
                *instead(family, known_families, "use some of"),
            )


def has_preset(name: str, preset: str) -> bool:
    """True if the environment `name` ships a preset of that name."""
    module = _with_presets(name)
    return module is not None and preset in module.PRESETS
