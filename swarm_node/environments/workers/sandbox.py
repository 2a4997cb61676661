"""Drops, irrevocably, every right that a process does not need to score a text.

The kernel enforces it: Landlock for files, TCP and signals, a seccomp filter for system calls,
resource limits for memory and time. It needs no root and no helper, and works inside a container.
The two PyPI packages that bind both are an alpha and a 13 MB supervisor for kernels from 6.12 on,
so this module makes the five system calls through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from swarm_node.environments.workers.messages import Sandbox
from swarm_node.environments.workers.syscalls import scoring_filter

#: Memory that a scoring worker may allocate in addition to what it had when it was confined.
MORE_MEMORY_BYTES = 1 << 30
#: A scoring worker is killed after this processor time: code that a text left in it cannot run for
#: ever.
CPU_SECONDS = 3600
_MAX_FILES = 64
#: The score of the kernel's out-of-memory killer: it kills scoring workers before node and trainer.
_KILLED_FIRST = "1000"

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
# Landlock (Documentation/userspace-api/landlock.rst); the numbers are the same on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIRECTORY = 1 << 2, 1 << 3
#: Landlock ABI -> number of file rights in it. A kernel refuses rights that it does not know.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_ALL_FILE_RIGHTS = 16
_TCP_RIGHTS_FROM, _SCOPES_FROM = 4, 6
_CAPABILITY_VERSION = 0x20080522
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")


def confine(readable_paths: Iterable[Path]) -> Sandbox:
    """Confine this process, which must have a single thread. From then on it reads files below
    `readable_paths` only, writes none, and cannot start, signal or contact another process.

    A part that this kernel does not support is left out, and the result says so.
    """
    paths = list(readable_paths)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_KILLED_FIRST)
    is_cramped = _limit_resources()
    if sys.platform != "linux":
        return Sandbox(files=False, system_calls=False, is_cramped=is_cramped)
    libc = ctypes.CDLL(None)
    libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    libc.syscall.restype = ctypes.c_long
    _drop_capabilities(libc)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return Sandbox(files=False, system_calls=False, is_cramped=is_cramped)
    files = _restrict_files(libc, paths)
    return Sandbox(files=files, system_calls=_filter_calls(libc), is_cramped=is_cramped)


def code_paths() -> Iterator[Path]:
    """Paths of code that may still be imported: Python's library, installed packages, shared
    libraries, and the packages and modules already loaded from elsewhere. The directories that
    contain these modules are not among them, because they may hold other files."""
    locations = {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")),
        *(_LIBRARIES if sys.platform == "linux" else ()),
        *_SYSTEM_FILES,
    }
    roots = {Path(entry).resolve() for entry in locations}
    module_paths = {path for module in list(sys.modules.values()) for path in _lies_at(module)}
    other_paths = {
        path for path in module_paths if not any(path.is_relative_to(root) for root in roots)
    }
    return (path for path in sorted(roots | other_paths) if path.exists())


def shares_memory() -> bool:
    """Check that this process has memory that other processes see and a scoring worker could write:
    a mapping of a file that was opened for writing, or shared memory."""
    with contextlib.suppress(OSError):
        flags = re.findall(r"^VmFlags:(.*)$", Path("/proc/self/smaps").read_text(), re.MULTILINE)
        return any({"sh", "mw"} <= set(line.split()) for line in flags)
    return False


def _lies_at(module: object) -> Iterator[Path]:
    """A package's directories, or a single module's file."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if file is None or name == "__main__":
        return
    if "." not in name:
        package = getattr(module, "__path__", None)
        yield from (Path(entry).resolve() for entry in (package or [file]))
        return
    with contextlib.suppress(TypeError):  # a namespace package has no file of its own
        if getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) is None:
            yield Path(file).resolve()


def _limit_resources() -> bool:
    """Set all limits. True if a lower one was inherited."""
    limits = {"CPU": CPU_SECONDS, "NOFILE": _MAX_FILES}
    with contextlib.suppress(OSError):
        size, *_, data, _ = map(int, Path("/proc/self/statm").read_text().split())
        page = resource.getpagesize()
        limits["AS"] = size * page + MORE_MEMORY_BYTES
        limits["DATA"] = data * page + MORE_MEMORY_BYTES
    set_here = [_limit(name, limit) for name, limit in limits.items()]
    for resource_name in ("NPROC", "CORE", "FSIZE", "MEMLOCK", "MSGQUEUE", "SIGPENDING"):
        _limit(resource_name, 0)
    return not all(set_here)


def _limit(name: str, limit: int) -> bool:
    """Set one limit. False if a lower one is in force, which no process may raise."""
    with contextlib.suppress(AttributeError, OSError):  # not known here
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
        except ValueError:
            return False
    return True


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Take the capabilities of root from the scoring worker. A process without capabilities is left
    as it is."""
    libc.capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _restrict_files(libc: ctypes.CDLL, readable_paths: list[Path]) -> bool:
    """Let this process read below `readable_paths` and do nothing else (Landlock). True if it
    is in force."""
    call = libc.syscall
    abi = call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if abi < 1:
        return False
    handled = [(1 << _FILE_RIGHTS.get(abi, _ALL_FILE_RIGHTS)) - 1]
    if abi >= _TCP_RIGHTS_FROM:
        handled.append(0b11)  # bind, connect
    if abi >= _SCOPES_FROM:
        handled.append(0b11)  # abstract Unix sockets, signals
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    ruleset = call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for path in readable_paths:
            _allow_reading(libc, ruleset, path)
        return bool(call(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow_reading(libc: ctypes.CDLL, ruleset: int, path: Path) -> None:
    if sys.platform != "linux":  # no kernel of another kind has Landlock
        return
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # the file no longer exists
    try:
        rights = _READ_FILE | (_READ_DIRECTORY if path.is_dir() else 0)
        rule = struct.pack("=Qi", rights, place)
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def _filter_calls(libc: ctypes.CDLL) -> bool:
    """Refuse all system calls but those that a scoring worker may make (seccomp). True if it is in
    force."""
    program = scoring_filter(platform.machine(), os.getpid())
    if program is None:
        return False
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(buffer))
    )
    address = ctypes.addressof(header)
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, 0, 0) == 0)
