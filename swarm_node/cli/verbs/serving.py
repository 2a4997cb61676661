"""`swarm-node serve`: OpenAI's API of what is trained, for people and evaluation harnesses."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from swarm_node.cli.home import ask
from swarm_node.cli.options import ConfigOption, HomeOption
from swarm_node.errors import NotRunningError

if TYPE_CHECKING:
    from swarm_node.node.control.openai import ServedAt


def serve(
    checkpoint: Annotated[
        str | None, typer.Option(help="Serve this checkpoint, or base; without a node.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Where to listen; without a node.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The base of the checkpoint; without a node.")
    ] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the policy to OpenAI's clients on this machine: chat, completions, models.

    A running node serves its newest version already: this prints where, for `eval "$(swarm-node
    serve)"` in a shell, and ends. Without a running node, or with --checkpoint, it serves a stored
    checkpoint until Ctrl-C. The key opens nothing but these paths.
    """
    if (checkpoint, port, model, config) == (None, None, None, None):
        try:
            _tell(ask(home, lambda client: client.served()))
        except NotRunningError:
            typer.echo("no node is running here: serving the newest checkpoint", err=True)
        else:
            return
    from swarm_node.library.serving import serve_stored

    def told(served: ServedAt) -> None:
        _tell(served)
        typer.echo(
            f"serving {served.model.id}, version {served.model.version}; Ctrl-C ends it", err=True
        )
        sys.stdout.flush()

    try:
        asyncio.run(
            serve_stored(checkpoint, told, home=home, model=model, config=config, port=port or 0)
        )
    except KeyboardInterrupt:
        return


def _tell(served: ServedAt) -> None:
    typer.echo(f"export OPENAI_BASE_URL={served.url}")
    typer.echo(f'export OPENAI_API_KEY="$(cat {shlex.quote(str(served.key))})"')
    typer.echo(f"# model: {_plain(served.model.id)}")


def _plain(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)
