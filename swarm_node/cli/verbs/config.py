"""`swarm-node config`: list the settings, and change some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swarm_node.cli.home import ask, chosen_home, show
from swarm_node.cli.options import AssignOption, ConfigOption, HomeOption, JsonOption
from swarm_node.errors import NotRunningError
from swarm_node.program.terminal import RefusingGroup

if TYPE_CHECKING:
    from swarm_node.config.reloading import Reloaded

config_app = typer.Typer(cls=RefusingGroup, help="List every setting, or change some.")


@config_app.callback(invoke_without_command=True)
def config(
    context: typer.Context,
    file: ConfigOption = None,
    assign: AssignOption = None,
    home: HomeOption = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print a settings file to start from.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List every setting: its value, the accepted values, and where the value comes from.

    These are the settings that `join` would use with the same `--home`, `--config FILE` and
    `--set KEY=VALUE`. A home remembers what its node was given. `swarm-node config --toml >
    node.toml` writes them to a file, for `--config`.
    """
    if context.invoked_subcommand is not None:
        context.obj = (file, home)
        return
    from swarm_node.cli.views.config_view import (
        config_rows,
        config_toml,
        config_view,
        explain_settings,
    )
    from swarm_node.config import Sources, parse_assignments
    from swarm_node.node.figures.snapshot import SCHEMA

    flags = {"home": home, **parse_assignments(assign or [])}
    keys = explain_settings(flags, config=file, with_home=True)
    _tell_lost(Sources(flags, config=file).home)
    if toml:
        typer.echo(config_toml(keys), nl=False)
        return
    listed = {"schema": SCHEMA, "settings": config_rows(keys)}
    show(json, listed, lambda: config_view(keys))


@config_app.command("set")
def change(
    context: typer.Context,
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
    file: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Change settings in the node's home, and reload the running node. A single setting can also be
    written as KEY VALUE.

    With `--config FILE` or SWARM_NODE_CONFIG, edit that settings file instead and keep its
    comments. Values that `join` would refuse are not written. `swarm-node join --forget KEY`
    returns to the default.
    """
    from swarm_node.config import Sources, parse_assignments
    from swarm_node.config.changing import change_file
    from swarm_node.config.remembered import FILE
    from swarm_node.config.sources import keys_of, set_remembered

    if len(assignments) == 2 and "=" not in assignments[0]:  # KEY VALUE
        assignments = ["=".join(assignments)]
    config, place = context.obj
    sources = Sources({"home": home or place}, config=file or config)
    changes, written = parse_assignments(assignments), sources.file
    if written is not None:
        change_file(written, changes)
        typer.echo(f"{written}: {', '.join(changes)} written")
    else:
        _tell_lost(sources.home)
        set_remembered(sources.home, changes)
        chosen_home(sources.home).note(FILE)
        typer.echo(f"{sources.home}: {', '.join(changes)} remembered")
    try:
        told = ask(sources.home, lambda client: client.reload())
    except NotRunningError:
        typer.echo(f"no node runs in {sources.home}: the next start reads it")
        return
    if written is not None and told.file != str(written.resolve()):
        typer.echo(
            f"the running node reads {told.file or 'no settings file'}: start it with "
            f"--config {written}"
        )
        return
    _explain(told, keys_of(changes), "" if written is None else str(written.resolve()))


def _tell_lost(home: Path) -> None:
    """Warn on stderr if the home has lost what it remembered: values shown are then defaults."""
    from swarm_node.config.remembered import FILE

    for fault in chosen_home(home).judged().faults:
        if fault.file == FILE:
            typer.echo(f"{home}: {fault}", err=True)


def _explain(told: Reloaded, changed: Sequence[str], written: str) -> None:
    """Say what became of the keys `changed` in the file `written`, "" for the home."""
    decided = {key: told.overridden[key] for key in changed if key in told.overridden}
    for text, keys in (
        ("in use now", [key for key in told.applied if key in changed]),
        ("after a restart (swarm-node stop, then swarm-node join)", told.pending),
        *(
            (f"not in use, {source} decides", [key])
            for key, source in decided.items()
            if source != written
        ),
    ):
        if keys:
            typer.echo(f"{text}: {', '.join(keys)}")
