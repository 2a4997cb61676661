"""What a rehearsal of a GPU machine's calls accepts, and that nothing of a call is left running."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import psutil
import pytest
from builders import ROOT, LoadBenchmark


@pytest.fixture
def rehearsal(load_benchmark: LoadBenchmark) -> ModuleType:
    return load_benchmark("gpu_rehearsal")


def step(verdict: str, why: str = "", figures: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"verdict": verdict, "why": why, "seconds": 3, "figures": list(figures), "tests": None}


def test_each_step_passes_or_says_that_there_is_no_device(rehearsal: ModuleType) -> None:
    steps = {
        "facts": step("PASS", "on the CPU"),
        "nf4": step("NOT RUN", "because there is no CUDA device"),
        "ipc": step("NOT RUN", "no time"),
        "join": step("FAIL", "exit 1"),
        "long": step("RUNNING"),
    }
    rows = rehearsal.step_outcomes({"steps": steps}, [*steps, "absent"])
    assert [(row.step, row.verdict, row.fault) for row in rows] == [
        ("facts", "PASS", ""),
        ("nf4", "NOT RUN", ""),
        ("ipc", "NOT RUN", "no time"),
        ("join", "FAIL", "exit 1"),
        ("long", "RUNNING", "RUNNING"),
        ("absent", "", rows[-1].fault),
    ]
    assert "results.json" in rows[-1].fault
    assert all(row.fault for row in rehearsal.step_outcomes({}, ["facts"]))


def test_three_files_come_back_and_none_too_large(rehearsal: ModuleType) -> None:
    well = {"results.json": 10, "summary.txt": 10, "proof.tgz": 16 << 20}
    assert rehearsal.output_faults(well) == []
    assert len(rehearsal.output_faults({})) == 3
    for name, size in (("proof.tgz", (16 << 20) + 1), ("facts.log", 1)):
        (fault,) = rehearsal.output_faults(well | {name: size})
        assert fault.startswith(name)
    many = rehearsal.output_faults(well | {f"{number}.log": 1 for number in range(6)})
    assert many[-1].startswith("9 files")


def test_a_killed_step_leaves_a_figure_or_its_end(rehearsal: ModuleType, tmp_path: Path) -> None:
    def left(**found: Any) -> bool:
        (tmp_path / "results.json").write_text(json.dumps({"steps": {"facts": found}}))
        return bool(rehearsal.left_a_figure(rehearsal.results_of(tmp_path), "facts"))

    assert left(**step("RUNNING", figures=({"seconds": 1},)))
    assert left(**step("FAIL"))
    assert not left(**step("RUNNING"))
    assert not rehearsal.left_a_figure(rehearsal.results_of(tmp_path), "ipc")
    (tmp_path / "results.json").write_text('{"steps": {"facts"')
    assert not rehearsal.left_a_figure(rehearsal.results_of(tmp_path), "facts")


def test_a_failed_steps_log_comes_from_the_archive(rehearsal: ModuleType, tmp_path: Path) -> None:
    assert "facts.log" in rehearsal.log_of(tmp_path, "facts")
    log = "".join(f"line {number}\n" for number in range(30)).encode()
    with tarfile.open(tmp_path / "proof.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("proof/facts.log")
        entry.size = len(log)
        archive.addfile(entry, io.BytesIO(log))
    assert rehearsal.log_of(tmp_path, "facts").splitlines() == [
        f"line {number}" for number in range(10, 30)
    ]


def test_bundles_are_those_that_the_proof_prints(rehearsal: ModuleType) -> None:
    assert rehearsal.parse_bundles("first: facts ipc\nnf4: nf4\n") == {
        "first": ["facts", "ipc"],
        "nf4": ["nf4"],
    }
    assert "facts" in rehearsal.chosen_bundles(["first"])["first"]
    with pytest.raises(SystemExit, match="bundle frist"):
        rehearsal.chosen_bundles(["frist"])


@contextlib.contextmanager
def reading(pipe: Path) -> Iterator[TextIO]:
    """The reading end of a new named pipe, which waits for nobody to write."""
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(end, True)
    with open(end) as reader:
        yield reader


def machine(directory: Path) -> Path:
    """An environment whose only program is `python3`, which prints a word."""
    program = directory / "bin" / "python3"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho the machine\n")
    program.chmod(0o755)
    return directory


def test_a_command_finds_a_bare_machine(
    rehearsal: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    isolated = rehearsal.can_isolate()
    command = (
        'exec > "$OUT/told"; python3; ls -A "$HOME" "$TMPDIR" | grep -c ^[^/]; ls\n'
        'echo "${PYTHONPATH-none} ${VIRTUAL_ENV-none}"\n'
        'grep -c : /proc/net/dev > "$OUT/networks"; exit 3'
    )
    with rehearsal.call_folders([ROOT / "pyproject.toml"], isolated) as folders:
        result = rehearsal.run(command, folders, machine(tmp_path), 60)
        told = (folders.path / "out" / "told").read_text().splitlines()
        networks = (folders.path / "out" / "networks").read_text()
    assert result.code == 3
    assert told == ["the machine", "0", "pyproject.toml", "none none"]
    assert networks == "1\n" or not isolated
    assert not folders.path.exists()


@pytest.mark.slow(reason="commands that are killed after a second")
@pytest.mark.parametrize("isolated", [False, True])
def test_nothing_of_a_killed_command_runs_on(
    rehearsal: ModuleType, tmp_path: Path, isolated: bool
) -> None:
    if isolated and not rehearsal.can_isolate():
        pytest.skip("needs a user who may isolate a process")
    holds = "echo begun; sleep 600"
    command = f'setsid bash -c "{holds}" > "$OUT/away" & ({holds}) > "$OUT/near" & sleep 600'
    for seconds in (1, 60):  # the second where a shell takes longer to start
        with (
            rehearsal.call_folders([ROOT / "pyproject.toml"], isolated) as folders,
            contextlib.ExitStack() as stack,
        ):
            pipes = [folders.path / "out" / name for name in ("away", "near")]
            readers = [stack.enter_context(reading(pipe)) for pipe in pipes]
            result = rehearsal.run(command, folders, tmp_path, seconds)
            # A pipe ends once no process holds it, whether or not that has the mark.
            said = [reader.read() for reader in readers]
        assert result.code is None
        assert not [
            one for one in psutil.process_iter() if rehearsal.has_mark(one, folders.path.name)
        ]
        if all(said):
            break
    assert said == ["begun\n"] * 2
