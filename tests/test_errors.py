"""The words of errors for people."""

from __future__ import annotations

import errno
import re
import socket
import tomllib

import pytest
from builders import ROOT

from swarm_node.errors import ModelError, extra_of, reason_of, words_of


def test_only_one_function_says_how_an_extra_is_installed_and_each_is_one() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    asked: set[str] = set()
    for path in (ROOT / "swarm_node").rglob("*.py"):
        text = path.read_text()
        assert "swarm-node[" not in text, path
        asked |= set(re.findall(r"extra_of\([\"'](.+?)[\"']\)", text))
    assert asked
    assert asked <= extras.keys()
    assert "'.[gpu]'" in extra_of("gpu")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "too many open files"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), "no such file or directory"),
        (
            OSError(errno.EADDRINUSE, "error while attempting to bind on address ('::1', 1)"),
            "address already in use",
        ),
        (OSError("Two: [Errno 111] refused, [Errno 113] no route"), "Two: refused, no route"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionResetError(), "ConnectionResetError"),
        (ModelError("I/O error: no space (os error 28)"), "I/O error: no space"),
        (ModelError(""), "ModelError"),
    ],
    ids=str,
)  # fmt: skip
def test_words_have_no_number_of_the_operating_system(error: Exception, words: str) -> None:
    assert words_of(error) == words
    if isinstance(error, OSError):
        assert reason_of(error) == words
