"""How a command reports an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from swarm_node.errors import SwarmNodeError


@contextmanager
def refusals() -> Iterator[None]:
    """Turn an error of this program into one line on stderr and exit code 1."""
    try:
        yield
    except SwarmNodeError as error:
        typer.secho(f"swarm-node: {error}", fg="red", err=True)
        raise typer.Exit(1) from None
