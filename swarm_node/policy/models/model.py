"""Finding a model, its tokenizer and their digests. Cheap to import: no torch, no transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Self

from swarm_node.errors import ModelError, meant
from swarm_node.policy.models.bounds import chat_template, check_directory
from swarm_node.policy.models.by_transformers.config import ReadingConfig, read_config
from swarm_node.policy.models.config import ModelConfig, read_json, weight_files
from swarm_node.policy.models.gguf.file import Dequantising, Quantised, WaitingForLock, is_gguf
from swarm_node.policy.models.hub import (
    ALIASES,
    Download,
    HubModel,
    fetch,
    hub_model,
    is_cached,
    to_stderr,
)
from swarm_node.policy.models.text.codec import Codec
from swarm_node.rollout import PolicyRef

TINY, TALK = "tiny", "tiny-talk"
#: Models that are part of this package, in directories of their names.
SHIPPED = (TINY, TALK)
#: What `resolve` tells while it works.
Told = Download | ReadingConfig | Dequantising | WaitingForLock | Quantised
_CHUNK_BYTES = 1 << 20


def no_model(name: str, path: Path) -> ModelError:
    """Return the error for a `name` that is no model, with the short names that it looks like."""
    return ModelError(
        f"no model at {path}",
        *meant(name, [*SHIPPED, *ALIASES], limit=3),
        "`swarm-node plan --help` lists the short names",
        "or give organisation/name of the model hub, a GGUF file, or a directory with config.json, "
        "model.safetensors and tokenizer.json",
    )


def require_model(name: str) -> None:
    """Refuse a `name` that is no model and means none of the hub. Nothing is read or fetched, so
    this comes before all that takes longer.

    Raises:
        ModelError: it is none.
    """
    path = Path(name).expanduser()
    if name in SHIPPED or of_hub(name) is not None:
        return
    if not (path.is_file() if is_gguf(name) else (path / "config.json").is_file()):
        raise no_model(name, path)


def of_hub(name: str) -> HubModel | None:
    """Return the model of the hub that `name` means, None where something here has that name, too,
    or for any other name."""
    model = hub_model(name)
    is_local = name in SHIPPED or is_gguf(name)
    return None if model is None or is_local or Path(name).expanduser().exists() else model


def resolve(
    name: str,
    admit: Callable[[ModelConfig], object] = lambda config: None,
    notify: Callable[[Told], object] = to_stderr,
) -> Path:
    """The directory of the model `name`: one that is part of this package, or an existing
    directory, or what a GGUF file holds, dequantised if it is not cached, or an alias or id of the
    hub (`hub.hub_model`), fetched if it is not cached.

    `admit` gets the architecture before weights are downloaded or dequantised, and raises to refuse
    it; `notify` gets what is about to take long, and that weights were quantised.
    What is in a directory that is not this package's is checked against `bounds`.

    Raises:
        ModelError: there is no such model, or it cannot be fetched or used.
    """
    if name in SHIPPED:
        path = Path(str(resources.files("swarm_node.policy.models"))) / name
    else:
        path = Path(name).expanduser()
        if is_gguf(name):
            return _from_gguf(path, admit, notify)
        model = of_hub(name)
        if model is not None:
            fetched = fetch(model, admit, notify)
            check_directory(fetched, read_config(fetched))
            return fetched
    if not (path / "config.json").is_file():
        raise no_model(name, path)
    config = read_config(path, notify)
    admit(config)
    if name not in SHIPPED:
        check_directory(path, config)
    return path.resolve()


def _from_gguf(
    path: Path, admit: Callable[[ModelConfig], object], notify: Callable[[Told], object]
) -> Path:
    from swarm_node.policy.models.gguf.directory import dequantize_to_cache, read_quantization

    directory = dequantize_to_cache(path, admit, notify)
    check_directory(directory, ModelConfig.from_directory(directory))
    note = read_quantization(directory)
    if note is not None:
        notify(note._replace(file=path.name))  # it may have moved
    return directory.resolve()


def local(name: str) -> bool:
    """Check that the model `name` is on this machine, so that `resolve` neither fetches nor
    dequantises."""
    path = Path(name).expanduser()
    if is_gguf(name):
        from swarm_node.policy.models.gguf.directory import is_dequantised

        return is_dequantised(path)
    if name in SHIPPED or path.is_dir():
        return name in SHIPPED or (path / "config.json").is_file()
    model = of_hub(name)
    return model is not None and is_cached(model)


def policy_digests(path: Path) -> tuple[bytes, bytes]:
    """sha256 of the model and of the tokenizer in a directory (32 bytes each).

    The model's digest covers the architecture and the bytes of the weight files. The tokenizer's
    covers the chat template and tokenizer.json without its padding and truncation settings. The
    formatting of JSON files and all other files do not count, so the same model has the same
    digests everywhere.

    Raises:
        ModelError: a file is missing or malformed.
    """
    model = hashlib.sha256(_canonical(ModelConfig.from_directory(path).digested_fields()))
    for file in weight_files(path):
        model.update(_file_digest(file))
    rules = read_json(path / "tokenizer.json")
    template = chat_template(path)
    entries = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    tokenizer = hashlib.sha256(_canonical({"tokenizer": entries, "chat_template": template}))
    return model.digest(), tokenizer.digest()


@dataclass(frozen=True, eq=False)
class Model:
    """A model's directory, read once: its digests cover every byte of its weights. `name` is what
    its user calls it, `policy` names its weights and tokenizer to peers."""

    name: str
    directory: Path
    config: ModelConfig
    codec: Codec
    policy: PolicyRef

    @classmethod
    def read(cls, name: str, directory: Path) -> Self:
        """
        Raises:
            ModelError: a file is missing or malformed, or tokenizer and model do not fit.
        """
        config = ModelConfig.from_directory(directory)
        codec, digests = Codec.from_directory(directory), policy_digests(directory)
        return cls(name, directory, config, codec, PolicyRef(*digests, 0))


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _file_digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    return digest.digest()
