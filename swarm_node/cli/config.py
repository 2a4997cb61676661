"""`swarm-node config`: list the settings, and change some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swarm_node.cli.home import ask, show
from swarm_node.cli.options import AssignOption, ConfigOption, HomeOption, JsonOption
from swarm_node.errors import ConfigError, NotRunningError
from swarm_node.program.terminal import RefusingGroup

config_app = typer.Typer(cls=RefusingGroup, help="List every setting, or change some.")


@config_app.callback(invoke_without_command=True)
def config(
    context: typer.Context,
    file: ConfigOption = None,
    assign: AssignOption = None,
    json: JsonOption = False,
) -> None:
    """List every setting: its value, the accepted values, and where the value comes from.

    With `--config FILE` and `--set KEY=VALUE`, list the settings that `join` would use.
    """
    if context.invoked_subcommand is not None:
        context.obj = file
        return
    from swarm_node.cli.config_view import config_rows, config_view, explain_settings
    from swarm_node.config import parse_assignments
    from swarm_node.node.figures.snapshot import SCHEMA

    keys = explain_settings(parse_assignments(assign or []), config=file)
    listed = {"schema": SCHEMA, "settings": config_rows(keys)}
    show(json, listed, lambda: config_view(keys))


@config_app.command("set")
def change(
    context: typer.Context,
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
    file: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Write settings into the settings file, and let the running node read it again.

    The file is that of `--config`, or of SWARM_NODE_CONFIG. Its comments stay. What `join` would
    refuse is not written.
    """
    from swarm_node.config import load_settings, parse_assignments
    from swarm_node.config.changing import change_file

    place: Path | None = file or context.obj
    if place is None:
        raise ConfigError("name the settings file: --config FILE, or SWARM_NODE_CONFIG")
    changes = parse_assignments(assignments)
    change_file(place, changes)
    typer.echo(f"{place}: {', '.join(changes)} written")
    home = home or load_settings({}, config=place).home
    try:
        told = ask(home, lambda client: client.reload())
    except NotRunningError:
        typer.echo(f"no node runs in {home}: the next start reads it")
        return
    if told.file != str(place.resolve()):
        typer.echo(
            f"the running node reads {told.file or 'no settings file'}: start it with "
            f"--config {place}"
        )
        return
    for text, keys in (
        ("in use now", [key for key in told.applied if key in changes]),
        ("after a restart (swarm-node stop, then swarm-node join)", told.pending),
        *((f"not in use, {source} decides", [key]) for key, source in told.overridden.items()),
    ):
        if keys:
            typer.echo(f"{text}: {', '.join(keys)}")
