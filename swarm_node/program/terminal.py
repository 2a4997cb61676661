"""Terminal of a command: its version, refusals, times, and addresses of pages."""

from __future__ import annotations

import inspect
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import typer
from typer.core import TyperGroup

from swarm_node.errors import ConfigError, SwarmNodeError
from swarm_node.version import __version__

DAY = 86_400
_UNITS = {"m": 60, "h": 3600, "d": DAY, "w": 7 * DAY}


class RefusingGroup(TyperGroup):
    """Commands in which an error of this program is one line on stderr and exit code 1. Their help
    wraps at the width of the terminal only."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for command in _and_below(self):
            command.help = unwrapped(command.help or "")

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SwarmNodeError as error:
            from swarm_node.program.logs import printable

            # Others wrote some of it: a file of another machine, a peer, a coordinator.
            said = "\n".join(map(printable, str(error).split("\n")))
            typer.secho(f"{self.name}: {said}", fg="red", err=True)
            raise typer.Exit(1) from None


def _and_below(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _and_below(each)


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph of a docstring. One with an indented line stays."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part if any(line.startswith(" ") for line in part.split("\n")) else part.replace("\n", " ")
        for part in paragraphs
    )


def version_option(program: str) -> Any:
    """The option `--version` of a program."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version.")


def seconds_of(text: str, most: int) -> int:
    """The seconds of a time such as 12h, 7d or 2w.

    Raises:
        ConfigError: it has another form, or is longer than `most`.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,6})([mhdw])", text.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= most:
        raise ConfigError(
            f"--expires {text}: write a number and m, h, d or w, {most // DAY}d at most, such as "
            "12h or 7d"
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
