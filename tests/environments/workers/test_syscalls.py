"""The filter of system calls: its numbers are the kernel's, and it decides as its tables say."""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path

import pytest

from swarm_node.environments.workers.syscalls import (
    _GUARDED,
    _ITSELF,
    _NOT_THERE,
    _PLAIN,
    ARCHITECTURES,
    scoring_filter,
)

ALLOWED, EPERM = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM


def decided(machine: str, number: int, *arguments: int) -> int:
    """The action of the filter for a call, as the kernel's machine of classic BPF finds it."""
    architecture, _ = ARCHITECTURES[machine]
    given = [*arguments, *(0,) * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *given)
    program = scoring_filter(machine, 1)
    assert program is not None
    steps, at, accumulator = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        (code, yes, no, value), at = steps[at], at + 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:  # BPF_ALU | BPF_AND | BPF_K
                accumulator &= value
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                at += yes if accumulator == value else no
            case _:
                assert code == 0x06  # BPF_RET | BPF_K
                return int(value)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_memory_takes_the_advice_of_allocators_and_no_other(machine: str) -> None:
    (numbers, _), column = _GUARDED["madvise"], ARCHITECTURES[machine][1]
    number = numbers[column]
    assert number is not None
    names = "NORMAL", "RANDOM", "SEQUENTIAL", "WILLNEED", "DONTNEED", "FREE", "HUGEPAGE"
    advice = {getattr(mmap, f"MADV_{name}") for name in (*names, "NOHUGEPAGE")}
    for value in range(128):
        expected = ALLOWED if value in advice else EPERM
        assert decided(machine, number, 0, 4096, value) == expected, value


@pytest.mark.parametrize(
    ("header", "column", "other_names"),
    [
        ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0, {}),
        ("/usr/include/asm-generic/unistd.h", 1, {"newfstatat": "fstatat"}),
    ],
)
def test_the_numbers_are_the_kernels(header: str, column: int, other_names: dict[str, str]) -> None:
    if not Path(header).exists():
        pytest.skip("no kernel headers here")
    text = Path(header).read_text()
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    numbers = {name: int(number) for name, number in found}
    guarded = {name: both for name, (both, _) in {**_GUARDED, **_ITSELF}.items()}
    for name, both in {**_PLAIN, **_NOT_THERE, **guarded}.items():
        assert numbers.get(other_names.get(name, name)) == both[column], name


def test_the_machines_are_named_as_the_kernels_audit_names_them() -> None:
    header = Path("/usr/include/linux/elf-em.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    found = dict(re.findall(r"#define EM_(\w+)\s+(\d+)", header.read_text()))
    wide_little_endian = 0x80000000 | 0x40000000  # __AUDIT_ARCH_64BIT | __AUDIT_ARCH_LE
    expected = {name: int(found[name.upper()]) | wide_little_endian for name in ARCHITECTURES}
    assert {name: number for name, (number, _) in ARCHITECTURES.items()} == expected


def test_a_filter_is_made_for_known_machines_only() -> None:
    assert scoring_filter("riscv64", 1) is None
    programs = [scoring_filter(machine, 1) for machine in ("x86_64", "aarch64")]
    assert all(
        program and len(program) % 8 == 0 and len(program) < 8 * 4096 for program in programs
    )
