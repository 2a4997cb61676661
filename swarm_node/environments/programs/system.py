"""The operating system that a program sees: WASI preview 1 with one file, no clock and no chance.

A program is hostile. Every call checks the memory that it names, and costs a part of a fixed
allowance, because the instructions that the host runs for it are not counted. The numbers are those
of the WASI preview 1 witx files.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol

MAX_OUTPUT_BYTES: Final = 64 << 10
#: System calls of one run, where 4 KiB that are read or written count as one more, and so does an
#: event that is waited for. A run that only starts and imports a few modules needs some hundred.
MAX_CALLS: Final = 8_000
_BYTES_A_CALL: Final = 4 << 10
_MAX_FILES, _MAX_VECTORS, _MAX_EVENTS = 64, 1024, 64

_OK, _BADF, _FAULT, _INVAL, _MFILE, _NOENT = 0, 8, 21, 28, 33, 44
_NOSYS, _ROFS, _SPIPE = 52, 69, 70
_CHARACTERS, _DIRECTORY, _FILE = 2, 3, 4
_CREATE_OR_TRUNCATE, _ALL_RIGHTS = 0b1001, (1 << 30) - 1

STDIN, STDOUT, STDERR, LIBRARY = range(4)
#: The one directory and the one file in it: Python's library.
LIBRARY_AT, LIBRARY_NAME = b"/usr/local/lib", b"python315.zip"
_REALTIME: Final = 0
#: Nanoseconds, whenever a program asks: 1 January 2026, and a machine that runs for a second.
_WALL_CLOCK, _OTHER_CLOCKS = 1_767_225_600 * 10**9, 10**9
_VARIABLES = ("PYTHONHASHSEED=0", "PYTHONTZPATH=", "TMPDIR=/tmp")


class Stopped(Exception):  # noqa: N818 - most of these ends are no errors
    """Ends a program in the middle of a system call."""

    def __init__(self, end: Literal["exit", "steps", "output"], code: int = 0) -> None:
        super().__init__(end)
        self.end, self.code = end, code


class Memory(Protocol):
    """The memory of a program. Both raise IndexError for what lies outside."""

    def read(self, at: int, size: int) -> bytes: ...

    def write(self, at: int, data: bytes) -> None: ...


class System:
    """Answers the system calls of one run."""

    def __init__(self, arguments: Sequence[str], stdin: bytes, seed: bytes, library: bytes) -> None:
        self.stdout = bytearray()
        self._arguments = [
            argument.encode("utf-8", "surrogatepass") + b"\0" for argument in arguments
        ]
        self._variables = [variable.encode() + b"\0" for variable in _VARIABLES]
        self._stdin, self._seed, self._library = stdin, seed, library
        self._blocks = 0  # of the generator
        self._left = MAX_CALLS
        #: Positions of the open files. All of them are the library, but for the input.
        self._positions: dict[int, int] = {STDIN: 0}

    def call(self, name: str, memory: Memory, arguments: Sequence[int]) -> int:
        """Answer a call with an error number of WASI.

        Raises:
            Stopped: the program ends here.
        """
        self._charge(0)
        answer = _CALLS.get(name)
        if answer is None:
            return _NOSYS
        try:
            return answer(self, memory, *(argument & _WORDS[name] for argument in arguments))
        except IndexError:
            return _FAULT

    def _charge(self, size: int) -> None:
        self._left -= 1 + size // _BYTES_A_CALL
        if self._left < 0:
            raise Stopped("steps")

    def _args_sizes_get(self, memory: Memory, count: int, size: int) -> int:
        return _put_sizes(memory, self._arguments, count, size)

    def _args_get(self, memory: Memory, pointers: int, texts: int) -> int:
        return _put_texts(memory, self._arguments, pointers, texts)

    def _environ_sizes_get(self, memory: Memory, count: int, size: int) -> int:
        return _put_sizes(memory, self._variables, count, size)

    def _environ_get(self, memory: Memory, pointers: int, texts: int) -> int:
        return _put_texts(memory, self._variables, pointers, texts)

    def _clock_res_get(self, memory: Memory, _clock: int, at: int) -> int:
        memory.write(at, struct.pack("<Q", 1))
        return _OK

    def _clock_time_get(self, memory: Memory, clock: int, _precision: int, at: int) -> int:
        now = _WALL_CLOCK if clock == _REALTIME else _OTHER_CLOCKS
        memory.write(at, struct.pack("<Q", now))
        return _OK

    def _random_get(self, memory: Memory, at: int, size: int) -> int:
        self._charge(32 * size)  # hashing takes longer than copying
        buffer = bytearray()
        while len(buffer) < size:
            buffer += hashlib.sha256(self._seed + self._blocks.to_bytes(8, "big")).digest()
            self._blocks += 1
        memory.write(at, bytes(buffer[:size]))
        return _OK

    def _poll_oneoff(
        self, memory: Memory, subscriptions: int, events: int, count: int, at: int
    ) -> int:
        """Answer that all has happened: nothing waits, and a sleep takes no time."""
        if not 0 < count <= _MAX_EVENTS:
            return _INVAL
        self._charge(count * _BYTES_A_CALL)
        for index in range(count):
            number, kind = struct.unpack("<QB", memory.read(subscriptions + 48 * index, 9))
            memory.write(events + 32 * index, struct.pack("<QHB5xQQ", number, _OK, kind, 0, 0))
        memory.write(at, struct.pack("<I", count))
        return _OK

    def _sched_yield(self, _memory: Memory) -> int:
        return _OK

    def _proc_exit(self, _memory: Memory, code: int) -> int:
        raise Stopped("exit", code)

    def _fd_prestat_get(self, memory: Memory, file: int, at: int) -> int:
        if file != LIBRARY:
            return _BADF
        memory.write(at, struct.pack("<II", 0, len(LIBRARY_AT)))
        return _OK

    def _fd_prestat_dir_name(self, memory: Memory, file: int, at: int, size: int) -> int:
        if file != LIBRARY:
            return _BADF
        memory.write(at, LIBRARY_AT[:size])
        return _OK

    def _fd_fdstat_get(self, memory: Memory, file: int, at: int) -> int:
        kind = self._kind(file)
        if not kind:
            return _BADF
        memory.write(at, struct.pack("<B7xQQ", kind, _ALL_RIGHTS, _ALL_RIGHTS))
        return _OK

    def _fd_filestat_get(self, memory: Memory, file: int, at: int) -> int:
        kind = self._kind(file)
        return self._put_stat(memory, at, kind) if kind else _BADF

    def _path_filestat_get(
        self, memory: Memory, file: int, _flags: int, path: int, size: int, at: int
    ) -> int:
        if file != LIBRARY:
            return _BADF
        name = self._name(memory, path, size)
        if name in (b"", b"."):
            return self._put_stat(memory, at, _DIRECTORY)
        return self._put_stat(memory, at, _FILE) if name == LIBRARY_NAME else _NOENT

    def _path_open(
        self,
        memory: Memory,
        file: int,
        _lookup: int,
        path: int,
        size: int,
        open_flags: int,
        _rights: int,
        _child_rights: int,
        _flags: int,
        at: int,
    ) -> int:
        if file != LIBRARY:
            return _BADF
        if open_flags & _CREATE_OR_TRUNCATE:
            return _ROFS
        if self._name(memory, path, size) != LIBRARY_NAME:
            return _NOENT
        free = (number for number in range(LIBRARY + 1, _MAX_FILES))
        descriptor = next((number for number in free if number not in self._positions), None)
        if descriptor is None:
            return _MFILE
        memory.write(at, struct.pack("<I", descriptor))
        self._positions[descriptor] = 0
        return _OK

    def _fd_close(self, _memory: Memory, file: int) -> int:
        return _BADF if self._positions.pop(file, None) is None else _OK

    def _fd_seek(self, memory: Memory, file: int, offset: int, whence: int, at: int) -> int:
        if file == STDIN or file not in self._positions:
            return _SPIPE
        base = {0: 0, 1: self._positions[file], 2: len(self._library)}.get(whence)
        signed = offset - (1 << 64) if offset >> 63 else offset
        if base is None or base + signed < 0:
            return _INVAL
        memory.write(at, struct.pack("<Q", (base + signed) & _LONG))
        self._positions[file] = base + signed
        return _OK

    def _fd_tell(self, memory: Memory, file: int, at: int) -> int:
        return self._fd_seek(memory, file, 0, 1, at)

    def _fd_read(self, memory: Memory, file: int, vectors: int, count: int, at: int) -> int:
        if file not in self._positions:
            return _BADF
        position = self._positions[file]
        total = self._copy_from_file(memory, file, position, _vectors(memory, vectors, count))
        memory.write(at, struct.pack("<I", total))
        self._positions[file] = position + total
        return _OK

    def _fd_pread(
        self, memory: Memory, file: int, vectors: int, count: int, offset: int, at: int
    ) -> int:
        if file == STDIN or file not in self._positions:
            return _SPIPE
        total = self._copy_from_file(memory, file, offset, _vectors(memory, vectors, count))
        memory.write(at, struct.pack("<I", total))
        return _OK

    def _fd_write(self, memory: Memory, file: int, vectors: int, count: int, at: int) -> int:
        if file not in (STDOUT, STDERR):
            return _BADF
        total = 0
        for start, size in _vectors(memory, vectors, count):
            self._charge(size)
            if file == STDOUT:
                if len(self.stdout) + size > MAX_OUTPUT_BYTES:
                    raise Stopped("output")
                self.stdout += memory.read(start, size)
            total += size
        memory.write(at, struct.pack("<I", total & _WORD))
        return _OK

    def _fd_advise(self, _memory: Memory, *_arguments: int) -> int:
        return _OK

    def _copy_from_file(
        self, memory: Memory, file: int, position: int, vectors: Iterator[tuple[int, int]]
    ) -> int:
        """Copy from a file to where a program wants it. Returns the number of bytes."""
        source, total = self._stdin if file == STDIN else self._library, 0
        for start, size in vectors:
            part = source[position + total : position + total + size]
            self._charge(len(part))
            memory.write(start, part)
            total += len(part)
            if len(part) < size:
                break
        return total

    def _name(self, memory: Memory, path: int, size: int) -> bytes:
        self._charge(size)
        return memory.read(path, size)

    def _kind(self, file: int) -> int:
        if file in (STDIN, STDOUT, STDERR):
            return _CHARACTERS
        return _DIRECTORY if file == LIBRARY else _FILE if file in self._positions else 0

    def _put_stat(self, memory: Memory, at: int, kind: int) -> int:
        size = len(self._library) if kind == _FILE else 0
        memory.write(at, struct.pack("<QQB7xQQQQQ", 0, kind, kind, 1, size, 0, 0, 0))
        return _OK


def _put_sizes(memory: Memory, texts: Sequence[bytes], count: int, size: int) -> int:
    memory.write(count, struct.pack("<I", len(texts)))
    memory.write(size, struct.pack("<I", sum(map(len, texts))))
    return _OK


def _put_texts(memory: Memory, texts: Sequence[bytes], pointers: int, at: int) -> int:
    for index, text in enumerate(texts):
        memory.write(pointers + 4 * index, struct.pack("<I", at & _WORD))
        memory.write(at, text)
        at += len(text)
    return _OK


def _vectors(memory: Memory, at: int, count: int) -> Iterator[tuple[int, int]]:
    """The places and sizes of a scattered read or write. Those beyond the limit are left out. The
    program sees that by the number of bytes."""
    return struct.iter_unpack("<II", memory.read(at, 8 * min(count, _MAX_VECTORS)))


_CALLS: Final[Mapping[str, Callable[..., int]]] = {
    name[1:]: value
    for name, value in vars(System).items()
    if name.startswith(("_args", "_environ", "_clock", "_fd", "_path", "_poll", "_proc", "_random"))
    or name == "_sched_yield"
}
_WORD, _LONG = (1 << 32) - 1, (1 << 64) - 1
#: Arguments arrive signed. Calls with 64-bit arguments keep all bits of each.
_WORDS: Final[Mapping[str, int]] = {
    name: _LONG if name in ("fd_seek", "fd_pread", "path_open", "clock_time_get") else _WORD
    for name in _CALLS
}
