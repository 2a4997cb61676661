# ruff: noqa: RUF001 - signs that look like ASCII are replaced by it
"""Terminal of a command: its encoding, version, errors, times, and addresses of pages."""

from __future__ import annotations

import codecs
import inspect
import io
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from swarm_node.errors import ConfigError, SwarmNodeError
from swarm_node.program.commands import printable, with_home
from swarm_node.version import __version__

DAY = 86_400
_UNITS = {"m": 60, "h": 3600, "d": DAY, "w": 7 * DAY}
#: ASCII for characters that a terminal may lack. Each takes one column, so tables stay aligned.
_ALIKE = {
    **{"*": "●", "+": "✓├└┘", "x": "✗✕×", "!": "†", ">": "→►≥", "<": "←◄≤", "^": "▲△", "v": "▼"},
    **{"/": "⏎", "~": "…±", "'": "‘’", '"': "“”", "-": "–—−─▃▂▁", ".": "·", "|": "│", "#": "█▇"},
    "=": "▆▅▄",
}
_PLAIN = {ord(character): plain for plain, alike in _ALIKE.items() for character in alike}
_PLAIN |= dict.fromkeys(range(0x2800, 0x2900), "*")  # Braille, of which spinners are made
#: On narrower terminals help has no panels, whose columns would cut the names of options.
_PANEL_WIDTH = 60
#: What Rich takes for markup, as `rich.markup.escape` knows it, unless it is escaped.
_MARKUP = re.compile(r"(?<!\\)\[[a-z#/@][^\[]*?\]")


class RefusingGroup(TyperGroup):
    """The commands of a program. An error of this program goes to stderr, with its exit code: see
    `format_error`.
    Help wraps at the width of the terminal only, and shows square brackets as they are. A character
    that the terminal lacks ends no command. With NO_COLOR, there are no colours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        columns = shutil.get_terminal_size().columns
        narrow = columns < _PANEL_WIDTH
        if narrow:
            self.context_settings = {**self.context_settings, "terminal_width": columns}
        for command in _and_below(self):
            command.help = unwrap_text(command.help or "")
            if narrow:
                command.rich_markup_mode = None
                continue
            command.help = literal(command.help)
            for parameter in command.params:
                if getattr(parameter, "help", None):
                    parameter.help = literal(parameter.help)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        replace_unencodable()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        if os.environ.get("NO_COLOR"):  # of which typer knows nothing
            ctx.color = False
        try:
            return super().invoke(ctx)
        except SwarmNodeError as error:
            cause, *remedies = format_error(ctx.find_root().command.name or "", error, ctx.obj)
            typer.secho(cause, fg="red", err=True)
            for remedy in remedies:
                typer.echo(remedy, err=True)
            raise typer.Exit(error.exit_code) from None


def format_error(program: str, error: SwarmNodeError, home: Path | None) -> Iterator[str]:
    """The cause of an error, and each of its remedies behind an arrow. On a terminal they wrap at
    its width, elsewhere each is one line. Commands in them name `home`."""
    columns = _columns(sys.stderr)
    for mark, text in (
        (f"{program}: ", error.cause),
        *(("→ ", remedy) for remedy in error.remedies),
    ):
        # Others wrote some of it: a file of another machine, a peer, a coordinator.
        message = mark + "\n".join(map(printable, with_home(text, home).split("\n")))
        yield (
            message
            if columns is None
            else wrap_text(message, columns, "  " if mark == "→ " else "")
        )


def _columns(stream: TextIO) -> int | None:
    """The width of a terminal; None for any other stream."""
    if not stream.isatty():
        return None
    override = os.environ.get("COLUMNS", "")
    if override.isascii() and override.isdigit() and int(override):
        return int(override)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def wrap_text(text: str, columns: int, indent: str = "") -> str:
    """Break each line of a text between words, at `columns`. A longer word has a line of its own,
    which the terminal breaks. Further lines begin with `indent`."""
    from rich.cells import cell_len

    lines = []
    for paragraph in text.split("\n"):
        line, *words = paragraph.split(" ")
        for word in words:
            if cell_len(line) + 1 + cell_len(word) <= columns:
                line += f" {word}"
            else:
                lines.append(line.rstrip())
                line = indent + word
        lines.append(line)
    return "\n".join(lines)


def _and_below(command: Any) -> Iterator[Any]:
    yield command
    for subcommand in getattr(command, "commands", {}).values():
        yield from _and_below(subcommand)


def replace_unencodable() -> None:
    """Let the standard streams write every text, whatever their encoding. Called once, at the entry
    of a program."""
    codecs.register_error("swarm_node.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="swarm_node.plain")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handle a text that an encoding lacks: characters that look alike, or else question marks. A
    byte of a path that was no text is written as it is."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    if all("\udc80" <= character <= "\udcff" for character in characters):
        return characters.encode("utf-8", "surrogateescape"), error.end
    return "".join(map(plain_character, characters)), error.end


def plain_character(character: str) -> str:
    """One ASCII character that stands for `character`."""
    lookalike = character.translate(_PLAIN)
    letter = unicodedata.normalize("NFKD", lookalike)[0]
    return letter if letter.isascii() and letter.isprintable() else "?"


def literal(text: str) -> str:
    """Escape what Rich, which prints help, would take for markup. What is escaped stays: groups
    have groups."""
    return _MARKUP.sub(r"\\\g<0>", text)


def unwrap_text(text: str) -> str:
    """Join the lines of each paragraph of a docstring. One with an indented line stays."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part if any(line.startswith(" ") for line in part.split("\n")) else part.replace("\n", " ")
        for part in paragraphs
    )


def version_option(program: str) -> Any:
    """The option `--version` of a program."""

    def show(is_set: bool) -> None:
        if is_set:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version.")


def seconds_of(text: str, limit: int) -> int:
    """The seconds of a time such as 12h, 7d or 2w.

    Raises:
        ConfigError: it has another form, or is longer than `limit`.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,6})([mhdw])", text.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= limit:
        raise ConfigError(
            f"--expires {text}: this is no time",
            f"write a number and m, h, d or w, {limit // DAY}d at most, such as 12h or 7d",
        )
    return seconds


def date_of(seconds: float) -> str:
    """A time for people, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def show_page(address: str, *, only_print: bool) -> None:
    """Print an address, and open it where there is a screen."""
    typer.echo(address)
    port = urlsplit(address).port
    if only_print:
        return
    if _has_screen():
        import webbrowser

        if webbrowser.open(address):
            return
    typer.echo(
        f"no browser here. From your own machine: ssh -N -L {port}:127.0.0.1:{port} THIS-MACHINE\n"
        "and open the address there, within a minute.",
        err=True,
    )


def _has_screen() -> bool:
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
