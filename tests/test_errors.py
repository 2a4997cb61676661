"""The words of errors for people."""

from __future__ import annotations

import errno
import socket

import pytest

from swarm_node.errors import ModelError, reason_of, words_of


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
