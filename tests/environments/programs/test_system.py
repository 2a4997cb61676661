"""System calls of a program, without an interpreter: what they give, refuse and cost."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.environments.programs import system
from swarm_node.environments.programs.system import (
    LIBRARY,
    LIBRARY_NAME,
    MAX_CALLS,
    MAX_OUTPUT_BYTES,
    STDIN,
    STDOUT,
    Stopped,
    System,
)

OK, BADF, FAULT, INVAL, MFILE, NOENT, NOSYS, ROFS, SPIPE = 0, 8, 21, 28, 33, 44, 52, 69, 70
NAME_AT, VECTORS_AT, RESULT_AT, DATA_AT = 0, 100, 200, 1000


@dataclass
class Bytes:
    """A memory of 256 KiB."""

    content: bytearray = field(default_factory=lambda: bytearray(256 << 10))

    def read(self, at: int, size: int) -> bytes:
        if at + size > len(self.content):
            raise IndexError
        return bytes(self.content[at : at + size])

    def write(self, at: int, data: bytes) -> None:
        if at + len(data) > len(self.content):
            raise IndexError
        self.content[at : at + len(data)] = data

    def word(self, at: int) -> int:
        return int.from_bytes(self.read(at, 4), "little")


def system_of(stdin: bytes = b"", seed: bytes = b"seed", library: bytes = b"library") -> System:
    return System(["python", "-c", "print(1)"], stdin, seed, library)


def opened(one: System, memory: Bytes) -> int:
    memory.write(NAME_AT, LIBRARY_NAME)
    arguments = (LIBRARY, 0, NAME_AT, len(LIBRARY_NAME), 0, 0, 0, 0, RESULT_AT)
    assert one.call("path_open", memory, arguments) == OK
    return memory.word(RESULT_AT)


def read(one: System, memory: Bytes, file: int, size: int) -> bytes:
    memory.write(VECTORS_AT, struct.pack("<II", DATA_AT, size))
    assert one.call("fd_read", memory, (file, VECTORS_AT, 1, RESULT_AT)) == OK
    return memory.read(DATA_AT, memory.word(RESULT_AT))


def write(one: System, memory: Bytes, file: int, data: bytes) -> int:
    memory.write(DATA_AT, data)
    memory.write(VECTORS_AT, struct.pack("<II", DATA_AT, len(data)))
    return one.call("fd_write", memory, (file, VECTORS_AT, 1, RESULT_AT))


def test_input_is_read_once_and_output_is_kept() -> None:
    one, memory = system_of(stdin=b"1 2 3"), Bytes()
    assert [read(one, memory, STDIN, 3), read(one, memory, STDIN, 9)] == [b"1 2", b" 3"]
    assert read(one, memory, STDIN, 9) == b""
    assert [write(one, memory, STDOUT, b"4"), write(one, memory, 2, b"lost")] == [OK, OK]
    assert (bytes(one.stdout), memory.word(RESULT_AT)) == (b"4", 4)
    assert write(one, memory, STDIN, b"4") == BADF


def test_the_only_file_is_the_library_and_nothing_can_be_written() -> None:
    one, memory = system_of(), Bytes()
    file = opened(one, memory)
    assert (read(one, memory, file, 3), read(one, memory, file, 9)) == (b"lib", b"rary")
    assert one.call("fd_seek", memory, (file, -2, 2, RESULT_AT)) == OK
    assert read(one, memory, file, 9) == b"ry"
    assert one.call("fd_seek", memory, (file, -1, 0, RESULT_AT)) == INVAL
    assert write(one, memory, file, b"x") == BADF
    assert (one.call("fd_close", memory, (file,)), one.call("fd_close", memory, (file,))) == (0, 8)
    for name, how, expected in ((b"../etc/passwd", 0, NOENT), (LIBRARY_NAME, 1, ROFS)):
        memory.write(NAME_AT, name)
        arguments = (LIBRARY, 0, NAME_AT, len(name), how, 0, 0, 0, RESULT_AT)
        assert one.call("path_open", memory, arguments) == expected


def test_a_program_is_told_where_it_is_in_a_file() -> None:
    one, memory = system_of(), Bytes()
    file = opened(one, memory)
    for offset, whence, position in ((-2, 2, 5), (1, 0, 1), (3, 1, 4), (0, 1, 4)):
        memory.write(RESULT_AT, bytes(8))
        assert one.call("fd_seek", memory, (file, offset, whence, RESULT_AT)) == OK
        assert struct.unpack("<Q", memory.read(RESULT_AT, 8)) == (position,)
    assert one.call("fd_seek", memory, (STDIN, 0, 1, RESULT_AT)) == SPIPE


def test_a_program_is_told_what_each_file_is() -> None:
    characters, directory, regular = 2, 3, 4  # WASI's filetype
    one, memory = system_of(), Bytes()
    file = opened(one, memory)
    for number, kind in ((STDIN, characters), (LIBRARY, directory), (file, regular)):
        assert one.call("fd_filestat_get", memory, (number, RESULT_AT)) == OK
        assert memory.read(RESULT_AT + 16, 1)[0] == kind
        assert one.call("fd_fdstat_get", memory, (number, RESULT_AT)) == OK
        assert memory.read(RESULT_AT, 1)[0] == kind
    for name, kind in ((b"", directory), (b".", directory), (LIBRARY_NAME, regular)):
        memory.write(NAME_AT, name)
        arguments = (LIBRARY, 0, NAME_AT, len(name), RESULT_AT)
        assert one.call("path_filestat_get", memory, arguments) == OK
        assert memory.read(RESULT_AT + 16, 1)[0] == kind
    memory.write(NAME_AT, b"x")
    assert one.call("path_filestat_get", memory, (LIBRARY, 0, NAME_AT, 1, RESULT_AT)) == NOENT
    assert one.call("fd_filestat_get", memory, (file + 1, RESULT_AT)) == BADF


@pytest.mark.parametrize(
    "name",
    ["sock_accept", "path_unlink_file", "fd_pwrite", "call", "__init__", "stdout", "_charge"],
)
def test_what_is_no_call_of_a_program_is_refused(name: str) -> None:
    assert system_of().call(name, Bytes(), (0, 0, 0)) == NOSYS


def test_files_are_few() -> None:
    one, memory = system_of(), Bytes()
    files = [opened(one, memory) for _ in range(60)]
    assert (files[0], files[-1]) == (4, 63)
    arguments = (LIBRARY, 0, NAME_AT, len(LIBRARY_NAME), 0, 0, 0, 0, RESULT_AT)
    assert one.call("path_open", memory, arguments) == MFILE


def test_chance_is_of_the_seed_and_the_clock_stands() -> None:
    def drawn(seed: bytes) -> list[bytes]:
        one, memory = system_of(seed=seed), Bytes()
        texts = []
        for size in (5, 40):
            assert one.call("random_get", memory, (DATA_AT, size)) == OK
            texts.append(memory.read(DATA_AT, size))
        for clock in (0, 1):
            assert one.call("clock_time_get", memory, (clock, 1, RESULT_AT)) == OK
            texts.append(memory.read(RESULT_AT, 8))
        return texts

    assert drawn(b"a") == drawn(b"a")
    assert drawn(b"a")[0] != drawn(b"b")[0]
    assert drawn(b"a")[2:] == drawn(b"b")[2:]


def test_a_sleep_takes_no_time() -> None:
    one, memory = system_of(), Bytes()
    memory.write(DATA_AT, struct.pack("<QB", 77, 0))
    assert one.call("poll_oneoff", memory, (DATA_AT, DATA_AT + 96, 1, RESULT_AT)) == OK
    assert struct.unpack("<QHB", memory.read(DATA_AT + 96, 11)) == (77, 0, 0)
    assert one.call("poll_oneoff", memory, (DATA_AT, DATA_AT, 1 << 31, RESULT_AT)) == INVAL


@pytest.mark.parametrize(
    ("spend", "end", "least"),
    [
        (lambda one, memory: one.call("sched_yield", memory, ()), "steps", MAX_CALLS),
        (lambda one, memory: one.call("no such call", memory, ()), "steps", MAX_CALLS),
        (lambda one, memory: write(one, memory, 2, bytes(100_000)), "steps", 300),
        (lambda one, memory: one.call("random_get", memory, (0, 4096)), "steps", 200),
        (lambda one, memory: one.call("poll_oneoff", memory, (0, 4096, 64, 8000)), "steps", 100),
        (lambda one, memory: write(one, memory, STDOUT, bytes(1024)), "output", 64),
    ],
)
def test_every_call_and_every_byte_costs(
    spend: Callable[[System, Bytes], object], end: str, least: int
) -> None:
    one, memory = system_of(), Bytes()
    spent, ended = 0, ""
    while not ended:
        try:
            spend(one, memory)
            spent += 1
        except Stopped as stopped:
            ended = stopped.end
    assert ended == end
    assert least <= spent <= min(MAX_CALLS, 2 * least)
    assert len(one.stdout) <= MAX_OUTPUT_BYTES


ARGUMENT = st.one_of(
    st.integers(-8, 300), st.integers(-(1 << 63), (1 << 63) - 1), st.just((256 << 10) - 1)
)
ARITIES = {
    name: value.__code__.co_argcount - 2
    for name, value in system._CALLS.items()
    if not value.__code__.co_flags & 4  # without *arguments
}


@given(st.lists(st.tuples(st.sampled_from(sorted(ARITIES)), st.lists(ARGUMENT, min_size=9))))
def test_no_arguments_reach_outside(calls: list[tuple[str, list[int]]]) -> None:
    one, memory = system_of(stdin=b"input"), Bytes()
    try:
        for name, arguments in calls:
            assert 0 <= one.call(name, memory, arguments[: ARITIES[name]]) < 77
    except Stopped:
        pass
    assert len(memory.content) == 256 << 10
    assert len(one.stdout) <= MAX_OUTPUT_BYTES
