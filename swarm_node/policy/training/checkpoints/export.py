"""Exports a trained policy as a directory for transformers or peft, and uploads it to a hub."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from swarm_node.errors import CheckpointError, ModelError, words_of
from swarm_node.policy.models.config import ModelConfig, read_json
from swarm_node.policy.models.decoder.lora import TrainedAdapter
from swarm_node.policy.models.hub import HubModel
from swarm_node.policy.models.loading import load_model, make_adapter
from swarm_node.policy.models.model import policy_digests
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.training.checkpoints.checkpoint import TrainingState, read
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.policy.training.checkpoints.target import (
    Format,
    check_form,
    check_target,
    require_checkpoint,
)

#: Copied from the base model's directory where they exist.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
#: Entries of a base's config.json that are wrong in an export: code that is not exported, the type
#: of the base's weights, and a path of whoever stored it.
_NOT_EXPORTED = ("auto_map", "torch_dtype", "_name_or_path")


def newest_state(checkpoints: Path, model_dir: Path) -> TrainingState:
    """The newest valid checkpoint, made from the model in `model_dir`.

    Raises:
        CheckpointError: there is none, none verifies, or it was made from another model.
        ModelError: `model_dir` holds no model.
    """
    require_checkpoint(checkpoints)
    path = newest_valid(checkpoints)
    if path is None:
        raise CheckpointError(f"no checkpoint under {checkpoints} any more", "try again")
    state = read(path)
    if state.model != policy_digests(model_dir)[0]:
        raise CheckpointError(
            f"{path} was not made from the model in {model_dir}", "name its base with --model"
        )
    return state


def write_export(
    state: TrainingState,
    model_dir: Path,
    target: Path,
    form: Format,
    *,
    base: HubModel | None,
    card: str,
) -> None:
    """Write `state`, trained from the model in `model_dir`, to `target`, completely or not at all.

    "hf" is the whole model in float32, with the adapter merged. "peft" is the adapter alone, whose
    configuration names `base` as its base model. Without one it names none: a path of this machine
    means nothing on another, and peft would ask the hub for a directory's name. Both have the
    tokenizer, and `card` as README.md.

    Raises:
        ModelError: `target` is not empty, there is no adapter to write, or the disk refused.
        CheckpointError: the checkpoint does not fit the model.
    """
    check_target(target)
    target = target.resolve()
    rank = int(state.settings.get("lora_rank", 0))
    check_form(form, rank)
    model = load_model(model_dir)
    adapter: TrainedAdapter | None = None
    try:
        if rank:
            adapter = make_adapter(model, rank, base=base)
            adapter.load_state(state.weights)
        else:
            model.load_hf_state(state.weights)
    except ModelError as error:
        raise CheckpointError(f"the checkpoint cannot be exported: {error}") from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as work:
            place = Path(work) / target.name
            place.mkdir()
            if form == "peft" and adapter is not None:
                adapter.save(place)
            else:
                _write_model(
                    adapter.merged_weights() if adapter else model.hf_state(), model_dir, place
                )
            for name in _TOKENIZER_FILES:
                if (model_dir / name).is_file():
                    shutil.copyfile(model_dir / name, place / name)
            (place / "README.md").write_text(card, encoding="utf-8")
            place.replace(target)
    except OSError as error:
        raise ModelError(f"cannot write {target}: {error.strerror}") from error


def _write_model(weights: dict[str, torch.Tensor], model_dir: Path, place: Path) -> None:
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    config = read_json(model_dir / "config.json")
    entries = {name: value for name, value in config.items() if name not in _NOT_EXPORTED}
    architecture = ModelConfig.from_directory(model_dir).architecture
    entries |= {"architectures": [architecture], "dtype": "float32"}
    _write_json(place / "config.json", entries)
    generation = model_dir / "generation_config.json"
    values = read_json(generation) if generation.is_file() else {}
    eos_setting, codec = values.get("eos_token_id"), Codec.from_directory(model_dir)
    first = eos_setting if isinstance(eos_setting, list) else [eos_setting]
    # The policy learnt to end at each of them, and base models name only the end of a text.
    if missing_ids := codec.eos_ids.difference(first):
        stated_ids = [token for token in first if token is not None] or [codec.eos_id]
        ends = [*stated_ids, *sorted(missing_ids.difference(stated_ids))]
        values["eos_token_id"] = ends if len(ends) > 1 else ends[0]
        _write_json(place / generation.name, values)
    else:
        shutil.copyfile(generation, place / generation.name)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def push(directory: Path, repo: str) -> str:
    """Upload an export to the hub and return its address. A new repository is private.

    Raises:
        ModelError: the hub refused or cannot be reached; `directory` stays.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of its client

    api = HfApi()
    try:
        address = api.create_repo(repo, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=directory, commit_message="Export from swarm-node"
        )
    except (HTTPError, OSError, ValueError) as error:  # refused, unreachable, offline by setting
        reason = words_of(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{directory} is written, but {api.endpoint} did not take it ({reason[0]})",
            f"check the network and the token, then `hf upload {repo} {directory}`",
        ) from error
    return str(address)
