"""Helpers of the commands on a home: choose the home, ask its running node, show an answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from swarm_node.node.home.home import Home


def chosen_home(home: Path | None) -> Home:
    """The home that an option names, or else the default one."""
    from swarm_node.config import default_home
    from swarm_node.node.home.home import Home

    return Home(home or default_home())


def sound_home(home: Path | None) -> Home:
    """`chosen_home` for a command on its swarm.

    Raises:
        HomeError: it belongs to no swarm, or its files do not fit together. The message says what
        restores them.
    """
    place = chosen_home(home)
    place.require_sound()
    return place


def require_running(home: Path | None) -> Home:
    """The home of a node that has said where it answers. Nothing is asked, so this is quick.

    Raises:
        NotRunningError: there is none.
    """
    place = chosen_home(home)
    if not place.control_file.exists():
        raise place.not_running()
    return place


def ask(home: Path | None, question: Callable[[Any], Any]) -> Any:
    """Ask the running node, and return its answer.

    Raises:
        NotRunningError: there is none.
    """
    place = require_running(home)
    from swarm_node.node.control.control import ControlClient

    return asyncio.run(question(ControlClient(place.control_file)))


def json_of(value: Any) -> str:
    """A value as JSON in one line, with escapes for what could move a cursor: programs read it, and
    people on a terminal too."""
    import json

    import msgspec

    text = msgspec.json.encode(value).decode()
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def show(json: bool, document: Any, view: Callable[[], Any]) -> None:
    """Print `document` as JSON, or else the view."""
    if json:
        typer.echo(json_of(document))
        return
    from rich.console import Console

    Console(file=sys.stdout).print(view())
