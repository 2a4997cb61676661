"""Models by name: aliases, hub ids, and fetching them with huggingface_hub.

Only a fixed list of files is requested: JSON, a chat template and safetensors, and so neither
pickles nor code. A complete cached model is used without asking the hub.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from swarm_node.errors import ModelError
from swarm_node.policy.models.by_transformers.config import ReadingConfig, read_config
from swarm_node.policy.models.config import MAX_JSON_BYTES, ModelConfig, weight_files

#: Short names. The models are instruction-tuned, follow a chat template and end their answers;
#: those whose name ends in "-base" are not.
ALIASES = {
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "smollm2-135m-base": "HuggingFaceTB/SmolLM2-135M",
    "smollm2-360m-base": "HuggingFaceTB/SmolLM2-360M",
    "smollm2-1.7b-base": "HuggingFaceTB/SmolLM2-1.7B",
    "llama3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama3.2-1b-base": "meta-llama/Llama-3.2-1B",
    "llama3.2-3b-base": "meta-llama/Llama-3.2-3B",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-0.5b-base": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b-base": "Qwen/Qwen2.5-1.5B",
    "qwen2.5-3b-base": "Qwen/Qwen2.5-3B",
    "qwen2.5-7b-base": "Qwen/Qwen2.5-7B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B",
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-0.6b-base": "Qwen/Qwen3-0.6B-Base",
    "qwen3-1.7b-base": "Qwen/Qwen3-1.7B-Base",
    "qwen3-4b-base": "Qwen/Qwen3-4B-Base",
    "qwen3-8b-base": "Qwen/Qwen3-8B-Base",
}

_REQUIRED = ("config.json", "tokenizer.json")
_FILES = (
    *_REQUIRED,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
_HUB_ID = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[\w./-]{1,100}))?",
    re.ASCII,
)
#: A weight takes at most four bytes in a file, and a tied output head may be stored twice.
_MAX_WEIGHT_BYTES = 4
_SPARE_BYTES = 16 << 20


class HubModel(NamedTuple):
    """A model of the hub: `repo` is "organisation/name", `revision` a branch, tag or commit."""

    repo: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.repo if self.revision == "main" else f"{self.repo}@{self.revision}"


class Download(NamedTuple):
    """A download to come: files of a model, their bytes, and the directory."""

    model: str
    files: int
    size: int
    cache: Path

    def __str__(self) -> str:
        return f"downloading {self.model}: {self.files} files, {_amount(self.size)} to {self.cache}"


def to_stderr(message: object) -> None:
    """Tell the user of a download, or of another thing that takes long."""
    print(message, file=sys.stderr, flush=True)


def hub_model(name: str) -> HubModel | None:
    """The model that `name` means: an alias, "organisation/name" or "organisation/name@revision".
    None for anything else."""
    match = _HUB_ID.fullmatch(ALIASES.get(name.lower(), name))
    if match is None or ".." in name:
        return None
    return HubModel(match["repo"], match["revision"] or "main")


def origin(directory: Path) -> HubModel | None:
    """The hub model whose files are in a directory of the hub's cache, with its commit. None for
    any other directory."""
    repo = directory.parent.parent.name
    if directory.parent.name != "snapshots" or not repo.startswith("models--"):
        return None
    return hub_model(f"{repo.removeprefix('models--').replace('--', '/')}@{directory.name}")


def fetch(
    model: HubModel,
    admit: Callable[[ModelConfig], object],
    notify: Callable[[Download | ReadingConfig], object] = to_stderr,
) -> Path:
    """The directory of a hub model's files: the cached ones if they are complete, or else the
    downloaded ones. After an interruption, files that were whole are not asked for again.

    `admit` gets the architecture before the weights are downloaded, and raises to refuse it.
    `notify` gets what will be downloaded then, and that transformers reads a `config.json`.

    Raises:
        ModelError: the model is unknown, gated, unsupported or too large, there is no network, or
            the disk is full.
    """
    cached_path = _cached_path(model)
    if cached_path is not None:
        admit(read_config(cached_path, notify))
        return cached_path
    files = _list_files(model)
    if missing_names := [name for name in _REQUIRED if name not in {file.name for file in files}]:
        raise ModelError(f"{model} has no {missing_names[0]}", "choose a model of transformers")
    if not any(file.name.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{model} has no model.safetensors; other formats may hold code and are never loaded",
            "choose a revision with safetensors, or convert it yourself",
        )
    _check_small(model, files)
    config = read_config(_download(model, ["config.json"]), notify)
    _check_weights(model, files, config)
    admit(config)
    notify(_plan_download(model, files))
    path = _download(model, _FILES)
    _check_sizes(path, files)
    return path


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    size: int
    is_cached: bool


def is_cached(model: HubModel) -> bool:
    """Check that all files of a model are in the cache. The hub is not asked."""
    return _cached_path(model) is not None


def _cached_path(model: HubModel) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        path = _snapshot(model, _FILES, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    try:
        complete = all((path / name).is_file() for name in _REQUIRED) and all(
            file.is_file() for file in weight_files(path)
        )
    except ModelError:
        return None
    return path if complete else None


def _list_files(model: HubModel) -> list[_File]:
    """The files among `_FILES` that the hub has, with sizes."""
    items = _call_hub(model, lambda: _snapshot(model, _FILES, dry_run=True))
    files = [_File(item.filename, item.file_size or 0, item.is_cached) for item in items]
    return [file for file in files if "/" not in file.name]


def _download(model: HubModel, patterns: Sequence[str]) -> Path:
    path: Path = _call_hub(model, lambda: _snapshot(model, patterns))
    return path


def _snapshot(model: HubModel, patterns: Sequence[str], **options: Any) -> Any:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    result = snapshot_download(
        model.repo,
        revision=model.revision,
        allow_patterns=list(patterns),
        # A star in a pattern is any folder too.
        ignore_patterns=["*/*"],
        **options,
    )
    return Path(result) if isinstance(result, str) else result


def _call_hub(model: HubModel, call: Callable[[], Any]) -> Any:
    """The result of `call`; the hub's errors become a `ModelError` that says what to do."""
    from httpx2 import HTTPError
    from huggingface_hub import constants, errors

    alternative = (
        "download it where there is a network and give its directory (`--model DIRECTORY`), or "
        "name a mirror in HF_ENDPOINT; `--model tiny` needs no download"
    )
    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            f"{model} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids "
            f"fetching it: unset that, or {alternative}"
        )
    try:
        return call()
    # hf_xet, which fetches large files, raises RuntimeError.
    except (OSError, HTTPError, errors.HFValidationError, RuntimeError) as error:
        cause = _cause(error)
        if isinstance(cause, errors.GatedRepoError):
            message = f"{model} is gated: accept its terms on the hub and put a token in HF_TOKEN"
        elif isinstance(cause, errors.RepositoryNotFoundError):
            message = (
                f"the hub has no model {model.repo} (or a private one: set HF_TOKEN); known short "
                f"names: tiny, {', '.join(ALIASES)}"
            )
        elif isinstance(cause, errors.RevisionNotFoundError):
            message = f"{model.repo} has no revision {model.revision!r}: choose another after the @"
        else:
            message = (
                f"{model} cannot be fetched from {constants.ENDPOINT} ({_first_line(cause)}): try "
                f"again, which keeps the files that are whole; or {alternative}"
            )
        raise ModelError(message) from error


def _cause(error: BaseException) -> BaseException:
    """The error that says most. huggingface_hub raises its own from one of HTTP, or wraps them in
    another."""
    from huggingface_hub import errors

    error_types = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    cause = error.__cause__ or error
    return error if isinstance(error, error_types) else cause


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _check_small(model: HubModel, files: Sequence[_File]) -> None:
    for file in files:
        if not file.name.endswith(".safetensors") and file.size > MAX_JSON_BYTES:
            raise ModelError(
                f"{model}: {file.name} is {_amount(file.size)}, at most "
                f"{_amount(MAX_JSON_BYTES)} are taken",
                "choose another model or revision",
            )


def _check_weights(model: HubModel, files: Sequence[_File], config: ModelConfig) -> None:
    cap = _SPARE_BYTES + _MAX_WEIGHT_BYTES * (
        config.weight_count + config.vocab_size * config.hidden_size
    )
    size = sum(file.size for file in files if file.name.endswith(".safetensors"))
    if size > cap:
        raise ModelError(
            f"{model} has {_amount(size)} of weights, its config.json describes {_amount(cap)} at "
            "most, so they do not belong together",
            "choose another model or revision",
        )


def _plan_download(model: HubModel, files: Sequence[_File]) -> Download:
    from huggingface_hub import constants

    missing_sizes = [file.size for file in files if not file.is_cached]
    need = sum(missing_sizes)
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if need > free:
        raise ModelError(
            f"{model} needs {_amount(need)} more in {cache}, where {_amount(free)} are free",
            f"free {_amount(need - free)}, name another disk in HF_HOME, or take a smaller model",
        )
    return Download(str(model), len(missing_sizes), need, cache)


def _check_sizes(path: Path, files: Sequence[_File]) -> None:
    for file in files:
        if (path / file.name).stat().st_size != file.size:
            raise ModelError(
                f"{path / file.name} has not the size the hub states", "remove it and try again"
            )


def _amount(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
