"""The terminal of a program: characters that it lacks, colours that its user does not want."""

# ruff: noqa: RUF001 - signs that look like ASCII are replaced by it

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.main import app as coordinator
from swarm_node.cli.main import app
from swarm_node.program.terminal import literal, plain_character, replace_unencodable


@pytest.mark.parametrize(
    ("encoding", "text", "written"),
    [
        ("latin-1", "✓ 3 · 4 …", b"+ 3 \xb7 4 ~"),
        ("ascii", "✗ é − 漢", b"x e - ?"),
        ("utf-8", "✓ …", "✓ …".encode()),
        ("utf-8", "home/\udce9", b"home/\xe9"),
        ("ascii", "home/\udce9", b"home/\xe9"),
    ],
)
def test_a_stream_writes_every_text_in_its_encoding(
    encoding: str, text: str, written: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        taken = io.BytesIO()
        monkeypatch.setattr(sys, name, io.TextIOWrapper(taken, encoding))
        replace_unencodable()
        print(text, end="", file=getattr(sys, name), flush=True)
        assert taken.getvalue() == written


def test_a_plain_character_takes_the_place_of_one() -> None:
    for character in "●✓✗†→…–—−·×±≤≥│─█▇▁⠋┏╰é漢\udce9\x00":
        assert len(plain_character(character)) == 1
        assert plain_character(character).isascii()


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (app, ["plan", "--model", "tiny"]),
        (app, ["losses"]),
        (app, ["--help"]),
        (coordinator, ["--help"]),
        (coordinator, ["serve", "--help"]),
    ],
)
def test_commands_end_as_under_utf_8_on_a_terminal_with_another_encoding(
    program: Any, command: list[str]
) -> None:
    shown = {}
    for charset in ("latin-1", "utf-8"):
        done = CliRunner(charset=charset).invoke(program, command, env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.exception
        shown[charset] = done.stdout_bytes.decode(charset)
    lines = [text.count("\n") for text in shown.values()]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_no_color_takes_the_colour_from_a_refusal(value: str, coloured: bool) -> None:
    command, environ = ["plan", "--vram", "much"], {"NO_COLOR": value}
    done = CliRunner().invoke(app, command, env=environ, color=True)
    assert done.exit_code == 1
    assert ("\x1b[" in done.stderr) is coloured


def test_text_that_looks_like_markup_is_escaped_once() -> None:
    escaped = literal("take [extra] of [HOST]:PORT")
    assert escaped == r"take \[extra] of [HOST]:PORT"
    assert literal(escaped) == escaped
