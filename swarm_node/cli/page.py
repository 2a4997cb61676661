"""`swarm-node open`: the running node's page in a browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated
from urllib.parse import urlsplit

import typer

from swarm_node.cli.home import ask
from swarm_node.cli.options import HomeOption


def open_page(
    home: HomeOption = None,
    show: Annotated[
        bool, typer.Option("--print", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Open the running node's page in a browser: reward, peers, traffic, samples.

    The address lets one browser in, within a minute, to look and not to change anything. Over ssh,
    forward the port that the command names, and open the address on your machine.
    """
    show_page(ask(home, lambda client: client.page()), only_print=show)


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
