"""Report an error of a command: one line on stderr, and an exit code."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from swarm_node.errors import SwarmNodeError


class RefusingGroup(TyperGroup):
    """Commands in which an error of this program is one line on stderr and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SwarmNodeError as error:
            typer.secho(f"{self.name}: {error}", fg="red", err=True)
            raise typer.Exit(1) from None
