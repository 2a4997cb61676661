"""What is read of a GGUF file's header, and what is refused before it costs anything."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from builders import examples
from gguf_files import tokens, write_gguf
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.errors import ModelError
from swarm_node.policy.models.gguf.header import ENCODINGS, read_header

#: More than a start of Python with this module needs, and less than any count below asks for.
_MEMORY = 1 << 30
_SMALL = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"a"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def one_tensor(*dimensions: int, kind: int = 0, offset: int = 0, count: int = 1) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", 3, count, 0)
    body = text(b"x") + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return head + (body + struct.pack("<IQ", kind, offset)) * count + bytes(256)


HOSTILE = {
    "empty": b"",
    "another format": b"PK\3\4" + bytes(64),
    "a version of the future": struct.pack("<4sIQQ", b"GGUF", 9, 0, 0),
    "big-endian": struct.pack(">4sIQQ", b"GGUF", 3, 0, 0),
    "2^62 keys": struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 62),
    "2^62 tensors": struct.pack("<4sIQQ", b"GGUF", 3, 1 << 62, 0),
    "as many keys as are read, and none there": struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 12),
    "a key of 2^63 bytes": struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 63),
    "a text of 2^40 bytes": _SMALL + struct.pack("<IQ", 8, 1 << 40),
    "no UTF-8": _SMALL + struct.pack("<I", 8) + text(b"\xff\xff"),
    "2^62 numbers": _SMALL + struct.pack("<IIQ", 9, 4, 1 << 62),
    "2^20 numbers that are not there": _SMALL + struct.pack("<IIQ", 9, 10, 1 << 20),
    "2^62 texts": _SMALL + struct.pack("<IIQ", 9, 8, 1 << 62),
    "2^20 texts that are not there": _SMALL + struct.pack("<IIQ", 9, 8, 1 << 20),
    "a list of lists": _SMALL + struct.pack("<IIQ", 9, 9, 1) * 1000,
    "a value of an unknown type": _SMALL + struct.pack("<IQ", 77, 0),
    "2^31 dimensions": struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + text(b"x") + b"\xff" * 64,
    "no dimension": one_tensor(),
    "an empty tensor": one_tensor(0, 4),
    "2^120 weights": one_tensor(1 << 60, 1 << 60),
    "a wrapped product": one_tensor(1 << 32, 1 << 32),
    "an unknown quantisation": one_tensor(32, 4, kind=99),
    "a type that was removed": one_tensor(32, 4, kind=4),
    "integers": one_tensor(4, kind=24),
    "rows of half a block": one_tensor(48, 2, kind=8),
    "behind the end": one_tensor(4, offset=1 << 40),
    "2^64 - 32": one_tensor(4, offset=(1 << 64) - 32),
    "between two places": one_tensor(4, offset=3),
    "a tensor twice": one_tensor(4, count=2),
    "a key twice": struct.pack("<4sIQQ", b"GGUF", 3, 0, 2)
    + (text(b"a") + struct.pack("<IB", 7, 1)) * 2,
}


def test_a_hostile_header_is_refused_by_the_name_of_the_file_in_little_memory(
    tmp_path: Path,
) -> None:
    for name, data in HOSTILE.items():
        (tmp_path / f"{name}.gguf").write_bytes(data)
    program = (
        "import sys, pathlib\n"
        "from swarm_node.policy.models.gguf.header import read_header\n"
        "from swarm_node.errors import ModelError\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        read_header(path)\n"
        "    except ModelError as error:\n        print(path.name in str(error), path.stem)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert {*done.stdout.splitlines()} == {f"True {name}" for name in HOSTILE}


@pytest.mark.parametrize("alignment", [0, 3, 1 << 20])
def test_an_alignment_is_a_small_power_of_two(tmp_path: Path, alignment: int) -> None:
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text(b"general.alignment")
    (tmp_path / "m.gguf").write_bytes(data + struct.pack("<II", 4, alignment))
    with pytest.raises(ModelError, match=r"general\.alignment"):
        read_header(tmp_path / "m.gguf")


def test_other_things_than_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("pipe.gguf", "missing.gguf"):
        with pytest.raises(ModelError, match=name):
            read_header(tmp_path / name)


def test_a_part_of_a_split_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(ModelError, match="--merge"):
        read_header(path)


def test_what_is_read_is_what_the_package_gguf_reads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", "Q4_0")
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert header.metadata["tokenizer.ggml.tokens"] == tokens()
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5
    fields = {name for name in reader.fields if not name.startswith("GGUF.")}
    assert header.metadata.keys() == fields
    for tensor in reader.tensors:
        stored = header.tensors[tensor.name]
        assert stored.shape == tuple(reversed(tensor.shape.tolist()))
        assert (stored.offset, stored.size) == (tensor.data_offset, tensor.n_bytes)
        assert stored.encoding.name == tensor.tensor_type.name
    assert header.encodings == ("Q4_0",)


def test_the_encodings_are_those_that_the_package_can_dequantise() -> None:
    for number, encoding in ENCODINGS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (encoding.name, encoding[1:])
        block = np.zeros((2, encoding.size), np.uint8)
        assert gguf.dequantize(block, kind).shape == (2, encoding.weights)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


def refused_or_read(path: Path, data: bytes, use: Callable[[Path], object]) -> bool:
    path.write_bytes(data)
    try:
        use(path)
    except ModelError:
        return True
    return False


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path, whole: bytes) -> None:
    for length in range(0, len(whole), 997):
        assert refused_or_read(tmp_path / "m.gguf", whole[:length], read_header), length


@examples(400)
@given(st.data())
def test_a_flipped_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, 12_000))
    piece = data.draw(st.binary(min_size=1, max_size=8))
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    refused_or_read(path, whole[:place] + piece + whole[place + len(piece) :], read_header)
