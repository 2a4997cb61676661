"""A directory that one node uses at a time: locks and refusals."""

import os
from pathlib import Path

import pytest

from swarm_node.errors import HomeError
from swarm_node.program.private_directory import PrivateDirectory


def test_a_lock_that_cannot_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    home = PrivateDirectory(tmp_path / "home")
    (home.path / "lock").mkdir(parents=True)
    with pytest.raises(HomeError, match="cannot write"), home.lock():
        pass
    assert not home.in_use()


def test_a_home_is_for_one_process_and_in_use_while_that_holds_it(tmp_path: Path) -> None:
    home = PrivateDirectory(tmp_path / "home")
    assert not home.in_use()
    assert not home.path.exists()
    for _ in range(2):
        with home.lock():
            assert home.in_use()
            with pytest.raises(HomeError, match="already running"), home.lock():
                pass
        assert not home.in_use()


def test_a_fork_neither_holds_a_home_for_longer_nor_gives_it_up(tmp_path: Path) -> None:
    home = PrivateDirectory(tmp_path / "home")
    held = home.lock()
    held.__enter__()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        held.__exit__(None, None, None)
        os.close(writer)
        os.read(reader, 1)  # until the test closes its end
        os._exit(0)
    os.close(reader)
    assert home.in_use()
    held.__exit__(None, None, None)
    assert not home.in_use()
    with home.lock():
        pass
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


def test_a_home_that_others_can_enter_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    with PrivateDirectory(tmp_path).lock():
        assert f"chmod 700 {tmp_path}" in capsys.readouterr().out
    tmp_path.chmod(0o700)
    with PrivateDirectory(tmp_path).lock():
        assert capsys.readouterr().out == ""


def test_a_start_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    (tmp_path / "port.k1ll3d.new").write_bytes(b"12")
    with PrivateDirectory(tmp_path).lock():
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_home_that_cannot_be_written_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    PrivateDirectory(tmp_path / "new" / "home").check()
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(HomeError, match=r"a directory: .* --home"):
            PrivateDirectory(path).check()
    with pytest.raises(HomeError, match="too long"):
        PrivateDirectory(tmp_path / ("x" * 300)).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_home_without_permission_is_refused(tmp_path: Path, mode: int) -> None:
    above = tmp_path / "above"
    above.mkdir(mode=mode)
    with pytest.raises(HomeError, match=r"written|denied"):
        PrivateDirectory(above / "home").check()


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    place = PrivateDirectory(tmp_path / os.fsdecode(b"n\xe9"))
    for use in (place.check, place.create):
        with pytest.raises(HomeError, match="--home"):
            use()
    assert not place.path.exists()
