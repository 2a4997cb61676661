"""`swarm-node serve`: OpenAI's API of what is trained, for people and evaluation harnesses."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from swarm_node.cli.home import ask
from swarm_node.cli.options import ConfigOption, HomeOption
from swarm_node.errors import ConfigError, NotRunningError

if TYPE_CHECKING:
    from swarm_node.node.control.openai import ServedAt

_KeyOption = Annotated[
    str | None, typer.Option(envvar="SWARM_NODE_API_KEY", help="Clients' key, seen in `ps`.")
]
_NO_NODE: Final = "no node is running here: serving the newest checkpoint"


def serve(
    checkpoint: Annotated[
        str | None, typer.Option(help="Serve this checkpoint, or base; without a node.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Where to listen; 0.0.0.0: for other machines too.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port to listen at; stays the same.")
    ] = None,
    api_key: _KeyOption = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File with the key.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The base of the checkpoint; without a node.")
    ] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the policy to OpenAI clients on this machine: chat, completions, models.

    A running node already serves its newest version: this prints address and key, for `eval
    "$(swarm-node serve)"` in a shell. With --host, --port or a key, it forwards requests to the
    node until Ctrl-C, so that address and key survive restarts of the node. Without a running node,
    or with --checkpoint, it serves a saved checkpoint until Ctrl-C. The key is valid for
    these paths only.
    """
    is_stored = any(option is not None for option in (checkpoint, model))
    has_endpoint = any(option is not None for option in (host, port, api_key, api_key_file))
    if not is_stored and not has_endpoint:
        try:
            _tell(ask(home, lambda client: client.fetch_openai_access()))
        except NotRunningError:
            typer.echo(_NO_NODE, err=True)
        else:
            return
    if is_stored or not has_endpoint:
        _require_stored(checkpoint, home, model, config)
    from swarm_node.library.endpoint import Endpoint, read_key
    from swarm_node.library.forwarding import serve_running
    from swarm_node.library.serving import serve_stored

    if api_key_file is not None:
        if api_key is not None:
            raise ConfigError("take one of --api-key (SWARM_NODE_API_KEY) and --api-key-file")
        api_key = read_key(api_key_file)
    at = Endpoint(host or "127.0.0.1", port or 0, api_key)

    async def serving() -> None:
        _ends_at_sigterm()
        announce = partial(_listens, is_loopback=at.is_loopback)
        if has_endpoint and not is_stored:
            try:
                await serve_running(announce, at, home=home)
            except NotRunningError:
                typer.echo(_NO_NODE, err=True)
        await serve_stored(checkpoint, announce, at=at, home=home, model=model, config=config)

    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(serving())


def _require_stored(
    checkpoint: str | None, home: Path | None, model: str | None, config: Path | None
) -> None:
    from swarm_node.config import load_settings
    from swarm_node.library.resolve_names import require_served

    settings = load_settings({"home": home, "model": model}, config=config, with_home=True)
    require_served(settings, checkpoint)


def _ends_at_sigterm() -> None:
    """Let a service manager end it as Ctrl-C does, so that the file with the key goes too."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _listens(service: ServedAt, *, is_loopback: bool) -> None:
    _tell(service)
    typer.echo(
        f"serving {service.model.id}, version {service.model.version}; Ctrl-C ends it", err=True
    )
    if not is_loopback:
        typer.echo(
            "other machines can connect, and nothing is encrypted: give the key to whom you trust, "
            "and put a proxy with TLS before it",
            err=True,
        )
    sys.stdout.flush()


def _tell(service: ServedAt) -> None:
    typer.echo(f"export OPENAI_BASE_URL={service.url}")
    typer.echo(f'export OPENAI_API_KEY="$(cat {shlex.quote(str(service.key))})"')
    typer.echo(f"# model: {_plain(service.model.id)}")


def _plain(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)
