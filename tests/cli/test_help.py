"""What `--help` of each command lists."""

from __future__ import annotations

import inspect
import itertools
import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from coordinator.main import app as coordinator
from swarm_node.cli.main import app


def paths(command: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names that lead to a command and to each below it."""
    here = (*above, command.name)
    yield here
    for each in getattr(command, "commands", {}).values():
        yield from paths(each, here)


PROGRAMS = {"swarm-node": app, "swarm-coordinator": coordinator}
EACH_COMMAND = pytest.mark.parametrize(
    "called",
    [called for program in PROGRAMS.values() for called in paths(get_command(program))],
    ids=" ".join,
)


def command_of(called: tuple[str, ...]) -> Any:
    command: Any = get_command(PROGRAMS[called[0]])
    for name in called[1:]:
        command = command.commands[name]
    return command


def helped(called: tuple[str, ...], width: int) -> str:
    """What `--help` of a command shows in a terminal of this width."""
    # Not TERMINAL_WIDTH, which typer reads once, at its first help.
    arguments, environ = [*called[1:], "--help"], {"COLUMNS": str(width)}
    return CliRunner().invoke(PROGRAMS[called[0]], arguments, env=environ).stdout


def rows(shown: str) -> list[list[str]]:
    """The lines of each argument and option, without those of typer's own."""
    found: list[list[str]] = []
    for panel in re.findall(r"^╭─ (?:Options|Arguments) ─.*?^╰", shown, re.DOTALL | re.MULTILINE):
        for line in re.findall(r"^│(.*)│$", panel, re.MULTILINE):
            if line[:8].strip():
                found.append([])
            found[-1].append(line)
    return [row for row in found if "-completion" not in row[0]]


def broken_early(shown: str, width: int = 80) -> list[str]:
    """Lines of a help's text that end although the next word would fit: the text was wrapped when
    it was written, and again at the terminal's width."""
    text = re.split(r"^╭─", shown.partition("Usage:")[2].partition("\n")[2], flags=re.MULTILINE)[0]
    lines = [line.rstrip() for line in text.splitlines()]
    return [
        line
        for line, after in itertools.pairwise(lines)
        if line.strip() and after.strip() and len(f"{line} {after.split()[0]}") < width
    ]


def text_of(row: list[str]) -> list[str]:
    """The lines of an option before those that typer adds."""
    added = (at for at, line in enumerate(row) if re.match(r" +\[(default|required|env var)", line))
    return row[: next(added, len(row))]


@EACH_COMMAND
def test_a_help_fits_eighty_columns_and_is_wrapped_once_with_two_lines_an_option(
    called: tuple[str, ...],
) -> None:
    shown = helped(called, 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert broken_early(shown) == []
    assert rows(shown)
    assert [row for row in rows(shown) if len(row) > 3 or len(text_of(row)) > 2] == []


@pytest.mark.slow(reason="builds every command anew")
@EACH_COMMAND
def test_a_help_in_forty_columns_cuts_no_option(
    called: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # which a program asks for when it builds its commands
    command = command_of(called)
    get_command(PROGRAMS[called[0]]).main([*called[1:], "--help"], called[0], standalone_mode=False)
    shown = capsys.readouterr().out
    options = {name for parameter in command.params for name in parameter.opts if name[0] == "-"}
    assert {name for name in options if name not in shown} == set()
    text = shown.partition("\n\n")[2].partition("\n\n")[0]
    assert max(map(len, text.splitlines())) <= 40


def test_the_panels_begin_with_what_one_needs_first() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    places = [shown.index(f" {panel} ─") for panel in ("Basic", "Network", "Model", "Experiments")]
    assert places == sorted(places)


def bracketed(command: Any) -> set[str]:
    """What stands in square brackets in the written help of a command and its parameters."""
    written = inspect.unwrap(command.callback) if command.callback else None
    hints = typing.get_type_hints(written, include_extras=True) if written else {}
    infos = [each for hint in hints.values() for each in getattr(hint, "__metadata__", ())]
    texts = [getattr(written, "__doc__", None), *(info.help for info in infos)]
    return {found for text in texts if text for found in re.findall(r"\[[^\]]+\]", text)}


@pytest.mark.slow(reason="renders every help")
@EACH_COMMAND
def test_square_brackets_in_a_help_are_shown(called: tuple[str, ...]) -> None:
    shown = helped(called, 300)
    assert {each for each in bracketed(command_of(called)) if each not in shown} == set()


def test_some_help_has_square_brackets() -> None:
    track = command_of(("swarm-node", "track"))
    assert bracketed(track) == {"[tensorboard]", "[wandb]", "[trackio]"}
