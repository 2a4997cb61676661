"""The header of a GGUF file: its metadata, and where its tensors lie. Standard library only.

A file may come from anybody, and the reader of the package gguf believes its counts: an array of
2⁶³ values that a cut file does not have costs it all memory. So the header is read here, at most
`MAX_HEADER_BYTES` of it, and every count and length is checked against the bytes that there are
before anything is made of it. The format is that of the page gguf.md of
https://github.com/ggml-org/ggml, little-endian, versions 2 and 3.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from swarm_node.durable import open_regular
from swarm_node.errors import ModelError, reason_of

#: The vocabularies of the largest known models, with their merges, have some 16 MB.
MAX_HEADER_BYTES: Final = 64 << 20
#: Values in all arrays together: tokens, scores, types and merges of 0.5 million tokens.
_MAX_VALUES: Final = 1 << 21
#: Known files have some 40 keys. A model of `bounds.MAX_LAYERS` layers has 13,000 tensors.
_MAX_KEYS, _MAX_TENSORS, _MAX_DIMENSIONS = 1 << 12, 1 << 14, 4
_MAX_ALIGNMENT: Final = 1 << 16
_SHOWN: Final = 80
_SPLIT: Final = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


class Encoding(NamedTuple):
    """How weights are stored: blocks of `weights` weights in `size` bytes."""

    name: str
    weights: int
    size: int


#: The encodings of ggml that can be dequantised, by their numbers in a file.
ENCODINGS: Final[Mapping[int, Encoding]] = {
    0: Encoding("F32", 1, 4),
    1: Encoding("F16", 1, 2),
    2: Encoding("Q4_0", 32, 18),
    3: Encoding("Q4_1", 32, 20),
    6: Encoding("Q5_0", 32, 22),
    7: Encoding("Q5_1", 32, 24),
    8: Encoding("Q8_0", 32, 34),
    10: Encoding("Q2_K", 256, 84),
    11: Encoding("Q3_K", 256, 110),
    12: Encoding("Q4_K", 256, 144),
    13: Encoding("Q5_K", 256, 176),
    14: Encoding("Q6_K", 256, 210),
    16: Encoding("IQ2_XXS", 256, 66),
    17: Encoding("IQ2_XS", 256, 74),
    18: Encoding("IQ3_XXS", 256, 98),
    19: Encoding("IQ1_S", 256, 50),
    20: Encoding("IQ4_NL", 32, 18),
    21: Encoding("IQ3_S", 256, 110),
    22: Encoding("IQ2_S", 256, 82),
    23: Encoding("IQ4_XS", 256, 136),
    29: Encoding("IQ1_M", 256, 56),
    30: Encoding("BF16", 1, 2),
}
#: Formats of `struct` by the numbers of a value's types.
_SCALARS: Final = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
}
_FLOAT32, _BOOL, _TEXT, _ARRAY = 6, 7, 8, 9


class StoredTensor(NamedTuple):
    """A tensor in a file: `shape` as in torch, the last dimension contiguous; `offset` in bytes
    from the beginning of the file."""

    name: str
    shape: tuple[int, ...]
    number: int
    offset: int

    @property
    def encoding(self) -> Encoding:
        return ENCODINGS[self.number]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) // self.encoding.weights * self.encoding.size


class Header(NamedTuple):
    """What a file says about itself. Arrays of the metadata are lists."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def encodings(self) -> tuple[str, ...]:
        """The encodings of the matrices, the one with the most weights first."""
        weights: dict[str, int] = {}
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1:
                name = tensor.encoding.name
                weights[name] = weights.get(name, 0) + math.prod(tensor.shape)
        return tuple(sorted(weights, key=lambda name: -weights[name]))


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file. No tensor is read, and every one lies inside the file.

    Raises:
        ModelError: the file is missing, cut, split, or no GGUF file that is read here.
    """
    if _SPLIT.search(path.name):
        raise ModelError(
            f"{path} is a part of a split GGUF file, which is not read",
            "put the parts together "
            "with llama.cpp's `llama-gguf-split --merge` and give the whole file",
        )
    try:
        with open_regular(path) as file:
            data = file.read(MAX_HEADER_BYTES)
            size = file.seek(0, 2)
    except OSError as error:
        raise ModelError(
            f"cannot read {path}: {reason_of(error)}", "name the model's place with --model"
        ) from error
    try:
        return _parse_header(path, data, size)
    except _FaultError as fault:
        raise ModelError(f"{path}: {fault}: download or convert it again") from fault


class _FaultError(Exception):
    """What is wrong with a header."""


class _Bytes:
    """Reads values one after the other, and nothing behind the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self.place, self._values = data, 0, 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.place:
            is_complete = len(self._data) < MAX_HEADER_BYTES
            cause = "the file is cut, or" if is_complete else f"of over {MAX_HEADER_BYTES} bytes:"
            raise _FaultError(f"its header is wrong, {cause} {count} bytes at {self.place}")
        self.place += count
        return self._data[self.place - count : self.place]

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def text(self) -> str:
        try:
            return self.take(self.number("Q")).decode()
        except UnicodeDecodeError as error:
            raise _FaultError(f"a text before byte {self.place} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            kind, count = self.number("I"), self.number("Q")
            self._values += count
            if self._values > _MAX_VALUES:
                raise _FaultError(f"its arrays have over {_MAX_VALUES} values")
            return self._array(kind, count)
        return self._array(kind, 1)[0]

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == _TEXT:
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise _FaultError(f"a value before byte {self.place} has the type {kind}")
        layout = f"<{count}{_SCALARS[kind]}"
        values = list(struct.unpack(layout, self.take(struct.calcsize(layout))))
        if kind == _BOOL:
            return list(map(bool, values))
        return list(map(_decimal, values)) if kind == _FLOAT32 else values


def _decimal(value: float) -> float:
    """The shortest decimal that is the same number in float32, as it stood in config.json: 1e-05,
    not 9.999999747378752e-06."""
    if not math.isfinite(value):
        return value
    for digits in range(6, 10):
        decimal = float(f"{value:.{digits}g}")
        if abs(decimal) <= 3.4e38 and struct.unpack("<f", struct.pack("<f", decimal))[0] == value:
            return decimal
    return value


def _parse_header(path: Path, data: bytes, size: int) -> Header:
    rest = _Bytes(data)
    if rest.take(4) != b"GGUF":
        raise _FaultError("it is no GGUF file")
    version = rest.number("I")
    if version not in (2, 3):
        raise _FaultError(f"it is of GGUF's version {version}; 2 and 3, little-endian, are read")
    tensors, keys = rest.number("Q"), rest.number("Q")
    if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
        raise _FaultError(
            f"it has {tensors} tensors and {keys} keys, at most {_MAX_TENSORS} and {_MAX_KEYS} "
            "are read"
        )
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = rest.text()
        if key in metadata:
            raise _FaultError(f"the key {key[:_SHOWN]!r} is there twice")
        metadata[key] = rest.value(rest.number("I"))
    tensor_infos = [_tensor(rest) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    valid = isinstance(alignment, int) and 0 < alignment <= _MAX_ALIGNMENT
    if not valid or alignment & (alignment - 1):
        raise _FaultError(f"general.alignment is {str(alignment)[:_SHOWN]}, no power of two")
    begin = -(-rest.place // alignment) * alignment
    stored_tensors = [tensor._replace(offset=begin + tensor.offset) for tensor in tensor_infos]
    _check_places(stored_tensors, begin, alignment, size)
    return Header(path, metadata, {tensor.name: tensor for tensor in stored_tensors})


def _tensor(rest: _Bytes) -> StoredTensor:
    name, dimensions = rest.text(), rest.number("I")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise _FaultError(f"the tensor {name[:_SHOWN]!r} has {dimensions} dimensions")
    shape = tuple(rest.number("Q") for _ in range(dimensions))[::-1]
    number, offset = rest.number("I"), rest.number("Q")
    if number not in ENCODINGS:
        known_types = ", ".join(encoding.name for encoding in ENCODINGS.values())
        raise _FaultError(
            f"the tensor {name[:_SHOWN]!r} has the unknown type {number}; known are {known_types}"
        )
    if not all(shape) or shape[-1] % ENCODINGS[number].weights:
        raise _FaultError(
            f"the tensor {name[:_SHOWN]!r} has rows of {shape[-1]} weights, which are no blocks of "
            f"{ENCODINGS[number].weights}"
        )
    return StoredTensor(name, shape, number, offset)


def _check_places(tensors: Sequence[StoredTensor], begin: int, alignment: int, size: int) -> None:
    """Refuse tensors outside the file, and those that share bytes: a small file could have models
    of any size."""
    names, end = set(), begin
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        name = repr(tensor.name[:_SHOWN])
        if tensor.name in names:
            raise _FaultError(f"the tensor {name} is there twice")
        names.add(tensor.name)
        if tensor.offset % alignment or tensor.offset < end:
            raise _FaultError(f"the tensor {name} begins inside another, or between two places")
        end = tensor.offset + tensor.size
        if end > size:
            raise _FaultError(
                f"the tensor {name} ends at byte {end}, the file at {size}: it is cut"
            )
