"""`swarm-node backup` and `restore`: a home in one file.

Cheap to import, so that `--help` is quick.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from swarm_node.cli.home import chosen_home
from swarm_node.cli.options import HomeOption


def backup(
    out: Annotated[Path, typer.Option(help="The new file; only you can read it.")],
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Include the newest checkpoint.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Copy a data directory into one file, even while its node runs.

    Keys, membership, lists of tickets and of blocked peers, and the database. Whoever has the file
    can act as this node, and as the swarm's owner if root.key is in it: keep it as you would keep a
    password. `swarm-node restore FILE` makes a data directory of it.
    """
    from swarm_node.node.home.backup import back_up

    place, newest_path = chosen_home(home), None
    if checkpoint:
        from swarm_node.policy.training.checkpoints.stored import newest_valid

        newest_path = newest_valid(place.checkpoints)
    archive = back_up(place, out, now=time.time(), checkpoint=newest_path)
    typer.echo(f"Wrote {out} ({archive.size / 1e6:,.1f} MB, mode 0600): {', '.join(archive.files)}")
    if "root.key" in archive.files:
        typer.echo("It holds root.key: whoever has the file decides who is a member of the swarm.")
    typer.echo(f"To use it on any machine:  swarm-node restore {out} --home DIR")


def restore(
    file: Annotated[Path, typer.Argument(help="What `swarm-node backup` wrote.")],
    home: HomeOption = None,
) -> None:
    """Restore a backup into a new data directory.

    The data directory must not be in use: nothing is overwritten. Every file is checked against its
    digest before the first one is put in place. The node starts a new epoch of its log, so it
    reuses no sequence number from after the backup. Never run the original node and the restored
    one at once: both would sign as the same peer.
    """
    from swarm_node.node.home.backup import restore as restore_home
    from swarm_node.program.commands import home_option
    from swarm_node.program.terminal import date_of

    place = chosen_home(home)
    created_at = restore_home(place, file).created_at
    option = home_option(home)
    typer.echo(
        f"Restored {place.path} as it was at {date_of(created_at)}: swarm {place.swarm().name!r}"
    )
    typer.echo(f"  this node  {place.identity().peer_id}")
    typer.echo(f"Next:  swarm-node join{option}   (only if the old node does not run any more)")
