"""What travels to a GPU machine: the tree's files, wheels, a cut one, and lines that fit."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from builders import ROOT, LoadBenchmark

_CUDA, _CPU = "libbitsandbytes_cuda130.so", "libbitsandbytes_cpu.so"


@pytest.fixture
def call(load_benchmark: LoadBenchmark) -> ModuleType:
    return load_benchmark("gpu_call")


@pytest.fixture
def wheels(load_benchmark: LoadBenchmark) -> ModuleType:
    return load_benchmark("gpu_wheels")


def wheel(directory: Path, *libraries: str) -> Path:
    """A wheel as bitsandbytes publishes them, with libraries of a few bytes."""
    file = directory / "bitsandbytes-0.50.2-py3-none-manylinux_2_24_x86_64.whl"
    names = ["bitsandbytes/__init__.py", *(f"bitsandbytes/{name}" for name in libraries)]
    rows = [*(f"{name},sha256=x,1" for name in names), "bitsandbytes-0.50.2.dist-info/RECORD,,"]
    with zipfile.ZipFile(file, "w") as whole:
        for name in names:
            whole.writestr(name, "x")
        whole.writestr("bitsandbytes-0.50.2.dist-info/RECORD", "\n".join(rows) + "\n")
    return file


def test_the_machine_has_its_own_packages_and_others_that_wheels_come_before(
    wheels: ModuleType,
) -> None:
    text = wheels.MACHINE.read_text()
    own, whole = wheels.machine_packages(text), wheels.pins(text)
    assert own["torch"] == "2.11.0"
    assert own["huggingface-hub"] == "1.33.0"
    assert whole["protobuf"].startswith("7."), "newer than pyproject.toml allows"
    assert "protobuf" not in own
    with pytest.raises(ValueError, match="lacks"):
        wheels.machine_packages("torch==2.11.0\n")


def test_what_is_the_machines_own_does_not_travel(wheels: ModuleType) -> None:
    wanted = wheels.wanted()
    assert {"hivemind", "peft", "pytest", "protobuf"} <= wanted.keys()
    assert not wanted.keys() & wheels.machine_packages(wheels.MACHINE.read_text()).keys()
    assert "torch" not in wanted
    assert "accelerate" not in wanted


def test_a_cut_wheel_has_the_libraries_for_one_cuda_and_the_cpu(
    call: ModuleType, tmp_path: Path
) -> None:
    whole = wheel(tmp_path, _CPU, "libbitsandbytes_cuda128.so", _CUDA, "libbitsandbytes_rocm72.so")
    part = tmp_path / "part.whl"
    call.strip_wheel(whole, part)
    with zipfile.ZipFile(part) as file:
        assert file.testzip() is None
        names = file.namelist()
        record = file.read("bitsandbytes-0.50.2.dist-info/RECORD").decode()
    assert [row.partition(",")[0] for row in record.splitlines()] == names
    assert {name for name in names if name.endswith(".so")} == {
        *(f"bitsandbytes/{name}" for name in (_CPU, _CUDA))
    }
    with pytest.raises(SystemExit, match=_CUDA):
        call.strip_wheel(wheel(tmp_path, _CPU), part)


def test_a_folder_is_complete_with_exactly_its_wheels_and_one_cut(
    call: ModuleType, tmp_path: Path
) -> None:
    wanted = {"bitsandbytes": "0.50.2", "py-cid": "0.5.0"}
    wheel(tmp_path, _CPU, _CUDA)
    assert not call.complete(tmp_path, wanted)
    (tmp_path / "py_cid-0.5.0-py3-none-any.whl").touch()
    assert call.complete(tmp_path, wanted)
    assert not call.complete(tmp_path, wanted | {"py-cid": "0.5.1"})
    wheel(tmp_path, _CPU, _CUDA, "libbitsandbytes_cuda128.so")
    assert not call.complete(tmp_path, wanted)


def test_the_tree_is_what_git_has_or_does_not_ignore(call: ModuleType, tmp_path: Path) -> None:
    for name in (".gitignore", "kept", "gone", "new ä", "ignored/one"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("ignored/\n")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(["git", "add", ".gitignore", "kept", "gone"], cwd=tmp_path, check=True)
    (tmp_path / "gone").unlink()
    (tmp_path / "link").symlink_to("nowhere")
    found = call.tree(tmp_path)
    assert [str(file.relative_to(tmp_path)) for file in found] == [
        *(".gitignore", "kept", "link", "new ä")
    ]
    assert call.size_of(found) == 9 + 9 + 9 + len("nowhere")


def test_what_is_too_large_is_refused_by_name(call: ModuleType, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(bytes(1 << 20))
    large.write_bytes(bytes(3 << 20))
    assert call.size_fault([small, large], tmp_path, limit_bytes=(4 << 20) + 1) is None
    lines = call.size_fault([small, large], tmp_path, limit_bytes=4 << 20).splitlines()
    assert lines[0].startswith("4.0 MiB")
    assert [line.split() for line in lines[1:]] == [
        *(["3.0", "MiB", "large"], ["1.0", "MiB", "small"])
    ]


def test_git_ignores_the_folder_that_is_filled(call: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the tree is not a clone")
    assert call.wheel_directory(".gpu") == ROOT / ".gpu"
    for name in ("benchmarks", "wheels", "build/gpu"):
        with pytest.raises(SystemExit, match="git ignores"):
            call.wheel_directory(name)


def test_a_folder_with_other_files_is_left_alone(call: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(SystemExit, match="than wheels"):
        call.gather(tmp_path)
    assert (tmp_path / "notes").exists()


def test_a_command_fits_and_names_what_it_needs(call: ModuleType) -> None:
    assert list(call.CALLS) == ["first", "second", "third"]
    assert call.command(".gpu", "--bundle first") == (
        'WHEELS=.gpu RETURN="$OUT" BUNDLE_SECONDS=540 '
        "bash benchmarks/gpu_proof.sh /tmp/swarm-node-gpu --bundle first"
    )
    with pytest.raises(AssertionError):
        call.command(".gpu", "x" * 2000)
