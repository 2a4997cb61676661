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

    These are the settings that `join` would use with the same `--home`, `--config FILE` and `--set
    KEY=VALUE`. A data directory remembers what its node was given. `swarm-node config --toml >
    node.toml` writes them to a file, for `--config`."""
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
    from swarm_node.node.metrics.snapshot import SCHEMA

    flags = {"home": home, **parse_assignments(assign or [])}
    keys = explain_settings(flags, config=file, with_home=True)
    _tell_lost(Sources(flags, config=file).home)
    if toml:
        typer.echo(config_toml(keys), nl=False)
        return
    document = {"schema": SCHEMA, "settings": config_rows(keys)}
    show(json, document, lambda: config_view(keys))


@config_app.command("set")
def change(
    context: typer.Context,
    assignments: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")],
    file: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Change settings in the node's data directory, and reload the running node. A single setting
    can also be written as KEY VALUE.

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
    changes, settings_file = parse_assignments(assignments), sources.file
    if settings_file is not None:
        change_file(settings_file, changes)
        typer.echo(f"{settings_file}: {', '.join(changes)} written")
    else:
        _tell_lost(sources.home)
        set_remembered(sources.home, changes)
        chosen_home(sources.home).note(FILE)
        typer.echo(f"{sources.home}: {', '.join(changes)} remembered")
    try:
        reply = ask(sources.home, lambda client: client.reload())
    except NotRunningError:
        typer.echo(f"no node runs in {sources.home}: the next start reads it")
        return
    if settings_file is not None and reply.file != str(settings_file.resolve()):
        typer.echo(
            f"the running node reads {reply.file or 'no settings file'}: start it with "
            f"--config {settings_file}"
        )
        return
    _explain(reply, keys_of(changes), "" if settings_file is None else str(settings_file.resolve()))


def _tell_lost(home: Path) -> None:
    """Warn on stderr if the data directory has lost what it remembered: values shown are then
    defaults."""
    from swarm_node.config.remembered import FILE

    for fault in chosen_home(home).state().faults:
        if fault.file == FILE:
            typer.echo(f"{home}: {fault}", err=True)


def _explain(reply: Reloaded, changed_keys: Sequence[str], settings_file: str) -> None:
    """Say what became of the keys `changed_keys` in the file `settings_file`, "" for the data
    directory."""
    overrides = {key: reply.overridden[key] for key in changed_keys if key in reply.overridden}
    for text, keys in (
        ("in use now", [key for key in reply.applied if key in changed_keys]),
        ("after a restart (swarm-node stop, then swarm-node join)", reply.pending),
        *(
            (f"not in use, {source} decides", [key])
            for key, source in overrides.items()
            if source != settings_file
        ),
    ):
        if keys:
            typer.echo(f"{text}: {', '.join(keys)}")
