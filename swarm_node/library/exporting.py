"""The newest checkpoint of a home, in the file formats of transformers and peft."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from swarm_node.config import load_settings
from swarm_node.node.figures.curve import OLD_GROUND, parted
from swarm_node.node.figures.snapshot import Saved
from swarm_node.node.home.home import Home
from swarm_node.policy.models.model import SHIPPED, resolve
from swarm_node.policy.training.checkpoints.export import (
    Format,
    check_target,
    newest_state,
    write_export,
)

#: Settings that the model card lists, with their names among the trainer's settings.
_TOLD = {
    "training.loss": "loss",
    "training.learning_rate": "learning_rate",
    "training.lora_rank": "lora_rank",
    "sampling.temperature": "temperature",
    "sampling.max_new_tokens": "longest_answer",
}


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
    version. `base` is the base model's public name, `model` the base that this home trains, by
    default as it remembers. The node may be running.

    Raises:
        CheckpointError: there is none, or it was made from another model.
        ModelError: the directory is not empty or cannot be written.
        ConfigError: a setting is unknown or impossible.
    """
    settings = load_settings({"home": home, "model": model}, config=config, with_home=True)
    check_target(directory)
    model_dir = resolve(settings.model)
    state = newest_state(Home(settings.home).checkpoints, model_dir)
    named = base or (settings.model if settings.model in SHIPPED else str(model_dir))
    card = model_card(form, named, base, state.version, state.model, state.settings, state.extra)
    write_export(state, model_dir, directory, form, base=base or str(model_dir), card=card)
    return state.version


def model_card(
    form: str,
    base: str,
    public_base: str | None,
    policy_version: int,
    digest: bytes,
    settings: Mapping[str, Any],
    extra: Mapping[str, Any],
) -> str:
    """README.md of an export: `base` model and its digest, versions, how it was trained.

    `public_base` is the base model's name on the hub, None if it has none. `settings` are the
    trainer's, and `extra` are the node's values in the checkpoint. Values that they lack are left
    out."""
    libraries = ["swarm-node", "torch", "transformers", *(["peft"] if form == "peft" else [])]
    header = [
        "---",
        f"library_name: {'peft' if form == 'peft' else 'transformers'}",
        *([f"base_model: {public_base}"] if public_base else []),
        "pipeline_tag: text-generation",
        "tags: [swarm-node, reinforcement-learning, grpo]",
        "---",
    ]
    what = "A LoRA adapter for" if form == "peft" else "A model trained from"
    facts = [
        f"base model: {base} (sha256 of architecture and weights: {digest.hex()})",
        f"policy version: {policy_version}",
        *_progress(extra),
        "made with: " + ", ".join(f"{name} {version(name)}" for name in libraries),
    ]
    told = [
        f"| {key} | {settings[name]} |"
        for key, name in _TOLD.items()
        if settings.get(name) is not None
    ]
    return "\n".join(
        [
            *header,
            "",
            f"{what} {base}, trained by reinforcement learning on verifiable tasks in a",
            "decentralised swarm of nodes that share signed rollouts (swarm-node; SAPO, Swarm",
            "sAmpling Policy Optimization, arXiv 2509.08721).",
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "| setting | value |",
            "| --- | --- |",
            *told,
            "",
        ]
    )


def _progress(extra: Mapping[str, Any]) -> list[str]:
    try:
        saved = Saved.read(extra)
    except msgspec.ValidationError:  # the checkpoint of a trainer without a node has none
        return []
    groups = saved.groups
    told = [
        f"{saved.updates} updates on {groups.trained_own} own and {groups.trained_external} "
        "peers' rollout groups"
    ]
    if saved.evals:
        _, points = parted(saved.evals)
        first, last = points[0], points[-1]
        what = "reward on unseen texts" if last.split else f"reward ({OLD_GROUND})"
        told.append(f"{what}: {first.all:.3f} at first, {last.all:.3f} at last")
        if last.seen is not None:
            told.append(f"reward on seen texts: {last.seen:.3f} at last")
    return told
