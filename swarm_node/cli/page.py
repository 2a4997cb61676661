"""`swarm-node open`: the running node's page in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from swarm_node.cli.home import ask
from swarm_node.cli.options import HomeOption
from swarm_node.program.terminal import show_page


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
