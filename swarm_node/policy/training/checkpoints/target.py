"""What an export is refused for before anything is read: its directory, its format, a repository of
the hub, a home without checkpoints. Cheap to import, unlike `export.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from swarm_node.errors import ModelError
from swarm_node.policy.training.checkpoints.stored import checkpoints, no_checkpoint, stored_rank

Format = Literal["hf", "peft"]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def check_target(target: Path) -> None:
    """Raises:
    ModelError: there is something at `target` already.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} is not an empty directory", "choose another one")


def require_checkpoint(store: Path, form: Format = "hf") -> None:
    """Refuse a directory without checkpoints, and one whose newest has nothing of that `form`.

    Raises:
        CheckpointError: there is none.
        ModelError: there is no adapter to export.
    """
    if not checkpoints(store):
        raise no_checkpoint(store)
    rank = stored_rank(store)
    if rank is not None:
        check_form(form, rank)


def check_form(form: Format, rank: int) -> None:
    """
    Raises:
        ModelError: an adapter is asked for, and the policy has none.
    """
    if form == "peft" and not rank:
        raise ModelError(
            "this policy used full fine-tuning (training.lora_rank = 0), so there is no adapter to "
            "export",
            "use --format hf",
        )


def check_hub(repo: str) -> None:
    """Check what can be checked locally before a push to `repo`.

    Raises:
        ModelError: `repo` is no repository name, or there is no token.
    """
    if not _REPOSITORY.fullmatch(repo):
        raise ModelError(f"--push takes OWNER/NAME of a repository, not {repo!r}")
    from huggingface_hub import get_token

    if get_token() is None:
        raise ModelError("--push needs a token of the hub", "run `hf auth login`, or set HF_TOKEN")
