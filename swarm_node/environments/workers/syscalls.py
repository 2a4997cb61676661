"""The system calls that a scoring worker may make, as a seccomp filter. Pure.

An allow-list: any other call fails with EPERM. The numbers are Linux's on x86-64
(arch/x86/entry/syscalls/syscall_64.tbl) and arm64 (include/uapi/asm-generic/unistd.h). The filter
is classic BPF over `struct seccomp_data` (Documentation/userspace-api/seccomp_filter.rst).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from swarm_node.environments.workers.messages import FROM_OUTSIDE

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_RET|K
_EQUAL = 0x15  # BPF_JMP|JEQ|K
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_EPERM, _ENOSYS = 1, 38
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16

#: Name from `platform.machine()` -> the kernel's AUDIT_ARCH number and the column of the tables.
ARCHITECTURES: Mapping[str, tuple[int, int]] = {
    "x86_64": (0xC000003E, 0),
    "aarch64": (0xC00000B7, 1),
}

#: Allowed whatever the arguments: (x86-64, arm64), None where a machine has no such call.
_PLAIN: Mapping[str, tuple[int | None, int | None]] = {
    "access": (21, None),
    "alarm": (37, None),
    "brk": (12, 214),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "close": (3, 57),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_wait": (232, None),
    "eventfd2": (290, 19),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getitimer": (36, 102),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "lseek": (8, 62),
    "lstat": (6, None),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "munmap": (11, 215),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "poll": (7, None),
    "ppoll": (271, 73),
    "pread64": (17, 67),
    "pselect6": (270, 72),
    "read": (0, 63),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124),
    "select": (23, None),
    "set_robust_list": (273, 99),
    "setitimer": (38, 103),
    "sigaltstack": (131, 132),
    "stat": (4, None),
    "statx": (332, 291),
    "sysinfo": (99, 179),
    "time": (201, None),
    "times": (100, 153),
    "uname": (63, 160),
    "write": (1, 64),
    "writev": (20, 66),
}
#: On ENOSYS glibc falls back to another call; on EPERM it would fail.
_NOT_THERE: Mapping[str, tuple[int, int]] = {"clone3": (435, 435)}

_O_TMPFILE = 0o20000000
_WRITES = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _O_TMPFILE
_FCNTLS = (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL)
#: Linux's number: `termios` has no such name elsewhere, and this module is imported everywhere.
_TCGETS = 0x5401
_IOCTLS = (_TCGETS, termios.FIONREAD, termios.FIONBIO, termios.FIOCLEX, termios.FIONCLEX)
#: MADV_NORMAL to DONTNEED, FREE, HUGEPAGE and NOHUGEPAGE, which allocators use.
_ADVICE = (0, 1, 2, 3, 4, 8, 14, 15)
#: Any other flag is refused; out-of-band bytes (MSG_OOB) reach seldom used code of the kernel.
_MESSAGE_FLAGS = 0xFFFFFFFF & ~(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_SOCKET_TYPE = 0xF  # without SOCK_CLOEXEC and SOCK_NONBLOCK


@dataclass(frozen=True, slots=True)
class _Argument:
    """The call's argument number `index` must, under `mask`, be one of `values`."""

    index: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    #: A pointer or a 64-bit number, whose upper half must be 0.
    is_64bit: bool = False


#: Allowed with these arguments only. F_SETOWN, or sending to a named socket, would reach other
#: processes; ioctl on an open terminal can type commands.
_GUARDED: Mapping[str, tuple[tuple[int | None, int | None], tuple[_Argument, ...]]] = {
    "open": ((2, None), (_Argument(1, (0,), _WRITES),)),
    "openat": ((257, 56), (_Argument(2, (0,), _WRITES),)),
    "fcntl": ((72, 25), (_Argument(1, (*_FCNTLS, fcntl.F_SETFL)),)),
    "ioctl": ((16, 29), (_Argument(1, _IOCTLS),)),
    "madvise": ((28, 233), (_Argument(2, _ADVICE),)),
    "recvfrom": ((45, 207), (_Argument(3, (0,), _MESSAGE_FLAGS),)),
    "sendto": ((44, 206), (_Argument(4, (0,), is_64bit=True), _Argument(3, (0,), _MESSAGE_FLAGS))),
    # An event loop wakes itself through such a pair; streams of a pair reach nobody else.
    "socketpair": (
        (53, 199),
        (
            _Argument(0, (socket.AF_UNIX,)),
            _Argument(1, (socket.SOCK_STREAM,), _SOCKET_TYPE),
        ),
    ),
}
#: abort() sends one.
_SIGNALS = tuple(sorted({0, *signal.valid_signals()} - FROM_OUTSIDE))
#: For this process only. Limits may be read, not set.
_ITSELF: Mapping[str, tuple[tuple[int, int], tuple[_Argument, ...]]] = {
    "kill": ((62, 129), (_Argument(1, _SIGNALS),)),
    "tgkill": ((234, 131), (_Argument(2, _SIGNALS),)),
    "prlimit64": ((302, 261), (_Argument(2, (0,), is_64bit=True),)),
}


def scoring_filter(machine: str, pid: int) -> bytes | None:
    """The filter for process `pid`, as an array of `struct sock_filter`; None for a `machine` whose
    numbers are not known here."""
    if machine not in ARCHITECTURES:
        return None
    architecture, column = ARCHITECTURES[machine]
    rules = [
        *_GUARDED.values(),
        *(
            (numbers, (_Argument(0, (0, pid) if name == "prlimit64" else (pid,)), *extra_args))
            for name, (numbers, extra_args) in _ITSELF.items()
        ),
    ]
    program = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),  # 32-bit calls have other numbers
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    for syscall in _PLAIN.values():
        program += _on(syscall[column], [(_RETURN, 0, 0, _ALLOW)])
    for absent_syscall in _NOT_THERE.values():
        program += _on(absent_syscall[column], [(_RETURN, 0, 0, _ERRNO | _ENOSYS)])
    for numbers, arguments in rules:
        program += _on(numbers[column], list(_argument_filter(arguments)))
    program.append((_RETURN, 0, 0, _ERRNO | _EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


_Instruction = tuple[int, int, int, int]


def _on(number: int | None, body: list[_Instruction]) -> list[_Instruction]:
    """Run `body`, which ends the program, for the call of this number; skip it for others."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _argument_filter(arguments: tuple[_Argument, ...]) -> Iterator[_Instruction]:
    """Allow the call if every argument passes, else refuse it."""
    refuse = (_RETURN, 0, 0, _ERRNO | _EPERM)
    for argument in arguments:
        at = _AT_ARGUMENTS + 8 * argument.index  # little endian: the lower half comes first
        if argument.is_64bit:
            yield from ((_LOAD, 0, 0, at + 4), (_EQUAL, 1, 0, 0), refuse)
        yield from ((_LOAD, 0, 0, at), (_AND, 0, 0, argument.mask))
        for left, value in zip(range(len(argument.values), 0, -1), argument.values, strict=True):
            yield (_EQUAL, left, 0, value)  # jumps over the other values and the refusal
        yield refuse
    yield (_RETURN, 0, 0, _ALLOW)
