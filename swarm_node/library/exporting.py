"""The newest checkpoint of a home, in the file formats of transformers and peft."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from swarm_node.config import load_settings
from swarm_node.config.model import value_of
from swarm_node.errors import ModelError
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.curve import partition_by_split
from swarm_node.node.metrics.snapshot import Saved
from swarm_node.node.preflight.defaults import for_model
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.gguf.directory import read_quantization
from swarm_node.policy.models.hub import HubModel, hub_model, origin
from swarm_node.policy.models.model import resolve
from swarm_node.policy.training.checkpoints.export import newest_state, write_export
from swarm_node.policy.training.checkpoints.target import Format, check_target

#: Settings that the model card lists, with their names among the trainer's settings.
_TOLD = {
    "training.loss": "loss",
    "training.learning_rate": "learning_rate",
    "training.lora_rank": "lora_rank",
    "sampling.temperature": "temperature",
    "sampling.max_new_tokens": "longest_answer",
}
#: Settings of the home that it lists besides. Options of an environment can name files or people.
_RECIPE = (
    *("environment.name", "environment.families", "sampling.group_size"),
    *("experience.local", "experience.external", "experience.replay", "experience.max_staleness"),
    *("experience.external_correction", "training.advantage", "training.optimizer"),
)
#: Points of the curve in a card.
_POINTS = 12


def export(
    directory: Path,
    form: Format = "hf",
    *,
    home: Path | None = None,
    base: str | None = None,
    model: str | None = None,
    config: Path | None = None,
) -> int:
    """Write the newest checkpoint of `home` to a new or empty `directory`, and return its policy
    version. `base` is the base model's public name, "organisation/name" or with "@revision", by
    default that of the hub model it was trained from. `model` is the base that this home trains, by
    default as it remembers. The node may be running.

    Raises:
        CheckpointError: there is none, or it was made from another model.
        ModelError: `base` is no name of the hub, or the directory is not empty or cannot be
            written.
        ConfigError: a setting is unknown or impossible.
    """
    settings = load_settings({"home": home, "model": model}, config=config, with_home=True)
    check_target(directory)
    model_dir = resolve(settings.model)
    public = _public_base(base, model_dir)
    state = newest_state(Home(settings.home).checkpoints, model_dir)
    was = read_quantization(model_dir)
    base_name = str(public) if public else _cell(was.file if was else model_dir.name)
    model_settings = for_model(settings, ModelConfig.from_directory(model_dir))
    recipe = {key: value_of(model_settings, key) for key in _RECIPE}
    if model_settings is not settings and "local" not in settings.experience.model_fields_set:
        del recipe["experience.local"]  # by default the device that trained decided it
    card = model_card(
        form,
        base_name,
        public and public.repo,
        state.version,
        state.model,
        state.settings,
        state.extra,
        recipe,
    )
    write_export(state, model_dir, directory, form, base=public, card=card)
    return state.version


def _public_base(name: str | None, model_dir: Path) -> HubModel | None:
    """The base model's name on the hub and its revision: the one given, or that of the cached model
    in `model_dir`. None if it has none.

    Raises:
        ModelError: `name` is no name of the hub.
    """
    cached_model = origin(model_dir)
    if name is None:
        return cached_model
    named_model = hub_model(name)
    if named_model is None:
        raise ModelError(
            f"--base takes OWNER/NAME of the hub, or OWNER/NAME@REVISION, not {name!r}",
            "leave it out for a base that is in no repository",
        )
    is_same = (
        cached_model is not None
        and cached_model.repo == named_model.repo
        and named_model.revision == "main"
    )
    return cached_model if is_same else named_model


def model_card(
    form: str,
    base: str,
    public_base: str | None,
    policy_version: int,
    digest: bytes,
    settings: Mapping[str, Any],
    extra: Mapping[str, Any],
    recipe: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """README.md of an export: `base` model and its digest, versions, how it was trained, the curve
    of its node, and whom to cite.

    `public_base` is the base model's name on the hub, None if it has none. `settings` are the
    trainer's, `extra` are the node's values in the checkpoint, and `recipe` are settings of the
    home by key. Values that they lack are left out."""
    libraries = ["swarm-node", "torch", "transformers", *(["peft"] if form == "peft" else [])]
    header = [
        "---",
        f"library_name: {'peft' if form == 'peft' else 'transformers'}",
        *([f"base_model: {public_base}"] if public_base else []),
        "pipeline_tag: text-generation",
        "tags: [swarm-node, reinforcement-learning, grpo]",
        "---",
    ]
    opening = "A LoRA adapter for" if form == "peft" else "A model trained from"
    facts = [
        f"base model: {base} (sha256 of architecture and weights: {digest.hex()})",
        f"policy version: {policy_version}",
        *_progress(extra),
        "made with: " + ", ".join(f"{name} {version(name)}" for name in libraries),
    ]
    table = {key: settings.get(name) for key, name in _TOLD.items()} | dict(recipe)
    return "\n".join(
        [
            *header,
            "",
            f"{opening} {base}, trained by reinforcement learning on verifiable tasks in a",
            "decentralised swarm of nodes that share signed rollouts (swarm-node; SAPO, Swarm",
            "sAmpling Policy Optimization, arXiv 2509.08721).",
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "## Recipe",
            "",
            "| setting | value |",
            "| --- | --- |",
            *(f"| {key} | {_cell(v)} |" for key, v in table.items() if v is not None),
            "",
            *_curve(extra),
            "## Citation",
            "",
            f"swarm-node {version('swarm-node')}; Gensyn AI Team, Sharing is Caring: Efficient",
            "LM Post-Training with Collective RL Experience Sharing, arXiv 2509.08721.",
            "",
        ]
    )


def _cell(value: Any) -> str:
    """A value in a table of Markdown. What a user typed ends no cell and begins no other markup."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    safe_text = "".join(c if c.isprintable() and c not in "|<>`[]" else " " for c in text)
    return safe_text or "all"


def _curve(extra: Mapping[str, Any]) -> list[str]:
    """The node's eval reward over policy versions, as a section."""
    node_state = _read_saved(extra)
    points = partition_by_split(node_state.evals)[1] if node_state and node_state.evals else []
    if len(points) < 2:
        return []
    last = len(points) - 1
    count = min(_POINTS, len(points))
    table_points = [points[round(place * last / (count - 1))] for place in range(count)]
    return [
        "## Curve",
        "",
        "Eval reward (mean over task families) of this node while it trained on local and external",
        "rollouts.",
        "",
        "| policy version | held-out prompts | training prompts |",
        "| --- | --- | --- |",
        *(
            f"| {point.version} | {point.reward:.3f} | "
            f"{'-' if point.train is None else f'{point.train:.3f}'} |"
            for point in table_points
        ),
        "",
    ]


def _read_saved(extra: Mapping[str, Any]) -> Saved | None:
    try:
        return msgspec.convert(extra, Saved)
    except msgspec.ValidationError:  # the checkpoint of a trainer without a node has none
        return None


def _progress(extra: Mapping[str, Any]) -> list[str]:
    node_state = _read_saved(extra)
    if node_state is None:
        return []
    groups = node_state.groups
    facts = [
        f"{node_state.steps} steps on {groups.trained_local} local and {groups.trained_external} "
        "external groups"
    ]
    if node_state.evals:
        _, points = partition_by_split(node_state.evals)
        first, last = points[0], points[-1]
        facts.append(f"eval reward: {first.reward:.3f} at first, {last.reward:.3f} at last")
        if last.train is not None:
            facts.append(f"reward on training prompts: {last.train:.3f} at last")
    return facts
