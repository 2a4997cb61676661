"""`swarm-node train-host`: one of the further machines on which a node's trainer computes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated

import typer

from swarm_node.cli.options import ConfigOption, HomeOption


def train_host(
    node: Annotated[str, typer.Argument(help="HOST:PORT of the node's run.trainer_hosts.")],
    key: Annotated[Path, typer.Option(help="A copy of site.key from the node's home.")],
    model: Annotated[
        str | None, typer.Option(help="The node's model, by the same name. [SWARM_NODE_MODEL]")
    ] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Train for a node on another machine of this site, until that node ends.

    The node says how many processes train here. They end and start again with those of the node.
    """
    from swarm_node.config import load_settings
    from swarm_node.errors import ConfigError
    from swarm_node.node.home.home import Home
    from swarm_node.node.hosts.attending import Attendant
    from swarm_node.p2p.wire.identity import Identity
    from swarm_node.policy.models.model import policy_digests, resolve

    if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}:[1-9]\d{0,4}", node):
        raise ConfigError(f"train-host takes HOST:PORT, such as 10.0.0.1:29400, not {node!r}")
    settings = load_settings({"home": home, "model": model}, config=config)
    place, secret = Home(settings.home), Identity.load(key).seed()
    with place.lock():
        directory = resolve(settings.model)
        attendant = Attendant(
            node,
            secret,
            directory,
            policy_digests(directory)[0],
            place.path / "train-host",
            lambda line: typer.echo(line, err=True),
        )
        asyncio.run(attendant.attend())
