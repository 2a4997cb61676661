"""Dequantises a GGUF file once, into a directory of the program's cache that transformers reads.

The directory is named after the file's digest. It is written beside its final name, under a lock,
and gets the name when it is complete: a killed run leaves nothing that the next one takes for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from platformdirs import user_cache_path

from swarm_node.durable import is_private, make_private, open_lock, open_regular, sync
from swarm_node.errors import ModelError, extra_of, reason_of
from swarm_node.policy.models.config import ModelConfig, read_json
from swarm_node.policy.models.gguf.file import Dequantising, Quantised, WaitingForLock
from swarm_node.policy.models.gguf.header import Header, StoredTensor, read_header
from swarm_node.policy.models.gguf.shape import Weight, config_of, weights_of
from swarm_node.policy.models.gguf.tokenizer import tokenizer_files

if TYPE_CHECKING:
    import numpy as np

#: Raised when what is written changes, so that older directories are made anew.
_VERSION: Final = 2
_NOTE: Final = "gguf.json"
#: Weights that are dequantised at once, in rows: 16 MiB in float32, and a few times that besides.
_CHUNK_WEIGHTS: Final = 1 << 22
#: Left free on the disk.
_SPARE_BYTES: Final = 64 << 20
_TOLD_SECONDS: Final = 5.0
_SAFETENSORS: Final = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
#: Bytes of one weight in the encodings that lose nothing in their own type.
_KEPT: Final = {"F16": "float16", "BF16": "bfloat16"}


def gguf_model(path: Path) -> tuple[ModelConfig, Quantised]:
    """The architecture of the model in a GGUF file, and its encodings, from its header.

    Raises:
        ModelError: it cannot be read, or its model does not run here.
    """
    header = read_header(path)
    config = config_of(header)
    weights_of(header, config)
    with tempfile.TemporaryDirectory(prefix="swarm-node-gguf-") as place:
        return _config(Path(place), config), Quantised(path.name, header.encodings)


def read_quantization(directory: Path) -> Quantised | None:
    """What the weights in a model's directory were dequantised from; None for any other.

    Raises:
        ModelError: the note that says so is malformed.
    """
    note = directory / _NOTE
    if not note.is_file():
        return None
    contents = read_json(note)
    return Quantised(str(contents.get("file")), tuple(map(str, contents.get("encodings") or ())))


def is_dequantised(path: Path) -> bool:
    """Check that the directory of a GGUF file's model is in the cache."""
    try:
        return _place(path).is_dir()
    except OSError:
        return False


def dequantize_to_cache(
    path: Path,
    admit: Callable[[ModelConfig], object],
    notify: Callable[[Dequantising | WaitingForLock], object],
) -> Path:
    """The directory of the model in a GGUF file: the one in the cache, or else a new one.

    `admit` gets the architecture before anything large is written, and raises to refuse it.
    `notify` gets what will be written then, and every few seconds what was.

    Raises:
        ModelError: the file cannot be used, the package gguf is missing, the disk is full, or
            another user of the machine may write into the cache.
    """
    header = read_header(path)
    config = config_of(header)
    weights = weights_of(header, config)
    cache = user_cache_path("swarm-node") / "gguf"
    try:
        place = _place(path)
        make_private(cache)
        _check_private(cache.parent, cache)
        staging = place.with_suffix(".new")
        with _lock_directory(place.with_suffix(".lock"), lambda: notify(WaitingForLock(path))):
            if place.is_dir():
                _check_private(place)
                admit(ModelConfig.from_directory(place))
                return place
            shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
            staging.mkdir(mode=0o700)
            try:
                admit(_config(staging, config))
                _write(header, config, weights, staging, notify)
                os.rename(staging, place)
                sync(cache)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
    except OSError as error:
        raise ModelError(
            f"{path} cannot be dequantised into {cache}: {reason_of(error)}; XDG_CACHE_HOME names "
            "another place"
        ) from error
    return place


def _check_private(*directories: Path) -> None:
    """Check that no other user of the machine can put a model there, or another one in its place.

    Raises:
        ModelError: one can.
    """
    for directory in directories:
        if not is_private(directory):
            raise ModelError(
                f"others may write {directory}, and so could change models there",
                "remove it if it is yours, or name a directory of your own in XDG_CACHE_HOME",
            )


@contextmanager
def _lock_directory(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of a directory: a second start waits for the first, and then uses what it
    wrote."""
    with open_lock(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _place(path: Path) -> Path:
    """The directory in the cache for a file of these bytes."""
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return user_cache_path("swarm-node") / "gguf" / f"{digest}-{_VERSION}"


def _config(place: Path, config: Mapping[str, Any]) -> ModelConfig:
    (place / "config.json").write_text(json.dumps(config, indent=2))
    return ModelConfig.from_directory(place)


def _write(
    header: Header,
    config: Mapping[str, Any],
    weights: Sequence[Weight],
    place: Path,
    notify: Callable[[Dequantising], object],
) -> None:
    """Write all files but config.json, which is there."""
    if find_spec("gguf") is None:
        raise ModelError(f"{header.path} needs the package gguf", f"run {extra_of('gguf')}")
    files = tokenizer_files(header, config["vocab_size"])
    ends = {key: value for key, value in config.items() if key.endswith("_token_id")}
    files["generation_config.json"] = json.dumps(ends, indent=2).encode()
    note = {"file": header.path.name, "encodings": header.encodings}
    files[_NOTE] = json.dumps(note, indent=2).encode()
    size = sum(_storage_type(weight.tensor)[1] for weight in weights)
    free = shutil.disk_usage(place).free
    if size + _SPARE_BYTES > free:
        raise ModelError(
            f"{header.path.name} needs {size / 1e9:.1f} GB dequantised in {place.parent}, where "
            f"{free / 1e9:.1f} are free",
            "free some, or name another disk in XDG_CACHE_HOME",
        )
    for name, data in files.items():
        (place / name).write_bytes(data)
    state = Dequantising(header.path, header.encodings, 0, size, place.parent)
    with (place / "model.safetensors").open("wb") as file, open_regular(header.path) as source:
        notify(state)
        last = time.monotonic()
        file.write(_preamble(weights))
        for weight in weights:
            for part in _parts(header.path, source, weight):
                file.write(part)
                state = state._replace(written=state.written + len(part))
                if time.monotonic() - last >= _TOLD_SECONDS:
                    last = time.monotonic()
                    notify(state)
    for path in place.iterdir():
        sync(path)


def _storage_type(tensor: StoredTensor) -> tuple[str, int]:
    """The type in which a tensor's weights lose nothing, and their bytes."""
    kind, width = _SAFETENSORS[_KEPT.get(tensor.encoding.name, "float32")]
    count = tensor.size // tensor.encoding.size * tensor.encoding.weights
    return kind, count * width


def _preamble(weights: Sequence[Weight]) -> bytes:
    """The length and the header of a safetensors file."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        kind, size = _storage_type(weight.tensor)
        table[weight.name] = {
            "dtype": kind,
            "shape": list(weight.tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _parts(path: Path, source: IO[bytes], weight: Weight) -> Iterator[bytes]:
    """The bytes of a weight in a safetensors file, some rows at a time: whole heads where rows are
    permuted."""
    import numpy as np

    tensor = weight.tensor
    *outer_shape, width = tensor.shape
    rows = outer_shape[0] if outer_shape else 1
    unit = rows // weight.heads if weight.heads else 1
    step = max(1, _CHUNK_WEIGHTS // (width * unit)) * unit
    row_bytes = tensor.size // rows
    source.seek(tensor.offset)
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        data = source.read(count * row_bytes)
        if len(data) < count * row_bytes:
            raise ModelError(f"{path}: the tensor {tensor.name} is cut: download it again")
        values = _values(np.frombuffer(data, np.uint8).reshape(count, row_bytes), tensor)
        if not np.isfinite(values).all():
            raise ModelError(
                f"{path}: the tensor {tensor.name} has weights that are no numbers: download or "
                "convert it again"
            )
        dtype = _KEPT.get(tensor.encoding.name)
        if dtype is not None:
            values = np.frombuffer(data, np.uint16).reshape(count, width)
        if weight.heads:
            # From pairs of neighbours to halves, in each head.
            values = values.reshape(-1, unit // 2, 2, width).swapaxes(1, 2)
        yield values.tobytes()


def _values(rows: np.ndarray[Any, Any], tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Float32 values of rows of bytes."""
    import numpy as np
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # what is no number is refused by name
        values: np.ndarray[Any, Any] = dequantize(rows, GGMLQuantizationType(tensor.number))
    return values
