"""What `eval`, `serve` and `export` name: a stored policy, its base model, and tasks. A name that
means nothing is refused before torch is imported.

Cheap to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarm_node.config import Settings
from swarm_node.environments.registry import chosen_environment, require_environment
from swarm_node.errors import CheckpointError, ConfigError, HomeError
from swarm_node.node.home.home import Home
from swarm_node.policy.models.model import require_model
from swarm_node.policy.training.checkpoints.stored import MANIFEST, checkpoints, no_checkpoint

#: The words that name the model before its first update, and everything that is stored.
BASE, ALL = "base", "all"
_OPTIONS = "environment.options"


def require_served(settings: Settings, checkpoint: str | None) -> None:
    """
    Raises:
        ModelError, CheckpointError, HomeError: there is no such model or stored policy, or
            `checkpoint` names several.
    """
    require_model(settings.model)
    if checkpoint == ALL:
        raise HomeError("serve takes one checkpoint", "name it, or leave --checkpoint out")
    require_policy(checkpoint, Home(settings.home).checkpoints)


def require_measured(
    settings: Settings,
    tasks: str | None,
    checkpoint: str | None,
    overrides: Mapping[str, Any],
    k: int | None,
    answers: int,
) -> None:
    """
    Raises:
        ModelError, CheckpointError, ConfigError: there is no such model, stored policy or
            environment, or pass@k needs more answers.
    """
    if k is not None and not 1 <= k <= answers:
        raise ConfigError(
            f"--k is {k}: pass@k needs at least as many completions", f"--completions {k}"
        )
    require_model(settings.model)
    require_environment(*chosen_tasks(settings, tasks, overrides))
    require_policy(checkpoint, Home(settings.home).checkpoints)


def chosen_tasks(
    settings: Settings, tasks: str | None, overrides: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Name and options of the environment that `tasks` means. For the home's own environment the
    home's options count, because they decide which texts the home trains on. `overrides` are
    settings by dotted key."""
    name, options = settings.environment.name, settings.environment.options
    if tasks is None:
        return name, dict(options)
    choice = chosen_environment(tasks)
    environment, path = choice["environment.name"], choice.get(f"{_OPTIONS}.path")
    begin = _OPTIONS + "."
    new_options = {
        key.removeprefix(begin): v for key, v in overrides.items() if key.startswith(begin)
    }
    all_options = {**(options if name == environment else {}), **new_options}
    return environment, {**all_options, "path": path} if path else all_options


def require_policy(checkpoint: str | None, store: Path) -> None:
    """Refuse a name that `stored_policies` finds nowhere. Nothing is verified.

    Raises:
        CheckpointError: there is no such policy.
    """
    if checkpoint in (BASE, ALL):
        return
    if checkpoint is None:
        if not checkpoints(store):
            raise no_checkpoint(store, "or take `--checkpoint base`")
        return
    path = policy_directory(checkpoint, store)
    if not any((path / name).is_file() for name in (MANIFEST, "config.json")):
        raise no_policy(path, store)


def policy_directory(checkpoint: str, store: Path) -> Path:
    """The directory that a person named, or the checkpoint of that name."""
    path = Path(checkpoint).expanduser()
    return path if path.is_dir() else store / checkpoint


def no_policy(path: Path, store: Path) -> CheckpointError:
    """Make the error about a directory that holds no policy."""
    names = _names(checkpoints(store))
    return CheckpointError(
        f"no checkpoint or model at {path}", f"give a directory, `{ALL}` or `{BASE}`; {names}"
    )


def _names(paths: Sequence[Path]) -> str:
    return (
        f"this data directory has {', '.join(path.name for path in paths) or 'no checkpoint yet'}"
    )
