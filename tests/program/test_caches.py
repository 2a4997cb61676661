"""Where caches of libraries go if the user's own directory cannot have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm_node.program.caches import cache_variables, user_directory

NODE, USER = Path("/data/node"), Path("/home/user")


def test_caches_that_can_be_written_stay_where_they_are() -> None:
    asked: list[Path] = []
    assert cache_variables(NODE, USER, {}, lambda path: not asked.append(path)) == {}
    assert asked == [USER / ".cache"]


def test_a_user_without_a_directory_has_one_below_the_home() -> None:
    assert cache_variables(NODE, None, {}, lambda _: True) == {"HOME": "/data/node/cache"}


def test_caches_of_a_directory_that_cannot_be_written_go_below_the_home() -> None:
    found = cache_variables(NODE, USER, {"TRITON_HOME": "/mine"}, lambda _: False)
    assert found == dict.fromkeys(
        ["XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE"], "/data/node/cache"
    )
    assert cache_variables(NODE, USER, {"XDG_CACHE_HOME": "/mine"}, lambda _: False) == {}


def test_models_in_a_directory_that_cannot_be_written_are_read_there(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    found = cache_variables(NODE, tmp_path, {}, lambda _: False)
    assert found["HF_HOME"] == str(tmp_path / ".cache" / "huggingface")
    given = cache_variables(NODE, tmp_path, {"HF_HOME": "/models"}, lambda _: False)
    assert "HF_HOME" not in given


def test_a_relative_home_of_the_user_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "here")
    assert user_directory() is None
